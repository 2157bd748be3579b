"""Plan the runs of a paper's table: its cells in order, each with its recipe, its runs and its grid."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

from promptfed.core.errors import PromptFedError, choice
from promptfed.papers.jobs import Job
from promptfed.runs import config, nested
from promptfed.runs.cells import BESIDE, PaperTable, TableCell
from promptfed.runs.config import Recipe

GridValues = dict[str, Any]
Where = Literal["here", "shared", "elsewhere"]
"""Who runs a table: this process and its workers; this one among others that share the folder; or only others."""


@dataclass(frozen=True)
class TablePlan:
    """What the user asks for: overrides of all recipes, seeds, rows and columns in order, and how to run them.

    Without rows or columns, all are run in the table's order.
    """

    out: Path
    overrides: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    workers: int = 1
    tune: bool = False
    merge: tuple[Path, ...] = ()  # other `out` folders of the same table; runs finished there are not repeated
    on: Where = "here"


@dataclass(frozen=True)
class PlannedTable:
    """A table before anything runs: every cell it will show, with its recipe and its runs."""

    table: PaperTable
    plan: TablePlan
    wanted: Sequence[str]  # the cells to run, in this order; others are shown if they are finished
    cells: Mapping[str, TableCell]
    settings: Mapping[str, Recipe]
    jobs: Mapping[str, list[Job]]
    trials: Mapping[str, list[tuple[GridValues, Job]]]
    # caches, since the table is written many times
    changes: dict[str, list[str]] = field(default_factory=dict)  # how a cell deviates from the paper
    bests: dict[tuple[str, str], list[Job]] = field(
        default_factory=dict
    )  # the runs of the grids' best points, by cell and point

    @property
    def measure(self) -> str:
        """Return the table's main measure."""
        return self.table.measures[0]

    @property
    def beside(self) -> tuple[str, ...]:
        """Return the measures that stand beside it and are those of the same models."""
        return tuple(name for name in self.table.measures if name in BESIDE)


def plan_table(table: PaperTable, plan: TablePlan) -> PlannedTable:
    """Return the planned table, or refuse a plan that cannot be carried out."""
    wanted = _selected(table, plan)
    _check_plan(table, plan)
    every = table.cells()
    cells = {name: cell for name, cell in every.items() if name in wanted or _fits(cell, plan.overrides)}
    settings = {name: cell_recipe(cell, plan.overrides) for name, cell in cells.items()}
    jobs = {
        name: [seed_job(plan.out / name, name, recipe, seed) for seed in plan.seeds]
        for name, recipe in settings.items()
    }
    tried = {
        name: every.get(table.cell_name(cell.column.tune_on or table.tune_on, cell.row.name), cell)
        for name, cell in cells.items()
    }
    trials = {name: _trials(plan, tried[name]) if plan.tune else [] for name in cells}
    return PlannedTable(table, plan, wanted, cells, settings, jobs, trials)


def _selected(table: PaperTable, plan: TablePlan) -> list[str]:
    """Return the names of the cells in the requested rows and columns, row by row if rows were named."""
    for what, asked, known in (("row", plan.rows, table.rows), ("column", plan.columns, table.columns)):
        for name in asked:
            if name not in (names := [one.name for one in known]):
                raise choice(what, name, names, table.name)
    found = {
        name: cell
        for name, cell in table.cells().items()
        if cell.row.name in (plan.rows or (cell.row.name,))
        and cell.column.name in (plan.columns or (cell.column.name,))
    }
    return sorted(found, key=lambda name: _place(found[name], plan))


def _place(cell: TableCell, plan: TablePlan) -> tuple[int, int]:
    """Return the position of a cell in the order of the named rows and columns."""
    row = plan.rows.index(cell.row.name) if plan.rows else 0
    return row, plan.columns.index(cell.column.name) if plan.columns else 0


def _check_plan(table: PaperTable, plan: TablePlan) -> None:
    if not plan.seeds or len(set(plan.seeds)) != len(plan.seeds) or min(plan.seeds) < 0:
        raise PromptFedError(f"Seeds must be different whole numbers from 0, not {','.join(map(str, plan.seeds))!r}.")
    if plan.workers < 1:
        raise PromptFedError(f"A table needs at least 1 worker, not {plan.workers}.")
    if plan.workers > 1 and plan.on == "shared":
        raise PromptFedError(
            f"With --on shared a process makes one run at a time: leave out --workers {plan.workers} and start the "
            f"command {plan.workers} times."
        )
    for folder in plan.merge:
        if not folder.is_dir():
            raise PromptFedError(f"Folder {folder}, given to --merge, does not exist.")
    for row, key in (_addressed(override)[:2] for override in plan.overrides):
        if row and row not in (names := [one.name for one in table.rows]):
            raise choice("row", row, names, table.name)
        if key == "seed":
            raise PromptFedError("Set a table's seeds with --seeds 0,1,2, not with seed=….")
        if key == "evaluate.split":
            raise PromptFedError(
                "A table is evaluated on test images; remove evaluate.split, since only --tune uses validation images."
            )


def _addressed(word: str) -> tuple[str, str, str]:
    """Return the row that an override is for (none: all rows), its key, and the override itself."""
    place, equals, value = word.partition("=")
    row, colon, key = place.rpartition(":")
    return row.strip(), key.strip(), f"{key}{equals}{value}" if colon else word


def words_for(cell: TableCell, words: Sequence[str]) -> list[str]:
    """Return the overrides that reach a cell: a row with an encoder of its own keeps it, unless it is named."""
    own = "backbone" in cell.row.recipe
    found = []
    for row, key, word in map(_addressed, words):
        if row == cell.row.name or (not row and not (own and key.startswith("backbone."))):
            found.append(word)
    return found


def cell_recipe(cell: TableCell, words: Sequence[str]) -> Recipe:
    """Return the recipe of a cell with overrides applied: KEY=VALUE, or ROW:KEY=VALUE for one row alone."""
    words = words_for(cell, words)
    place = _called(cell, words)
    try:
        found = config.expand(cell.recipe, words, place)
    except PromptFedError as error:  # say in which of the many recipes
        raise PromptFedError(str(error).replace(" in the recipe", f" in {place}", 1)) from None
    if len(found) != 1:
        raise PromptFedError(
            f'Cell "{cell.name}" would be a sweep of {len(found)} runs; give every key a single value.'
        )
    return found[0]


def _called(cell: TableCell, words: Sequence[str]) -> str:
    """Name a cell and its method for an error: a key may be valid for one method and not for another."""
    given = dict(word.partition("=")[::2] for word in words)
    method = given.get("method.name", cell.recipe.get("method", {}).get("name", Recipe().method["name"]))
    return f"cell {cell.row.name} of {cell.column.name} (method {method})"


def _fits(cell: TableCell, words: Sequence[str]) -> bool:
    """Return whether the overrides are valid for a cell that was not requested; if so, its finished runs are shown."""
    try:
        cell_recipe(cell, words)
    except PromptFedError:
        return False
    return True


def overrides_of(setting: GridValues) -> list[str]:
    """Return the values of a grid point as overrides."""
    return [f"{key}={nested.literal(value)}" for key, value in setting.items()]


def seed_job(folder: Path, label: str, recipe: Recipe, seed: int) -> Job:
    """Return the run of one seed."""
    return Job(f"{label}, seed {seed}", replace(recipe, seed=seed), folder / f"seed{seed}")


def _trials(plan: TablePlan, cell: TableCell) -> list[tuple[GridValues, Job]]:
    """Return the points of the row's grid in ascending order, each with its run on the validation images."""
    found = []
    for values in product(*(sorted(tried) for tried in cell.row.tune.values())) if cell.row.tune else ():
        setting = dict(zip(cell.row.tune, values, strict=True))
        recipe = cell_recipe(cell, [*plan.overrides, *overrides_of(setting), "evaluate.split=val"])
        folder = plan.out / "tune" / cell.name / grid_folder(setting)
        found.append((setting, Job(f"{cell.name}, {grid_folder(setting)}", replace(recipe, seed=0), folder)))
    return found


def grid_folder(setting: GridValues) -> str:
    """Return the name of the folder that a grid point is run in."""
    return ",".join(f"{key}={value}" for key, value in setting.items()).replace("/", "_")
