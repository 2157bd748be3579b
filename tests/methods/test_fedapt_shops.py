"""FedAPT's tables on the embedded images and the embedded CLIP, from end to end at a tiny size."""

from pathlib import Path
from typing import Any

import pytest

from promptfed import config, runner

SMALL = ["rounds=1", "data.limit=2", "evaluate.after=false", "device=cpu"]


def run(cell: str, folder: Path) -> Any:
    (recipe,) = config.load(f"fedapt/{cell}", SMALL)
    return runner.start(recipe, folder / "run").summary


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


@pytest.mark.parametrize("row", ["none", "e2", "eq5"])
def test_table_4(row: str, tmp_path: Path) -> None:
    summary = run(f"shops-t4/{row}", tmp_path)
    assert list(summary["accuracy"]["deployed"]) == ["all", "studio", "catalogue", "sketch", "street"]


@pytest.mark.parametrize("row", ["promptfl", "tau001", "tau1"])
def test_table_6_tests_the_shop_that_nobody_trains_on(row: str, tmp_path: Path) -> None:
    summary = run(f"shops-t6/{row}", tmp_path)
    assert summary["clients"] == 3
    assert list(summary["accuracy"]["deployed"]) == ["all", "studio", "catalogue", "street", "sketch"]
