"""Rows that several tables share, and what a table changes of them."""

from pathlib import Path

import pytest

from promptfed.core.errors import PromptFedError
from promptfed.papers.plan import TablePlan, plan_table
from promptfed.runs import registry
from promptfed.runs.cells import PaperTable, read_cells

ROWS = """
[kinds.text]
recipe.method = { lr = 0.1, epochs = 1 }
tune = { "method.lr" = [0.1, 0.2] }

[[rows]]
name = "one"
title = "Method One"
kind = "text"
answers = ["server", "novel"]
recipe.method = { name = "fedavg" }
recipe.schedule = { name = "cosine" }

[[rows]]
name = "two"
kind = "text"
needs = ["domains"]
recipe.method = { name = "local", lr = 0.5 }
tune = { "method.lr" = [0.5] }
"""
TABLE = """
title = "A table"
rows_from = "some.rows.toml"
[base]
rounds = 3
[[columns]]
name = "left"
gives = ["domains"]
[[columns]]
name = "right"
asks = ["novel"]
"""


def read(folder: Path, text: str = TABLE, rows: str = ROWS) -> PaperTable:
    (folder / "some.rows.toml").write_text(rows, encoding="utf-8")
    (folder / "mine.table.toml").write_text(text, encoding="utf-8")
    return read_cells(folder / "mine.table.toml", "mine")


def test_a_cell_is_base_column_kind_and_row_and_is_there_where_the_row_fits(tmp_path: Path) -> None:
    cells = read(tmp_path).cells()
    assert list(cells) == ["left/one", "left/two", "right/one"]
    assert cells["right/one"].recipe == {
        "rounds": 3,
        "method": {"lr": 0.1, "epochs": 1, "name": "fedavg"},
        "schedule": {"name": "cosine"},
    }
    assert cells["left/two"].recipe["method"] == {"lr": 0.5, "epochs": 1, "name": "local"}
    assert [dict(cells[name].row.tune) for name in ("left/one", "left/two")] == [
        {"method.lr": (0.1, 0.2)},
        {"method.lr": (0.5,)},
    ]


def test_a_column_changes_single_rows_and_may_have_its_own_grid(tmp_path: Path) -> None:
    table = read(tmp_path, 'tune_on = "left"' + TABLE + 'tune_on = "right"\nrows.one.method = { epochs = 7 }\n')
    cells = table.cells()
    assert cells["right/one"].recipe["method"] == {"lr": 0.1, "epochs": 7, "name": "fedavg"}
    assert cells["left/one"].recipe["method"]["epochs"] == 1
    planned = plan_table(table, TablePlan(tmp_path / "out", tune=True))
    folders = {name: {job.folder.parent.parent.name for _, job in tried} for name, tried in planned.trials.items()}
    assert folders == {"left/one": {"left"}, "left/two": {"left"}, "right/one": {"right"}}


def test_what_all_columns_ask_leaves_rows_out(tmp_path: Path) -> None:
    table = read(tmp_path, 'asks = ["server"]' + TABLE)
    assert [row.name for row in table.rows] == ["one"]
    assert table.columns[1].asks == ("server", "novel")


def test_a_tables_own_rows_and_kinds_change_shared_ones(tmp_path: Path) -> None:
    own = """
[kinds.text]
recipe.method.lr = 0.9
[[rows]]
name = "two"
title = "Second"
recipe.method = { epochs = 4 }
[[rows]]
name = "three"
answers = ["novel"]
recipe.method = { name = "fedprox" }
"""
    table = read(tmp_path, TABLE + own)
    assert [(row.name, row.title) for row in table.rows] == [
        ("one", "Method One"),
        ("two", "Second"),
        ("three", "three"),
    ]
    cells = table.cells()
    assert list(cells) == ["left/one", "left/two", "left/three", "right/one", "right/three"]
    assert cells["left/one"].recipe["method"] == {"lr": 0.9, "epochs": 1, "name": "fedavg"}
    assert dict(cells["left/one"].row.tune) == {"method.lr": (0.1, 0.2)}, "a kind keeps the grid"
    assert cells["left/two"].recipe["method"] == {"lr": 0.5, "epochs": 4, "name": "local"}
    assert cells["left/three"].recipe["method"] == {"name": "fedprox"}


def test_another_method_in_a_shared_row_loses_the_old_ones_keys(tmp_path: Path) -> None:
    own = '[[rows]]\nname = "two"\nrecipe.method = { name = "fedprox" }\n'
    method = read(tmp_path, TABLE + own).cells()["left/two"].recipe["method"]
    assert method == {"lr": 0.1, "epochs": 1, "name": "fedprox"}


def test_a_file_of_rows_is_no_recipe() -> None:
    assert (registry.RECIPES / "field" / "methods.rows.toml").is_file()
    assert not [name for name in [*registry.recipes(), *registry.tables()] if "methods.rows" in name]


MISTAKES = {
    "no such file": (TABLE.replace("some.", "sum."), ROWS, 'did you mean "some.rows.toml"?'),
    "no file of rows": (TABLE.replace("some.rows", "mine.table"), ROWS, "file of rows"),
    "unknown kind": (TABLE, ROWS.replace('kind = "text"', 'kind = "txt"', 1), 'did you mean "text"?'),
    "unknown question": (TABLE.replace('["novel"]', '["navel"]'), ROWS, 'did you mean "novel"?'),
    "a gift that none needs": (TABLE.replace('["domains"]', '["domain"]'), ROWS, 'did you mean "domains"?'),
    "unknown column of the grids": ('tune_on = "rigth"' + TABLE, ROWS, 'did you mean "right"?'),
    "unknown column of a column's grid": (TABLE + 'tune_on = "lift"\n', ROWS, 'did you mean "left"?'),
    "unknown row of a column": (TABLE + "rows.thre.rounds = 4\n", ROWS, "unknown row"),
    "unknown row of the statistics": ('statistics = "on"' + TABLE, ROWS, 'did you mean "one"?'),
    "a kind that is none": (TABLE, ROWS.replace("[kinds.text]", "[kinds.text]\nlr = 1\n", 1), "unknown key"),
    "a table in the rows": (TABLE, "title = 'x'\n" + ROWS, "unknown key"),
    "words that are none": (TABLE, ROWS.replace('["domains"]', '"domains"'), "needs in row"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_one_sentence(mistake: str, tmp_path: Path) -> None:
    table, rows, words = MISTAKES[mistake]
    with pytest.raises(PromptFedError) as caught:
        read(tmp_path, table, rows)
    assert words.lower() in str(caught.value).lower()
