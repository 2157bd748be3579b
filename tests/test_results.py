"""What README and docs/results.md claim is what the committed summaries say."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def results() -> ModuleType:
    spec = importlib.util.spec_from_file_location("results", ROOT / "tools" / "results.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_holds_every_table_as_printed(results: ModuleType) -> None:
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert "\n".join(results.demo_table()) in page
    for column in results.COLUMNS:
        assert "\n".join(results.table(column)) in page


def test_no_seed_reverses_the_demo() -> None:
    for seed in range(5):
        means = {}
        for method in ("fedavg", "pfedpt"):
            path = ROOT / "docs" / "results" / "demo" / f"{method}-seed{seed}.json"
            means[method] = json.loads(path.read_text(encoding="utf-8"))["accuracy"]["mean"]
        assert means["pfedpt"] > means["fedavg"]


def test_the_readme_opens_with_the_demo_as_it_came_out() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for method in ("local", "fedavg", "pfedpt"):
        path = ROOT / "docs" / "results" / "demo" / f"{method}-seed0.json"
        accuracy = json.loads(path.read_text(encoding="utf-8"))["accuracy"]
        assert f"| {100 * accuracy['mean']:.2f} | {100 * accuracy['worst']:.2f} |" in readme
