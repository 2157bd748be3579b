"""FedAPT's tables on the embedded images and the embedded CLIP, from end to end at a tiny size."""

from pathlib import Path
from typing import Any

import pytest

from promptfed.runs import config, execution

SMALL = ["rounds=1", "data.limit=2", "evaluate.after=false", "device=cpu"]


def run(cell: str, folder: Path, *more: str) -> Any:
    (recipe,) = config.load(f"fedapt/{cell}", [*SMALL, *more])
    return execution.start(recipe, folder / "run").summary


@pytest.fixture(autouse=True)
def _own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    # one for the session: the features of the images are computed once
    monkeypatch.setenv("PROMPTFED_HOME", str(tmp_path_factory.getbasetemp() / "features-of-shops"))


@pytest.mark.parametrize(
    ("row", "floats"),
    [
        ("clip-zs", 0),
        ("vit-tuning", 128 * 10 + 10),
        ("clip-fc", 128 * 128 + 128),
        ("fedclip", 2 * (128 * 128 + 128)),
        ("promptfl", 10 * 16 * 64),
        ("fedapt", 10 * 16 * 64 + 4 * 128),
    ],
)
def test_table_1(row: str, floats: int, tmp_path: Path) -> None:
    summary = run(f"shops-t1/{row}", tmp_path)
    assert summary["traffic"]["down_floats"] == floats
    assert len(summary["accuracy"]["per_client"]) == 4
    # ten classes; the embedded CLIP names more than half of the images, and one round does not undo that
    if row in ("clip-zs", "promptfl", "fedapt"):
        assert summary["accuracy"]["mean"] > 0.3


@pytest.mark.parametrize("row", ["clip-fc", "fedapt"])
def test_table_2_has_five_clients_in_every_shop(row: str, tmp_path: Path) -> None:
    summary = run(f"shops-t2/b05/{row}", tmp_path, "data.limit=8")
    assert summary["clients"] == 20
    assert list(summary["accuracy"]["deployed"]) == ["all", "studio", "catalogue", "sketch", "street"]


@pytest.mark.parametrize("cell", ["domain/clip-zs", "domain/fedclip", "b5/promptfl", "domain/fedapt"])
def test_table_3_learns_without_labels(cell: str, tmp_path: Path) -> None:
    summary = run(f"shops-t3/{cell}", tmp_path, "data.limit=8")
    assert summary["accuracy"]["deployed"]["all"] > 0.3


def test_table_5_tests_the_clients_before_the_average(tmp_path: Path) -> None:
    summary = run("shops-t5/with", tmp_path)
    assert len(summary["accuracy"]["trained"]["per_client"]) == 4


def test_figure_2_reads_one_model_exactly_and_fast(tmp_path: Path) -> None:
    exact, fast = (run(f"shops-fig2/{row}", tmp_path / row)["accuracy"]["mean"] for row in ("exact", "fast"))
    assert abs(exact - fast) < 0.05


@pytest.mark.parametrize("row", ["none", "e2", "eq5"])
def test_table_4(row: str, tmp_path: Path) -> None:
    summary = run(f"shops-t4/{row}", tmp_path)
    assert list(summary["accuracy"]["deployed"]) == ["all", "studio", "catalogue", "sketch", "street"]


@pytest.mark.parametrize("row", ["promptfl", "tau001", "tau1"])
def test_table_6_tests_the_shop_that_nobody_trains_on(row: str, tmp_path: Path) -> None:
    summary = run(f"shops-t6/{row}", tmp_path)
    assert summary["clients"] == 3
    assert list(summary["accuracy"]["deployed"]) == ["all", "studio", "catalogue", "street", "sketch"]
