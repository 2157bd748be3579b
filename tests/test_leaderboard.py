"""The leaderboard says what the committed tables say, and grows with them."""

import json
import re
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from promptfed.papers.rendering import read_table
from promptfed.papers.reproduce import find_table
from support.scripts import load_script

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"


@pytest.fixture(name="board")
def given_board() -> ModuleType:
    return load_script("tools/leaderboard.py")


def test_every_file_is_as_the_tool_writes_it(board: ModuleType) -> None:
    assert (RESULTS / "leaderboard.md").read_text(encoding="utf-8") == board.page()
    assert board.SHIPPED.read_text(encoding="utf-8") == board.shipped()
    kept = {path.parent.name: path.read_text(encoding="utf-8") for path in RESULTS.glob("field-*/recipes.md")}
    assert kept == board.recipes()


def test_the_picture_shows_the_tables_points(board: ModuleType) -> None:
    text = (RESULTS / "leaderboard.svg").read_text(encoding="utf-8")
    (told,) = re.findall(r"<dc:description>(.*?)</dc:description>", text, re.S)
    points = {title: [tuple(point) for point in each] for title, each in json.loads(told).items()}
    assert points == board.points()
    assert all(f">{name}</text>" in text for each in points.values() for name, _, _ in each)
    assert "href=" not in re.sub(r'xlink:href="#|xmlns[^ ]*', "", text), "nothing from outside"


def test_every_cell_is_the_committed_number_and_leads_to_its_recipe(board: ModuleType) -> None:
    page, seen = board.page(), 0
    for folder in RESULTS.glob("field-*"):
        outcome, recipes = read_table(folder), (folder / "recipes.md").read_text(encoding="utf-8")
        for entry in outcome["rows"]:
            ours = entry["tuned"]["ours"] if entry["tuned"] else entry["ours"]
            if ours["mean"] is None:
                continue
            cell = find_table(outcome["table"]).cell_name(entry["column"], entry["row"])
            assert f"[{ours['mean']:.2f}" in page
            assert f"]({folder.name}/recipes.md#{cell.replace('/', '')})" in page
            assert f"\n## {cell}\n" in recipes
            assert f"\npromptfed run {outcome['table']}/{cell} " in recipes
            assert all(f"`{digest}`" in recipes for digest in ours["recipe_hashes"].values())
            seen += 1
    assert seen >= 7


def test_it_grows_with_another_folder(board: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = RESULTS / "field-shops-novel"
    shutil.copytree(first, tmp_path / first.name)
    shutil.copytree(first, tmp_path / "field-shops-novel-again")
    path = tmp_path / "field-shops-novel-again" / "table.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["rows"] = [entry for entry in content["rows"] if entry["row"] in ("promptfl", "fedpgp")]
    for entry in content["rows"]:
        entry["tuned"]["ours"]["beside"]["sent"] = 1.5
    path.write_text(json.dumps(content), encoding="utf-8")
    monkeypatch.setattr(board, "RESULTS", tmp_path)
    lines = board.page().splitlines()
    (head,) = (line for line in lines if line.startswith("| method | average rank |"))
    assert head.count("S3: fashion-shops, 5 classes and 5 new ones | hm") == 2
    (first_row,) = (line for line in lines if line.startswith("| FedSA-LoRA | 1 |"))
    assert first_row.endswith(" | · | · |")
    (fedpgp,) = (line for line in lines if line.startswith("| FedPGP | 3.5 |"))  # sixth of twenty, first of two
    assert fedpgp.count("77.44 ± 0.95") == 2
    assert "| method | column | numbers a round | MB sent |" in lines
    assert len(board.points()) == 1 or len(board.recipes()) == 2


def test_a_sortable_table_needs_no_other_server() -> None:
    script = (ROOT / "docs" / "sort.js").read_text(encoding="utf-8")
    assert "http" not in script
    assert "extra_javascript: [sort.js]" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert '<div class="sortable" markdown>' in (RESULTS / "leaderboard.md").read_text(encoding="utf-8")
