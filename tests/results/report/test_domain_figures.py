"""The figures of FedAPT's keys, from a small domains.json whose numbers can be worked out by hand."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from promptfed.results.report import read_run
from promptfed.results.report.domains import draw, read_domains
from promptfed.results.report.figure import Figure
from promptfed.results.report.groups import group_runs
from support.reports import MakeRun

CONTENT: dict[str, Any] = {
    "domains": ["studio", "street", "attic & loft"],  # nobody trained on the last one
    "keys": ["studio", "street"],
    "count": [10, 20, 5],
    "chosen": [[9, 1], [5, 15], [5, 0]],
    "right": [[8, 2], [10, 10], [1, 2]],
    "correct": [7, 12, 1],
    "sheet": {
        "file": "contact-sheet.jpg",
        "key": [[0, 0], [1, 0], [0]],
        "right": [[1, 0], [1, 1], [0]],
        "class": [["Bag", "Coat"], ["Bag", "Bag"], ["Coat"]],
    },
}


def figures(folder: Path, content: object, *, sheet: bool = True) -> list[Figure]:
    (folder / "domains.json").write_text(json.dumps(content))
    if sheet:
        Image.new("RGB", (128, 192), "white").save(folder / "contact-sheet.jpg")
    return list(draw(group_runs([read_run(folder)]), {}, "Here. "))


def test_the_confusion_of_the_domain_classifier(make_run: MakeRun) -> None:
    confusion, *_ = figures(make_run("run"), CONTENT)
    assert "street: 5 of 20 images get the key of studio" in confusion.wide
    assert '<text class="mid in-cell"' in confusion.wide
    assert ">75</text>" in confusion.wide
    # 9 of 10 and 15 of 20 images get the key of their own domain
    assert confusion.caption.startswith("Here. ")
    assert "It knows the domain of 80.0 % of the images." in confusion.caption
    assert "A domain without clients has no key" in confusion.caption
    assert "attic &amp; loft<title>" in confusion.wide


def test_accuracy_under_each_key(make_run: MakeRun) -> None:
    _, heat, _ = figures(make_run("run"), CONTENT)
    assert "studio under the key of street: 20.00 % right" in heat.wide
    # the best key of studio is its own, street's two are as good, and the last domain has none
    assert "its own in 2 of 2 domains that have one." in heat.caption
    assert "studio 70.0, street 60.0, attic & loft 20.0" in heat.caption
    assert heat.wide.count('fill-opacity="1.00"') == 2
    assert heat.wide.count('fill-opacity="0.00"') == 4


def test_the_contact_sheet(make_run: MakeRun) -> None:
    *_, sheet = figures(make_run("run"), CONTENT)
    assert sheet.wide.count("data:image/jpeg;base64,") == 1
    assert sheet.wide.count("<rect") == 5
    assert "Coat: key of studio, answered wrong" in sheet.wide
    assert sheet.wide.count("answered wrong") == sheet.wide.count('class="line thin') == 2
    assert "3 of these 5 are right" in sheet.caption
    assert [key.text for key in sheet.keys] == ["key of studio", "key of street"]


def test_without_its_picture_the_sheet_is_left_out(make_run: MakeRun) -> None:
    assert len(figures(make_run("run"), CONTENT, sheet=False)) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"chosen": [[1, 2]]},
        {"right": [[1], [2], [3]]},
        {"count": [10, 0, 5]},
        {"correct": [1]},
        {"keys": []},
        {"domains": None},
        {"sheet": {}},
        {"count": [10, "many", 5]},
    ],
)
def test_a_damaged_file_is_left_out(change: dict[str, object], make_run: MakeRun) -> None:
    assert figures(make_run("run"), CONTENT | change) == []


def test_a_run_without_keys_has_no_figures(make_run: MakeRun) -> None:
    folder = make_run("run")
    assert read_domains(folder) is None
    assert list(draw(group_runs([read_run(folder)]), {}, "")) == []
    (folder / "domains.json").write_text("[1")
    assert read_domains(folder) is None
