"""Parts of one table that were run apart are one table again, in its own order; parts that do not fit are refused."""

import json
from pathlib import Path
from types import ModuleType

import pytest

from promptfed.core.errors import PromptFedError
from promptfed.papers.comparison import Comparison
from promptfed.papers.rendering import read_table, write_table
from support.scripts import load_script

ROOT = Path(__file__).parents[1]
WHOLE = ROOT / "docs" / "results" / "pfedpt-t1-authors-pathological"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load_script("tools/join_tables.py")


def part(whole: Comparison, rows: list[str]) -> Comparison:
    chosen = [one for one in whole["rows"] if one["row"] in rows]
    return {**whole, "rows": chosen, "agreement": [], "sittings": whole["sittings"][:1]}


def test_parts_are_the_whole_again(tool: ModuleType, tmp_path: Path) -> None:
    whole = read_table(WHOLE)
    names = [one["row"] for one in whole["rows"]]
    runs = json.loads((WHOLE / "runs.json").read_text(encoding="utf-8"))
    for number, rows in enumerate((names[7:], names[:9])):  # two rows are in both
        folder = tmp_path / str(number)
        write_table(folder, part(whole, rows))
        kept = {name: run for name, run in runs.items() if name.split("/")[1] in rows}
        (folder / "runs.json").write_text(json.dumps(kept), encoding="utf-8")
    tool.main([tmp_path / "0", tmp_path / "1"], tmp_path / "out")
    found = read_table(tmp_path / "out")
    assert found["rows"] == whole["rows"]
    assert found["agreement"] == whole["agreement"]
    assert json.loads((tmp_path / "out" / "runs.json").read_text(encoding="utf-8")) == runs


def test_the_last_part_has_the_word(tool: ModuleType) -> None:
    whole = read_table(WHOLE)
    newer = part(whole, ["pfedpt"])
    newer["rows"] = [{**newer["rows"][0], "title": "again"}]
    assert [one["title"] for one in tool.joined([whole, newer])["rows"] if one["row"] == "pfedpt"] == ["again"]


def test_parts_that_were_run_otherwise_are_refused(tool: ModuleType) -> None:
    whole = read_table(WHOLE)
    with pytest.raises(PromptFedError, match="differ in overrides: None and \\['rounds=1'\\]"):
        tool.joined([whole, {**whole, "overrides": ["rounds=1"]}])
