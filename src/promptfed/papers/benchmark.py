"""Committed results of a benchmark's tables, and a user's own runs in their columns.

The package has them in benchmarks/NAME.json, as `tools/leaderboard.py` writes them from docs/results. A run is put into
every column whose setting it is, and else into those it differs least from; how it differs is always said.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict

from promptfed.core.errors import PromptFedError, choice
from promptfed.papers.comparison import Comparison, Heading, Ours, headline, pool
from promptfed.papers.plan import cell_recipe, overrides_of
from promptfed.papers.reproduce import find_table
from promptfed.papers.statistics import counted, ranks_in, standard_error
from promptfed.results.folder.parts import read_summary
from promptfed.results.recipe_keys import OURS
from promptfed.results.report import RunFolder
from promptfed.results.report.groups import RunGroup, group_runs
from promptfed.results.report.table import Cell, Column, Table
from promptfed.runs import config
from promptfed.runs.recipe import Recipe

FOLDER = Path(__file__).parent / "benchmarks"
# a run that differs in one of these answers another question
SAME = ("partition.name", "partition.unseen", "data.half", "newcomers")
EFFORT = ("method.epochs", "method.batch")  # keys of a method that say how long it trains, where both have them
FIRST = ("data.name", "backbone.name", "backbone.weights", "rounds")  # of the differences, these are told first


class BenchmarkRow(TypedDict):
    """A method's result in a column: of its grid's best point, if a grid was tried."""

    row: str
    title: str
    mean: float
    error: float | None
    by_seed: dict[str, float | None]
    beside: dict[str, float | None]
    setting: dict[str, Any]  # what the grid chose
    floats: int | None  # numbers that a client receives and sends in a round
    recipe_hashes: dict[str, str]


class BenchmarkColumn(TypedDict):
    """One column of a table, with the rows that have a result."""

    table: str
    column: str
    title: str
    measure: str
    overrides: list[str]  # keys that the table's recipes were run with
    rows: list[BenchmarkRow]


# -- committed results ----------------------------------------------------------------------------------------------


def columns_of(outcome: Comparison) -> list[BenchmarkColumn]:
    """Return the columns of a finished table that have results."""
    made = (_column(outcome, heading) for heading in outcome["columns"])
    return [column for column in made if column["rows"]]


def _column(outcome: Comparison, heading: Heading) -> BenchmarkColumn:
    entries = [entry for entry in outcome["rows"] if entry["column"] == heading["name"]]
    rows = []
    for entry in entries:
        ours, tuned = counted(entry), entry["tuned"]
        setting = tuned["setting"] if tuned and ours is tuned["ours"] else {}
        if ours["mean"] is not None:
            rows.append(_row(entry["row"], entry["title"], ours, setting))
    return {
        "table": outcome["table"],
        "column": heading["name"],
        "title": heading["title"],
        "measure": outcome.get("measures", ["mean"])[0],
        "overrides": outcome.get("overrides", []),
        "rows": rows,
    }


def _row(row: str, title: str, ours: Ours, setting: dict[str, Any]) -> BenchmarkRow:
    traffic = ours["traffic"]
    assert ours["mean"] is not None
    return {
        "row": row,
        "title": title,
        "mean": ours["mean"],
        "error": standard_error([value for value in ours["by_seed"].values() if value is not None]),
        "by_seed": ours["by_seed"],
        "beside": ours.get("beside", {}),
        "setting": setting,
        "floats": traffic and traffic["down_floats"] + traffic["up_floats"],
        "recipe_hashes": ours["recipe_hashes"],
    }


def recipe_of(column: BenchmarkColumn, row: BenchmarkRow, seed: int) -> Recipe:
    """Return the recipe of a committed result, or refuse one that the tables no longer have."""
    cells = find_table(column["table"])
    name = cells.cell_name(column["column"], row["row"])
    recipe = cell_recipe(cells.cells()[name], [*column["overrides"], *overrides_of(row["setting"])])
    recipe = replace(recipe, seed=seed)
    if recipe.hash != row["recipe_hashes"][str(seed)]:
        raise PromptFedError(f"{column['table']}/{name} is no longer the recipe that its committed results are of.")
    return recipe


def read_benchmark(name: str) -> list[BenchmarkColumn]:
    """Return the columns of a benchmark that the package has results of."""
    known = sorted(path.stem for path in FOLDER.glob("*.json"))
    if name not in known:
        raise choice("benchmark", name, known)
    found: list[BenchmarkColumn] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return found


# -- a user's own runs ----------------------------------------------------------------------------------------------


def rank_runs(
    columns: Sequence[BenchmarkColumn], runs: Sequence[RunFolder]
) -> tuple[list[tuple[str, Table]], list[str]]:
    """Return the columns that the runs belong to, with the runs ranked in them, and how they differ."""
    finished = [run for run in runs if run.finished]
    if not finished:
        raise PromptFedError("None of these runs is finished; a benchmark ranks finished runs only.")
    notes = [f"{run.path} is not finished, and left out." for run in runs if not run.finished]
    settings = [_setting(_recipe_in(column)) for column in columns]
    placed: dict[int, list[tuple[RunGroup, str, list[str]]]] = {}
    groups = group_runs(finished)
    for group in groups:
        name, places = _called(group, groups), _places(group, columns, settings)
        notes += [] if places else [f"{name} ({group.setting}) is in no setting with results."]
        for number, odd in places:
            placed.setdefault(number, []).append((group, name, odd))
            where = _name(columns[number])
            notes += [f"{name} in {where}: {line}" for line in [*odd, *_other_seeds(group, columns[number])]]
    if not placed:
        raise PromptFedError(" ".join(notes))
    return [(_name(columns[number]), _ranked(columns[number], placed[number])) for number in sorted(placed)], notes


def _called(group: RunGroup, groups: Sequence[RunGroup]) -> str:
    """Return the name of a group of runs, with a folder where others have the same."""
    path = group.runs[0].path
    alike = sum(other.label == group.label for other in groups) > 1
    return f"{group.label} [{path.name or path}]" if alike else group.label


def _other_seeds(group: RunGroup, column: BenchmarkColumn) -> list[str]:
    """Say which seeds a group has, if they are not those of the committed results."""
    mine = {str(run.seed) for run in group.runs}
    theirs = {seed for row in column["rows"] for seed in row["by_seed"]}
    here, there = (", ".join(sorted(seeds, key=int)) for seeds in (mine, theirs))
    return [] if mine == theirs else [f"seed {here}, there it is {there}."]


def _name(column: BenchmarkColumn) -> str:
    return f"{column['table']}, {column['title']}"


def _recipe_in(column: BenchmarkColumn) -> Recipe:
    """Return the recipe of a column's baseline, or of its first row."""
    table = find_table(column["table"])
    rows = [row["row"] for row in column["rows"]]
    cell = table.cells()[table.cell_name(column["column"], table.statistics if table.statistics in rows else rows[0])]
    return cell_recipe(cell, column["overrides"])


def _setting(recipe: Recipe) -> dict[str, object]:
    """Return what must be equal for a fair comparison: all but the method, and how and where it is run and tested."""
    apart = ("method.", "prompt.", "fleet.", "schedule.")
    found = recipe.flatten().items()
    return {key: value for key, value in found if key in EFFORT or (key not in OURS and not key.startswith(apart))}


def _places(
    group: RunGroup, columns: Sequence[BenchmarkColumn], settings: Sequence[Mapping[str, object]]
) -> list[tuple[int, list[str]]]:
    """Return the columns that a run differs least from and has the measure of, each with the differences."""
    mine, summary = _setting(config.resolve(group.runs[0].recipe)), read_summary(group.runs[0].path)
    found: list[tuple[int, list[str]]] = []
    for number, (column, theirs) in enumerate(zip(columns, settings, strict=True)):
        same = all(mine.get(key) == theirs.get(key) for key in SAME)
        if same and headline(summary, column["measure"])["mean"] is not None:
            found.append((number, _differences(theirs, mine)))
    least = min((len(odd) for _, odd in found), default=0)
    return [(number, odd) for number, odd in found if len(odd) == least]


def _differences(theirs: Mapping[str, object], mine: Mapping[str, object]) -> list[str]:
    """Return a sentence for every key in which a run differs from the committed ones, the weightiest first."""
    keys = [key for key in dict.fromkeys([*FIRST, *theirs, *mine]) if key not in EFFORT or key in theirs.keys() & mine]
    odd = [key for key in keys if theirs.get(key) != mine.get(key)]
    return [f"`{key}` is {_value(mine.get(key))}, there it is {_value(theirs.get(key))}." for key in odd]


def _value(value: object) -> str:
    return "not set" if value is None or value == "" else str(value)


def _ranked(column: BenchmarkColumn, own: Sequence[tuple[RunGroup, str, list[str]]]) -> Table:
    """Return a column's table, the best first. Who differs counts in no other's rank, and has its own in brackets."""
    rows = [(row["title"], row["mean"], row["error"], len(row["by_seed"]), False, False) for row in column["rows"]]
    for group, name, odd in own:
        ours = pool({run.seed: read_summary(run.path) for run in group.runs}, {}, 1, column["measure"])
        known = [value for value in ours["by_seed"].values() if value is not None]
        rows.append((name, ours["mean"] or 0.0, standard_error(known), len(known), True, bool(odd)))
    equal = {str(number): row[1] for number, row in enumerate(rows) if not row[5]}
    ranks = {number: ranks_in({**equal, str(number): row[1]})[str(number)] for number, row in enumerate(rows)}
    order = sorted(range(len(rows)), key=lambda number: -rows[number][1])
    shown = [_line(*rows[number], rank=ranks[number]) for number in order]
    heads = (
        Column("rank", "in brackets: of a run in another setting, which is said below", ("rank",)),
        Column("method", "", ("method",), False),
        Column("mean ± s.e.", f"{column['measure']} in percent, ± standard error over seeds", ("mean", "error")),
        Column("seeds", "", ("seeds",)),
        Column("whose", "", ("whose",), False),
    )
    return Table(heads, tuple(shown), about="committed results are of the grid's best point, where one was tried")


def _line(
    title: str, mean: float, error: float | None, seeds: int, own: bool, odd: bool, *, rank: float
) -> tuple[Cell, ...]:
    text = f"({rank:.3g})" if odd else f"{rank:.3g}"
    about = f"{mean:.2f}" + ("" if error is None else f" ± {error:.2f}")
    spread = "" if error is None else f"{error:.2f}"
    whose = "yours" if own else "committed"
    return (
        Cell(text, (text,)),
        Cell(title, (title,)),
        Cell(about, (f"{mean:.2f}", spread)),
        Cell(str(seeds), (str(seeds),)),
        Cell(whose, (whose,)),
    )
