"""What a table of FedAPT's is kept as, and how its page prints it by domain and by key."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from promptfed.papers.plan import TablePlan
from promptfed.papers.reproduce import find_table, reproduce
from support.scripts import load_script

SMALL = ("rounds=1", "data.limit=4", "evaluate.after=false", "device=cpu", "method.batch=4", "method.tokens=1")
GRID: list[dict[str, Any]] = [
    {"setting": {"method.lr": 0.1}, "validation": None, "problem": "Training diverged in round 2."},
    {"setting": {"method.lr": 0.03}, "validation": 91.0, "problem": ""},
    {"setting": {"method.lr": 0.01}, "validation": 90.5, "problem": ""},
]


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the tool that prints FedAPT's tables, looking for them in a folder of the test's own."""
    tool = load_script("tools/fedapt_results.py")
    monkeypatch.setattr(sys.modules["result_cells"], "RESULTS", tmp_path)
    return tool


def test_the_keys_of_a_run_are_kept_and_printed(tables: ModuleType, tmp_path: Path) -> None:
    reproduce(find_table("fedapt/shops-t4"), TablePlan(tmp_path / "out", SMALL, seeds=(0, 1), rows=("eq5", "e1")))
    assert load_script("tools/keep_table.py").keep(tmp_path / "out", tmp_path / "kept") == 4
    kept = json.loads((tmp_path / "kept" / "domains.json").read_text(encoding="utf-8"))
    assert list(kept) == ["e1/seed0", "e1/seed1", "eq5/seed0", "eq5/seed1"]
    assert set(kept["eq5/seed0"]) == {"domains", "keys", "count", "chosen", "right", "correct"}
    one, two = kept["eq5/seed0"], kept["eq5/seed1"]
    confusion, under = tables.keys_tables("kept", "shops", "eq5")
    first = [(one["chosen"][0][k] + two["chosen"][0][k]) / 2 / one["count"][0] * 100 for k in range(4)]
    assert confusion[2] == "| images of | key of studio | key of catalogue | key of sketch | key of street |"
    assert confusion[4] == f"| studio | {' | '.join(f'{share:.2f}' for share in first)} |"
    table = json.loads((tmp_path / "kept" / "table.json").read_text(encoding="utf-8"))
    (alone,) = (entry["ours"]["per_client"] for entry in table["rows"] if entry["row"] == "e1")
    lines = [line.replace("*", "").split(" | ") for line in under[4:8]]
    assert [line[2] for line in lines] == [f"{value:.2f}" for value in alone]
    assert all("**" in line for line in under[4:8])


def test_tables_that_are_kept_are_printed(tables: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "SHOPS", ())
    assert tables.fedapt_tables() == []
    (tmp_path / "fedapt-office-t5").mkdir()

    def ours(mean: float, *cameras: float) -> dict[str, object]:
        return {"mean": mean, "std": 0.5, "per_client": cameras, "by_seed": {"0": mean, "1": mean}, "problems": {}}

    def row(name: str, mean: float, chosen: float) -> dict[str, object]:
        tuned = {"ours": ours(mean + 10, mean + 9, mean + 11), "setting": {"method.lr": chosen}}
        return {"column": "office", "row": name, "title": name, "ours": ours(mean, 1, 2), "tuned": tuned}

    columns = [{"name": "office", "title": "Office", "clients": ["amazon", "dslr"]}]
    content = {
        "title": "T",
        "measures": ["trained"],
        "columns": columns,
        "rows": [row("a", 70, 0.1), row("b", 80, 0.03)],
    }
    (tmp_path / "fedapt-office-t5" / "table.json").write_text(json.dumps(content), encoding="utf-8")
    (found,) = tables.fedapt_tables()
    assert found[2] == "| method | amazon | dslr | mean, ± over seeds | chosen | as in the recipe |"
    assert found[4:6] == [
        "| a | 79.00 | 81.00 | 80.00 ± 0.50 | lr=0.1 | 70.00 ± 0.50 |",
        "| b | **89.00** | **91.00** | 90.00 ± 0.50 | lr=0.03 | 80.00 ± 0.50 |",
    ]


def test_a_rate_that_diverged_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    results = load_script("tools/results.py")
    found = {"title": "T", "rows": [{"title": "PromptFL", "tuned": {"grid": GRID}}]}
    monkeypatch.setattr(results, "outcome", lambda folder: found)
    assert results.grid_table("any")[2:5:2] == [
        "| method | 0.01 | 0.03 | 0.1 |",
        "| PromptFL | 90.50 | **91.00** | diverged |",
    ]
