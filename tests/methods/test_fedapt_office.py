"""FedAPT's tables on four cameras, from end to end on a few painted photographs and the embedded CLIP."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from promptfed.data import add
from promptfed.papers.comparison import Comparison
from promptfed.papers.plan import TablePlan
from promptfed.papers.reproduce import find_table, reproduce
from support.small_sites import write_office

SIZES = {"amazon": 30, "caltech": 33, "dslr": 30, "webcam": 31}
SMALL = ("rounds=1", "data.size=8", "backbone.weights=embedded", "backbone.size=0", "device=cpu")
CAMERAS = ["amazon", "caltech", "dslr", "webcam"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the home of all tests here, so that the features of the images are computed once."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROMPTFED_HOME", str(home))
        add("office-caltech10", write_office(tmp_path_factory.mktemp("office"), SIZES))
    return home


@pytest.fixture(autouse=True)
def _at_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMPTFED_HOME", str(home))


def table(name: str, out: Path, *words: str, **asked: Any) -> Comparison:
    outcome = reproduce(find_table(f"fedapt/{name}"), TablePlan(out, (*SMALL, *words), **asked))
    for entry in outcome["rows"]:
        assert entry["ours"]["problems"] == {}
        assert len([value for value in entry["ours"]["per_client"] if value is not None]) == 4
    return outcome


def sorted_images(run: Path) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads((run / "domains.json").read_text(encoding="utf-8"))
    return found


def test_table_1_reads_one_training_with_one_key_and_with_all(tmp_path: Path) -> None:
    rows = ("clip-zs", "promptfl", "fedapt", "fedapt-tau1")
    outcome = table("t1-office", tmp_path, rows=rows)
    assert [one["row"] for one in outcome["rows"]] == list(rows)
    one, mixed = (sorted_images(tmp_path / row / "seed0") for row in rows[2:])
    assert (one["chosen"], one["right"]) == (mixed["chosen"], mixed["right"])


def test_table_2_has_five_clients_with_every_camera(tmp_path: Path) -> None:
    outcome = table("office-t2", tmp_path, columns=("b001",))
    assert [one["row"] for one in outcome["rows"]] == ["clip-zs", "clip-fc", "fedclip", "promptfl", "fedapt"]
    summary = json.loads((tmp_path / "b001/fedapt/seed0/summary.json").read_text(encoding="utf-8"))
    assert summary["clients"] == 20
    assert list(summary["accuracy"]["deployed"]) == ["all", *CAMERAS]


def test_table_3_compares_images_of_clients_with_hardly_any(tmp_path: Path) -> None:
    rows = ("fedapt-none", "fedapt-sum", "fedapt-mean", "promptfl-mean")
    outcome = table(
        "office-t3-stages", tmp_path, *(f"{row}:method.stage1=0" for row in rows), rows=rows, columns=("b001",)
    )
    assert [one["row"] for one in outcome["rows"]] == list(rows)


def test_table_4_is_the_diagonal_and_the_confusion_of_one_run(tmp_path: Path) -> None:
    outcome = table("office-t4", tmp_path)
    found = sorted_images(tmp_path / "eq5" / "seed0")
    assert found["domains"] == found["keys"] == CAMERAS
    assert [sum(line) for line in found["chosen"]] == found["count"]
    each = {one["row"]: one["ours"]["per_client"] for one in outcome["rows"]}
    for key in range(4):
        under = [100 * line[key] / count for line, count in zip(found["right"], found["count"], strict=True)]
        assert each[f"e{key}"] == pytest.approx(under, abs=1e-4)
    mixed = [100 * right / count for right, count in zip(found["correct"], found["count"], strict=True)]
    assert each["eq5"] == pytest.approx(mixed, abs=1e-4)


def test_table_5_tests_the_clients_before_the_average(tmp_path: Path) -> None:
    assert [one["row"] for one in table("office-t5", tmp_path)["rows"]] == ["without", "with"]


def test_table_6_tests_the_camera_that_nobody_has(tmp_path: Path) -> None:
    outcome = table("office-t6", tmp_path, columns=("amazon",), rows=("tau001", "tau1"))
    for one in outcome["rows"]:
        assert one["ours"]["mean"] == one["ours"]["per_client"][-1]
    found = sorted_images(tmp_path / "amazon/tau1/seed0")
    assert (found["domains"], found["keys"]) == (["caltech", "dslr", "webcam", "amazon"], ["caltech", "dslr", "webcam"])
