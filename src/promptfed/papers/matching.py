"""Match runs to the cells of a paper's table, and so to the numbers the paper printed."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from promptfed.core.errors import PromptFedError
from promptfed.papers.comparison import paper_measure, paper_result
from promptfed.papers.deviations import compared_clients, deviations
from promptfed.papers.plan import cell_recipe
from promptfed.papers.reproduce import find_table
from promptfed.results.recipe_keys import OURS
from promptfed.results.report import PaperLayout, PaperPlace, RunFolder
from promptfed.runs import config, registry
from promptfed.runs.cells import PaperTable
from promptfed.runs.config import Recipe

# a run that differs in one of these, or in its partition, belongs to another row or column
SAME = ("method.name", "data.name", "backbone.name")
DEALT = ("partition.draw", "partition.balanced")  # unless it is only dealt otherwise, which is listed as a deviation
SHOWN = {
    "mean": "mean",
    "weighted": "weighted",
    "best-round": "best-round",
    "deployed": "domains",
}  # from a table's measure to its name in `compare`

Flat = Mapping[str, Any]


def compared_measure(table: PaperTable) -> str:
    """Return the table's measure by its name in `compare`."""
    found = paper_measure(table.measures)
    if found not in SHOWN:
        raise PromptFedError(
            f"compare cannot show the measure {found} of {table.name}; use promptfed reproduce {table.name} instead."
        )
    return SHOWN[found]


def match_runs(table: PaperTable, runs: Sequence[RunFolder]) -> tuple[PaperLayout, list[str]]:
    """Return the runs' places in the table, and how they deviate from what the paper did.

    A run matches the cell with its method, data set, partition and backbone; among several, the one it differs least
    from in the other keys by which the table's cells differ. A run without such a cell has no place.
    """
    recipes = {run.path: recipe for run in runs if (recipe := _recipe(run)) is not None}
    names = _names(table, recipes)
    if not names:
        raise PromptFedError(_nothing(table, recipes))
    cells = table.cells()
    places = {}
    for path, name in names.items():
        printed = paper_result(cells[name], compared_clients(table, cells[name], recipes[path]))
        places[path] = PaperPlace(cells[name].row.title, cells[name].column.title, printed and printed["mean"])
    titles = tuple(row.title for row in table.rows), tuple(column.title for column in table.columns)
    return PaperLayout(*titles, places), _deviations(table, names, recipes)


def _recipe(run: RunFolder) -> Recipe | None:
    """Return a run's recipe, or None if it cannot be read, for example because its method is not installed."""
    with suppress(PromptFedError):
        return config.resolve(run.recipe)
    return None


def _names(table: PaperTable, recipes: Mapping[Path, Recipe]) -> dict[Path, str]:
    """Return the cell that each run matches, for runs that match one."""
    cells = {name: cell_recipe(cell, []).flatten() for name, cell in table.cells().items()}
    keys = {key for cell in cells.values() for key in cell if key not in OURS | {"rounds"}}
    telling = [key for key in keys if len({repr(cell.get(key)) for cell in cells.values()}) > 1]
    found = {path: _nearest(recipe.flatten(), cells, telling) for path, recipe in recipes.items()}
    return {path: name for path, name in found.items() if name}


def _nearest(run: Flat, cells: Mapping[str, Flat], telling: Sequence[str]) -> str:
    """Return the cell that a run differs least from, unless there are several such cells."""
    apart = {
        name: sum(run.get(key) != cell.get(key) for key in telling)
        for name, cell in cells.items()
        if _setting(run) == _setting(cell)
    }
    near = [name for name, count in apart.items() if count == min(apart.values())]
    return near[0] if len(near) == 1 else ""


def _setting(recipe: Flat) -> dict[str, Any]:
    return {
        key: value
        for key, value in recipe.items()
        if key in SAME or (key.startswith("partition.") and key not in DEALT)
    }


def _deviations(table: PaperTable, names: Mapping[Path, str], recipes: Mapping[Path, Recipe]) -> list[str]:
    """Return how the runs deviate from the paper, each sentence once; a cell may have several kinds of runs."""
    kinds: list[dict[str, Recipe]] = []
    for path, name in names.items():
        first = next((kind for kind in kinds if name not in kind), None)
        if first is None:
            kinds.append(first := {})
        first[name] = recipes[path]
    return list(dict.fromkeys(line for kind in kinds for line in deviations(table, kind)))


def _nothing(table: PaperTable, recipes: Mapping[Path, Recipe]) -> str:
    """Say that no run belongs to the table, and name a shipped table that has some of them."""
    tables = (found for name in registry.tables() if _may_have(found := find_table(name), recipes))
    other = next((found.name for found in tables if _names(found, recipes)), None)
    hint = f'did you mean "{other}"?' if other else f"its methods: {', '.join(row.title for row in table.rows)}."
    return f"None of these runs matches a cell of {table.name}; {hint}"


def _may_have(table: PaperTable, recipes: Mapping[Path, Recipe]) -> bool:
    """Say whether a table has one of the runs' methods on its data set; to resolve all recipes would take long."""
    wanted = {(recipe.method["name"], recipe.data["name"]) for recipe in recipes.values()}
    plain = Recipe()
    return any(
        (cell.recipe.get("method", plain.method).get("name"), cell.recipe.get("data", plain.data).get("name")) in wanted
        for cell in table.cells().values()
    )
