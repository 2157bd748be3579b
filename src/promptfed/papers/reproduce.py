"""Run a paper's whole table: every cell with every seed in a run folder of its own, and ours beside the paper's.

    OUT/CELL/seed0/                          the paper's setting
    OUT/tune/CELL/method.lr=0.05/            the grid, seed 0, on validation images        (only with tune)
    OUT/tuned/CELL/method.lr=0.05/seed0/     the best of the grid, where it is another one (only with tune)
    OUT/table.md  OUT/table.json  OUT/sittings.jsonl

Finished runs are not run again and stopped ones go on, so a killed table goes on when the same command is given again.
The table's files are written anew after every run.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from promptfed.core.errors import PromptFedError, choice
from promptfed.papers.comparison import (
    CellResult,
    Comparison,
    GridPoint,
    Ours,
    Timing,
    Tuned,
    agreement,
    difference,
    headline,
    paper_measure,
    paper_result,
    pool,
)
from promptfed.papers.jobs import Job, JobResult, OnProgress, execute
from promptfed.papers.plan import (
    GridValues,
    PlannedTable,
    TablePlan,
    cell_recipe,
    grid_folder,
    overrides_of,
    plan_table,
    seed_job,
)
from promptfed.papers.rendering import write_table
from promptfed.papers.timing import read_timings
from promptfed.results.recipe_keys import OURS
from promptfed.runs import registry
from promptfed.runs.cells import SUFFIX, PaperTable, TableCell, read_cells
from promptfed.runs.recipe import Recipe, differences


def find_table(source: str) -> PaperTable:
    """Return a shipped table by name, or the one in a .table.toml file."""
    shipped = registry.tables()
    if source in shipped:
        return read_cells(shipped[source], source)
    if source.endswith(SUFFIX):
        return read_cells(Path(source), Path(source).name.removesuffix(SUFFIX))
    raise choice("table", source, shipped)


def reproduce(table: PaperTable, plan: TablePlan) -> Comparison:
    """Run what is left of the table, write table.md and table.json, and return the latter's content.

    Both are written anew after every run, so that what is finished can be read at any time, however the rest ends.
    """
    planned = plan_table(table, plan)
    _timings(plan)  # a damaged file is told before anything runs
    first = {name: planned.jobs[name] + [job for _, job in planned.trials[name]] for name in planned.cells}

    def keep(now: Mapping[Path, JobResult]) -> None:
        with suppress(OSError, PromptFedError):  # no disk, or a damaged run: at the end it is told, and costs no other
            known = _execute(_again(planned, now), (), plan) | dict(now)
            write_table(plan.out, _outcome(planned, known))

    done = _execute(first, planned.wanted, plan, keep)
    # the paper's own setting, where it is the best of its grid, was run already
    others = {name: jobs for name, jobs in _again(planned, done).items() if jobs is not planned.jobs[name]}
    done |= _execute(others, planned.wanted, plan, lambda now: keep(done | dict(now)))
    outcome = _outcome(planned, done)
    write_table(plan.out, outcome)
    return outcome


# -- the best of a grid -----------------------------------------------------------------------------------------------


def _best(grid: Sequence[tuple[GridValues, Job]], done: Mapping[Path, JobResult], measure: str) -> GridValues | None:
    """Return the point with the best mean validation accuracy; of equals, the first, which has the smaller rate."""
    scored = [(score, setting) for setting, job in grid if (score := _score(done[job.folder], measure)) is not None]
    return max(scored, key=lambda one: one[0])[1] if scored else None


def _score(done: JobResult, measure: str) -> float | None:
    value = headline(done.summary, measure)["mean"] if done.summary else None
    return float(value) if value is not None and value == value else None


def _tried(setting: GridValues, done: JobResult, measure: str) -> GridPoint:
    score = _score(done, measure)
    return {
        "setting": setting,
        "validation": None if score is None else round(100 * score, 4),
        "problem": done.problem,
    }


def _bests(planned: PlannedTable, done: Mapping[Path, JobResult]) -> dict[str, GridValues]:
    """Return the best point of every grid; there is none yet while a grid that is to be run is not through."""
    found = {}
    for name, grid in planned.trials.items():
        through = name not in planned.wanted or all(_ended(done[job.folder]) for _, job in grid)
        if through and (setting := _best(grid, done, planned.measure)) is not None:
            found[name] = setting
    return found


def _ended(done: JobResult) -> bool:
    return done.summary is not None or bool(done.problem)


def _again(planned: PlannedTable, done: Mapping[Path, JobResult]) -> dict[str, list[Job]]:
    """Return the runs of every grid's best with all seeds; where it is the paper's setting, those runs serve again."""
    found = {}
    for name, setting in _bests(planned, done).items():
        key = name, grid_folder(setting)
        if key not in planned.bests:
            recipe = cell_recipe(planned.cells[name], [*planned.plan.overrides, *overrides_of(setting)])
            folder = planned.plan.out / "tuned" / name / grid_folder(setting)
            again = [seed_job(folder, f"{name} {grid_folder(setting)}", recipe, seed) for seed in planned.plan.seeds]
            planned.bests[key] = planned.jobs[name] if recipe == planned.settings[name] else again
        found[name] = planned.bests[key]
    return found


def _execute(
    jobs: Mapping[str, list[Job]], wanted: Sequence[str], plan: TablePlan, keep: OnProgress | None = None
) -> dict[Path, JobResult]:
    return execute(jobs, wanted, plan.out, merge=plan.merge, workers=plan.workers, keep=keep)


# -- what came out --------------------------------------------------------------------------------------------------


def _pooled(jobs: Sequence[Job], done: Mapping[Path, JobResult], measure: str) -> Ours:
    """Return the runs of one setting, which differ in their seed alone."""
    results = {job.recipe.seed: done[job.folder] for job in jobs}
    summaries = {seed: one.summary for seed, one in results.items() if one.summary is not None}
    problems = {seed: one.problem for seed, one in results.items() if one.problem}
    recipe = jobs[0].recipe
    return pool(summaries, problems, recipe.per_round or recipe.clients - recipe.newcomers, measure)


def compared_clients(table: PaperTable, cell: TableCell, recipe: Recipe) -> int:
    """Return how many of the paper's figures we have beside the mean: our clients, or all domains."""
    return len(cell.column.clients) if table.measures[0] == "deployed" else recipe.clients


def _entry(
    planned: PlannedTable, name: str, done: Mapping[Path, JobResult], best: GridValues, again: Sequence[Job]
) -> CellResult:
    """Return one cell: ours under the paper's setting, and under the best of its grid where one was tried."""
    cell, grid = planned.cells[name], planned.trials[name]
    ours = _pooled(planned.jobs[name], done, planned.measure)
    paper = paper_result(cell, compared_clients(planned.table, cell, planned.settings[name]))
    tuned: Tuned | None = None
    if grid:
        runs = _pooled(again, done, planned.measure) if again else pool({}, {}, 1)
        tuned = {
            "setting": best,
            "grid": [_tried(setting, done[job.folder], planned.measure) for setting, job in grid],
            "ours": runs,
            "difference": difference(runs, paper, paper_measure(planned.table.measures)),
        }
    return {
        "column": cell.column.name,
        "row": cell.row.name,
        "title": cell.row.title,
        "ours": ours,
        "paper": paper,
        "difference": difference(ours, paper),
        "tuned": tuned,
    }


def _outcome(planned: PlannedTable, done: Mapping[Path, JobResult]) -> Comparison:
    """Return the table as far as its runs have come."""
    table, bests, again = planned.table, _bests(planned, done), _again(planned, done)
    all_of_it = {name: _entry(planned, name, done, bests.get(name, {}), again.get(name, [])) for name in planned.cells}
    entries = {
        name: entry for name, entry in all_of_it.items() if name in planned.wanted or entry["ours"]["mean"] is not None
    }
    columns = [one for one in table.columns if one.name in {entry["column"] for entry in entries.values()}]
    rows = list(entries.values())
    planned.changes.update(
        _changes(table, {name: planned.settings[name] for name in entries if name not in planned.changes})
    )
    outcome: Comparison = {
        "table": table.name,
        "title": table.title,
        "paper": table.paper,
        "seeds": list(planned.plan.seeds),
        "columns": [{"name": one.name, "title": one.title, "clients": list(one.clients)} for one in columns],
        "rows": rows,
        "deviations": [*_listed(table, {name: planned.changes[name] for name in entries}), *table.deviations],
        "notes": list(table.notes),
        "measures": list(table.measures),
        "agreement": agreement(rows, table.measures),
        "sittings": _timings(planned.plan),
    }
    asked = {
        job.folder
        for name in planned.wanted
        for job in (*planned.jobs[name], *(job for _, job in planned.trials[name]), *again.get(name, []))
    }
    if left := sum(not _ended(done[folder]) for folder in asked):
        outcome["unfinished"] = left
    return outcome


def _timings(plan: TablePlan) -> list[Timing]:
    return read_timings([plan.out, *plan.merge])


def deviations(table: PaperTable, settings: Mapping[str, Recipe]) -> list[str]:
    """Return a line for every key in which a cell is run otherwise than the paper did: `key`: paper's → ours."""
    return _listed(table, _changes(table, settings))


def _changes(table: PaperTable, settings: Mapping[str, Recipe]) -> dict[str, list[str]]:
    """Return what every cell does otherwise than the paper did."""
    found: dict[str, list[str]] = {}
    cells = table.cells()
    for name, recipe in settings.items():
        odd = differences(cell_recipe(cells[name], overrides_of(table.theirs)), recipe, OURS)
        found[name] = [
            f"`{key}`: {_value(theirs)} → {_value(ours)}"
            for key, (theirs, ours) in odd.items()
            if not key.startswith("fleet.")
        ]
        titles = cells[name].column.clients
        if cells[name].figure and (have := compared_clients(table, cells[name], recipe)) < len(titles):
            some = f"over our clients {', '.join(titles[:have])} instead of {', '.join(titles)}"
            found[name].append(f"The paper's mean is taken {some}")
    return found


def _listed(table: PaperTable, changes: Mapping[str, list[str]]) -> list[str]:
    """Write every change once, with the cells that it is about."""
    found: dict[str, list[str]] = {}
    for name, lines in changes.items():
        for line in lines:
            found.setdefault(line, []).append(name)
    cells = table.cells()
    # those that stand in the paper; where the paper prints no numbers, all
    all_of_it = {name for name in changes if cells[name].figure} or set(changes)
    return [f"{line}{'' if set(names) >= all_of_it else _where(names)}." for line, names in found.items()]


def _where(names: Sequence[str]) -> str:
    """Say which cells a deviation is about."""
    more = f" and {len(names) - 4} more" if len(names) > 5 else ""
    return f" ({', '.join(names[:4] if more else names)}{more})"


def _value(value: object) -> str:
    """Write a value; of a path only the end, which is what a reader can recognise."""
    if value is None:
        return "none"
    kind, colon, path = str(value).rpartition(":")
    return f"{kind}{colon}{Path(path).name if Path(path).is_absolute() else path}"


def parse_seeds(text: str) -> tuple[int, ...]:
    """Read "0,1,2"."""
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise PromptFedError(f'--seeds takes whole numbers such as 0,1,2, not "{text}".') from None
