"""What was measured on a finished run: small files, and what the page says of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from promptfed.results.report import read_run, write_report
from promptfed.results.report.figure import Figure
from promptfed.results.report.groups import group_runs
from promptfed.results.report.measured import draw_audit, draw_quality, sentences, words
from promptfed.results.report.table import Table
from support.pages import read
from support.reports import MakeRun

Content = dict[str, Any]

FEW = "8 images in 64 features: the FID is biased upwards; compare equal counts only"
WORD: Content = {"fid": 12.345, "kid": 0.0021, "image": 0.5, "text": 0.25, "real": 50, "drawn": 50, "caution": ""}
QUALITY: Content = {
    "method": "relic",
    "round": 6,
    "features": "clip embedded",
    "drawing": {"prompt": "a photo of a {}", "count": 50, "seed": 0, "steps": 30, "guidance": 7.5},
    "words": [
        {"word": "global", **WORD},
        {"word": "sent", "client": 0, **WORD, "kid": None, "text": None, "drawn": 8, "caution": FEW},
        {"word": "client", "client": 0, **WORD, "drawn": 8, "caution": FEW},
    ],
    "rounds": [],
}
PICTURES: Content = {
    "method": "fedti",
    "round": 6,
    "clients": [0, 1],
    "sent": {"word": [1, 12]},
    "kind": "pictures",
    "features": "clip <b>",
    "per_client": [
        {"nearest": 0.9, "nearest_others": 0.5, "fid": 3.0, "images": 8, "caution": FEW},
        {"nearest": 0.7, "nearest_others": None, "fid": 5.0, "images": 1, "caution": "1 image has no spread"},
    ],
    "mean": {"nearest": 0.8, "fid": 4.0},
    "reidentified": 1.0,
    "chance": 0.5,
}
CLASSES: Content = {
    "method": "fedavg",
    "round": 6,
    "clients": [0, 1],
    "sent": {"head.weight": [10, 4]},
    "kind": "classes",
    "public_images": 200,
    "per_client": [
        {"cosine": 0.95, "blind": 0.6, "inferred": [0.7, 0.05, 0.25, 0, 0, 0, 0, 0, 0, 0]},
        {"cosine": 0.85, "blind": 0.6, "inferred": [0, 1.0, 0, 0, 0, 0, 0, 0, 0, 0]},
    ],
    "mean": {"cosine": 0.9, "blind": 0.6},
    "reidentified": 0.5,
    "chance": 0.5,
}
NOTHING: Content = {"method": "local", "round": 6, "clients": [0], "kind": "nothing", "why": "clients send nothing"}


def shown(folder: Path, content: object, file: str = "audit.json") -> list[Figure]:
    """Return the figures of a run folder with this file in it."""
    (folder / file).write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    draw = draw_audit if file == "audit.json" else draw_quality
    return list(draw(group_runs([read_run(folder)]), {}, "Here. "))


def texts(table: Table | None) -> list[list[str]]:
    assert table is not None
    return [[cell.text for cell in row] for row in table.rows]


def test_without_the_files_there_are_no_sections(make_run: MakeRun) -> None:
    groups = group_runs([read_run(make_run("a"))])
    assert list(draw_audit(groups, {}, "")) == list(draw_quality(groups, {}, "")) == []


def test_both_are_parts_of_the_page(make_run: MakeRun) -> None:
    folder = make_run("a")
    bare = read(write_report([folder])).sections
    (folder / "audit.json").write_text(json.dumps(PICTURES), encoding="utf-8")
    (folder / "quality.json").write_text(json.dumps(QUALITY), encoding="utf-8")
    page = read(write_report([folder]))
    assert [name for name in page.sections if name not in bare] == ["quality", "audit"]
    assert "word client FID KID image text real / drawn global – 12.35" in page.text
    assert "client own others FID images 0 0.900 0.500 3.00 8 1 0.700 – 5.00 1" in page.text
    assert "(clip <b>)" in page.text, "what others wrote is escaped"


# -- pictures ---------------------------------------------------------------------------------------------------------


def test_words_are_a_table_with_their_warnings_under_it(make_run: MakeRun) -> None:
    (figure,) = shown(make_run("a"), QUALITY, "quality.json")
    assert texts(figure.table) == [
        ["global", "–", "12.35", "2.10", "0.500", "0.250", "50 / 50"],
        ["sent", "0", "12.35", "–", "0.500", "–", "50 / 8"],
        ["client", "0", "12.35", "2.10", "0.500", "0.250", "50 / 8"],
    ]
    assert figure.caption.startswith("Here. Pictures of “a photo of a {}” after round 6, compared with real images")
    assert "clip embedded" in figure.caption
    assert "FID: lower is better" in figure.caption
    assert figure.caption.count(f"Note: {FEW}.") == 1


def test_a_curve_of_rounds_is_drawn(make_run: MakeRun) -> None:
    rounds = [{"round": number, **WORD, "fid": 40.0 / number, "caution": FEW} for number in (2, 4)]
    _, curve = shown(make_run("a"), QUALITY | {"rounds": rounds}, "quality.json")
    assert "global, round 4: 10.0" in curve.wide
    assert curve.caption.endswith(f"Note: {FEW}.")


def test_the_terminal_names_the_method_and_the_warning() -> None:
    table = words([QUALITY])
    assert texts(table)[1] == ["relic", "sent", "0", "12.35", "–", "0.500", "–", "50 / 8", FEW]


def test_many_words_are_cut(make_run: MakeRun) -> None:
    many = [{"word": "client", "client": number, **WORD} for number in range(20)]
    (figure,) = shown(make_run("a"), QUALITY | {"words": many}, "quality.json")
    assert len(texts(figure.table)) == 16
    assert "The first 16 of 20 words." in figure.caption


# -- attacks ----------------------------------------------------------------------------------------------------------


def test_pictures_of_what_was_sent(make_run: MakeRun) -> None:
    (figure,) = shown(make_run("a"), PICTURES)
    assert texts(figure.table) == [["0", "0.900", "0.500", "3.00", "8"], ["1", "0.700", "–", "5.00", "1"]]
    assert "after round 6, by a server that follows the protocol." in figure.caption
    assert (
        "cosine with the nearest of the client's own images 0.800, with another client's 0.500; FID 4.00 (clip <b>)."
        in figure.caption
    )
    assert "100 % of uploads are matched to their client, against 50 % by chance." in figure.caption
    assert figure.caption.endswith(f"Note: {FEW}. Note: 1 image has no spread.")
    assert "upper bound" not in figure.caption


def test_classes_inferred_beside_those_held(make_run: MakeRun) -> None:
    folder = make_run("a")
    (figure,) = shown(folder, CLASSES)
    assert texts(figure.table) == [
        ["0", "0.950", "0.600", "T-shirt/top, Pullover", "T-shirt/top, Trouser, Pullover"],
        ["1", "0.850", "0.600", "Trouser", "Trouser, Pullover, Dress"],
    ]
    assert "cosine 0.900 with what they hold; a guess of equal classes has 0.600." in figure.caption
    assert "the numbers are an upper bound." in figure.caption
    (folder / "partition.json").unlink()
    (figure,) = shown(folder, CLASSES)
    assert [row[3:] for row in texts(figure.table)] == [["0, 2", "–"], ["1", "–"]]


def test_nothing_to_attack_is_said(make_run: MakeRun) -> None:
    (figure,) = shown(make_run("a"), NOTHING)
    assert figure.table is None
    assert "Nothing to attack: clients send nothing." in figure.wide
    assert sentences(NOTHING) == ["Nothing to attack: clients send nothing."]


def test_several_methods_and_seeds_are_named(make_run: MakeRun) -> None:
    folders = [make_run("a", seed=0), make_run("b", seed=1), make_run("c", method="fedavg")]
    for folder in folders[1:]:
        (folder / "audit.json").write_text(json.dumps(CLASSES), encoding="utf-8")
    first, second = draw_audit(group_runs([read_run(folder) for folder in folders]), {}, "")
    assert first.caption.startswith("pfedpt. Seed 1. An attack")
    assert second.caption.startswith("fedavg. An attack")


# -- damaged files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("audit.json", '{"kind": "pict'),
        ("audit.json", "[1]"),
        ("audit.json", {"kind": "classes"}),
        ("audit.json", CLASSES | {"clients": [0]}),
        ("audit.json", CLASSES | {"clients": [0, 9]}),
        ("audit.json", PICTURES | {"mean": {"nearest": "much", "fid": 1}}),
        ("quality.json", QUALITY | {"words": 7}),
        ("quality.json", QUALITY | {"drawing": None}),
        ("quality.json", QUALITY | {"rounds": [{"round": 1, **WORD, "fid": float("nan")}]}),
        ("quality.json", QUALITY | {"rounds": [{"round": 1, **WORD, "fid": float("inf")}]}),
    ],
)
def test_a_damaged_file_is_a_sentence(file: str, content: object, make_run: MakeRun) -> None:
    folder = make_run("a")
    (figure,) = shown(folder, content, file)
    assert "What was measured cannot be shown." in figure.wide
    assert figure.caption.startswith(f'Here. "{folder / file}" is damaged')
    assert "is damaged" in read(write_report([folder])).text
