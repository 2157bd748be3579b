"""A paper's table read from its file: cells, figures, and what a mistake in the file says."""

from pathlib import Path

import pytest

from promptfed.core.errors import PromptFedError
from promptfed.runs.cells import read_cells
from promptfed.runs.rows import PrintedFigure
from promptfed.runs.table_parts import merge

TABLE = """
title = "A table"
paper = "Somebody 2020."
base = { rounds = 7, method = { epochs = 2 }, data = { name = "a", limit = 3 } }
theirs = { rounds = 9 }
tune.some = { "method.lr" = [0.1, 0.2] }
deviations = ["It is smaller."]

[[columns]]
name = "left"
title = "Left side"
clients = ["A", "B"]

[[columns]]
name = "right"
recipe = { clients = 5, data = { name = "b" } }

[[rows]]
name = "one"
title = "Method One"
recipe.method = { name = "fedavg" }
tune = "some"
traffic = 12
paper.left = { clients = [80, 90.5], mean = 85.25 }
paper.right = 70

[[rows]]
name = "two"
recipe.method = { name = "local", epochs = 1 }
tune = { "method.epochs" = [1, 2] }
"""


def write(folder: Path, text: str = TABLE) -> Path:
    path = folder / "small.table.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_cells_stand_column_after_column(tmp_path: Path) -> None:
    table = read_cells(write(tmp_path), "mine/small")
    assert (table.name, table.title, table.paper) == ("mine/small", "A table", "Somebody 2020.")
    assert list(table.cells()) == ["left/one", "left/two", "right/one", "right/two"]


def test_a_cell_is_base_then_column_then_row(tmp_path: Path) -> None:
    cells = read_cells(write(tmp_path), "small").cells()
    assert cells["left/one"].recipe == {
        "rounds": 7,
        "method": {"epochs": 2, "name": "fedavg"},
        "data": {"name": "a", "limit": 3},
    }
    assert cells["right/two"].recipe == {
        "rounds": 7,
        "method": {"epochs": 1, "name": "local"},
        "data": {"name": "b"},  # another data set: the old one's limit means nothing to it
        "clients": 5,
    }


def test_figures_and_grids(tmp_path: Path) -> None:
    cells = read_cells(write(tmp_path), "small").cells()
    assert cells["left/one"].figure == PrintedFigure(85.25, (80.0, 90.5))
    assert cells["right/one"].figure == PrintedFigure(70.0)
    assert cells["left/two"].figure is None
    assert cells["left/one"].row.tune == {"method.lr": (0.1, 0.2)}
    assert cells["left/two"].row.tune == {"method.epochs": (1, 2)}
    assert (cells["left/one"].row.traffic, cells["left/two"].row.traffic) == (12.0, None)
    assert (cells["right/two"].row.title, cells["right/two"].column.title) == ("two", "right")


def test_measures(tmp_path: Path) -> None:
    assert read_cells(write(tmp_path), "small").measures == ("mean",)
    both = read_cells(write(tmp_path, 'measures = ["mean", "weighted"]' + TABLE), "small")
    assert both.measures == ("mean", "weighted")
    for name in ("deployed", "trained", "fid"):
        assert read_cells(write(tmp_path, f'measures = ["{name}"]' + TABLE), "small").measures == (name,)


def test_measures_beside_the_mean(tmp_path: Path) -> None:
    wanted = ("mean", "worst", "base", "novel", "hm")
    text = f"measures = {list(wanted)}"
    assert read_cells(write(tmp_path, text + TABLE), "small").measures == wanted
    for wrong in (["mean", "worst", "worst"], ["worst"], ["mean", "weighted", "worst"], ["trained", "worst"]):
        with pytest.raises(PromptFedError, match=r"or one of mean, .* with some of worst, p10"):
            read_cells(write(tmp_path, f"measures = {wrong}" + TABLE), "small")


def test_a_table_of_one_column_names_its_cells_by_row(tmp_path: Path) -> None:
    text = 'title = "t"\n[[columns]]\nname = "c"\n[[rows]]\nname = "r"\n'
    assert list(read_cells(write(tmp_path, text), "small").cells()) == ["r"]


def test_merge_changes_neither_side() -> None:
    base, change = {"a": 1, "t": {"x": 1}}, {"t": {"y": 2}}
    assert merge(base, change) == {"a": 1, "t": {"x": 1, "y": 2}}
    assert (base, change) == ({"a": 1, "t": {"x": 1}}, {"t": {"y": 2}})


MISTAKES = {
    "no TOML": ("title = ", "is not valid TOML"),
    "unknown key": ('titel = "x"', 'did you mean "title"?'),
    "nothing but a title": ('title = "x"', "columns is missing"),
    "no column": ('title = "x"\ncolumns = []\nrows = []', "at least one [[columns]]"),
    "unknown column": (TABLE.replace("paper.right", "paper.rigth"), 'did you mean "right"?'),
    "unknown grid": (TABLE.replace('tune = "some"', 'tune = "sum"'), 'did you mean "some"?'),
    "no grid": (TABLE.replace("[0.1, 0.2]", "0.1"), "must be lists of values by key"),
    "a figure that is none": (TABLE.replace("paper.right = 70", 'paper.right = "x"'), "must be a number"),
    "too few clients": (TABLE.replace("[80, 90.5]", "[80]"), "a mean, and either all of its clients or none"),
    "no mean": (TABLE.replace(", mean = 85.25", ""), "mean is missing"),
    "a name twice": (TABLE.replace('name = "two"', 'name = "one"'), 'needs a unique plain name, not "one"'),
    "a name that is a path": (TABLE.replace('name = "two"', 'name = "a/b"'), 'not "a/b"'),
    "a name of ours": (TABLE.replace('name = "two"', 'name = "tuned"'), 'not "tuned"'),
    "no table": (TABLE.replace("theirs = { rounds = 9 }", "theirs = 9"), "theirs in"),
    "unknown measure": ('measures = ["meen"]' + TABLE, 'did you mean "mean"?'),
    "no mean among the measures": ('measures = ["weighted"]' + TABLE, 'must be ["mean"], ["mean", "weighted"],'),
    "a measure that is no list": ('measures = "mean"' + TABLE, 'must be ["mean"], ["mean", "weighted"],'),
    "no list": (TABLE.replace('["It is smaller."]', '"It is smaller."'), "a list of sentences"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_one_sentence(mistake: str, tmp_path: Path) -> None:
    text, words = MISTAKES[mistake]
    with pytest.raises(PromptFedError) as caught:
        read_cells(write(tmp_path, text), "small")
    assert words in str(caught.value)
    assert str(caught.value)[-1] in ".?"


def test_a_missing_file_gets_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(PromptFedError, match="cannot be read: No such file"):
        read_cells(tmp_path / "no.table.toml", "no")
