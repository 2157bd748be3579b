"""Run a paper's whole table, each cell and seed in its own run folder, and compare our results with the paper's.

    OUT/CELL/seed0/                          with the paper's settings
    OUT/tune/CELL/method.lr=0.05/            the grid, seed 0, on validation images  (only with tune)
    OUT/tuned/CELL/method.lr=0.05/seed0/     the grid's best point, if it differs    (only with tune)
    OUT/table.md  OUT/table.json  OUT/sittings.jsonl

Finished runs are kept and stopped ones are resumed, so the same command resumes a stopped table. The table's files are
rewritten after every run.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from promptfed.core.errors import PromptFedError, choice
from promptfed.papers.claims import Claims
from promptfed.papers.comparison import (
    CHOSEN_BY,
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
from promptfed.papers.deviations import changes_of, compared_clients, list_changes
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
from promptfed.papers.statistics import table_statistics
from promptfed.papers.timing import read_timings
from promptfed.runs import registry
from promptfed.runs.cells import SUFFIX, PaperTable, read_cells


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

    Both are rewritten after every run, so that finished results can be read at any time, whatever happens to the rest.
    """
    planned = plan_table(table, plan)
    if plan.on == "shared":
        Claims(plan.out).forgive()
    _timings(plan)  # a damaged file is reported before anything runs
    first = {name: planned.jobs[name] + [job for _, job in planned.trials[name]] for name in planned.cells}

    def keep(now: Mapping[Path, JobResult]) -> None:
        with suppress(OSError, PromptFedError):  # a full disk or a damaged run is reported at the end
            known = _execute(_again(planned, now), (), plan) | dict(now)
            write_table(plan.out, _outcome(planned, known))

    done = _execute(first, planned.wanted, plan, keep)
    # if the grid's best point has the paper's settings, its runs are done already
    others = {name: jobs for name, jobs in _again(planned, done).items() if jobs is not planned.jobs[name]}
    done |= _execute(others, planned.wanted, plan, lambda now: keep(done | dict(now)))
    outcome = _outcome(planned, done)
    write_table(plan.out, outcome)
    return outcome


# -- the best of a grid -----------------------------------------------------------------------------------------------


def _best(grid: Sequence[tuple[GridValues, Job]], done: Mapping[Path, JobResult], measure: str) -> GridValues | None:
    """Return the point with the best mean validation accuracy; among equals the first, with the smaller values."""
    scored = [(score, setting) for setting, job in grid if (score := _score(done[job.folder], measure)) is not None]
    return max(scored, key=lambda one: one[0])[1] if scored else None


def _score(done: JobResult, measure: str) -> float | None:
    value = headline(done.summary, CHOSEN_BY.get(measure, measure))["mean"] if done.summary else None
    return float(value) if value is not None and value == value else None


def _tried(setting: GridValues, done: JobResult, measure: str) -> GridPoint:
    score = _score(done, measure)
    return {
        "setting": setting,
        "validation": None if score is None else round(100 * score, 4),
        "problem": done.problem,
    }


def _bests(planned: PlannedTable, done: Mapping[Path, JobResult]) -> dict[str, GridValues]:
    """Return the best point of every grid whose runs have all ended, or that is not to be run."""
    found = {}
    for name, grid in planned.trials.items():
        ended = name not in planned.wanted or all(_ended(done[job.folder]) for _, job in grid)
        if ended and (setting := _best(grid, done, planned.measure)) is not None:
            found[name] = setting
    return found


def _ended(done: JobResult) -> bool:
    return done.summary is not None or bool(done.problem)


def _again(planned: PlannedTable, done: Mapping[Path, JobResult]) -> dict[str, list[Job]]:
    """Return the runs of every grid's best point with all seeds; with the paper's settings, the cell's own runs."""
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
    claims = None if plan.on == "here" else Claims(plan.out)
    if plan.on == "elsewhere":
        return execute(jobs, (), plan.out, merge=plan.merge, claims=claims)
    return execute(jobs, wanted, plan.out, merge=plan.merge, workers=plan.workers, claims=claims, keep=keep)


# -- what came out --------------------------------------------------------------------------------------------------


def _pooled(jobs: Sequence[Job], done: Mapping[Path, JobResult], planned: PlannedTable) -> Ours:
    """Return the runs of one cell or grid point, which differ only in their seed, as one value."""
    results = {job.recipe.seed: done[job.folder] for job in jobs}
    summaries = {seed: one.summary for seed, one in results.items() if one.summary is not None}
    problems = {seed: one.problem for seed, one in results.items() if one.problem}
    recipe = jobs[0].recipe
    return pool(
        summaries, problems, recipe.per_round or recipe.clients - recipe.newcomers, planned.measure, planned.beside
    )


def _entry(
    planned: PlannedTable, name: str, done: Mapping[Path, JobResult], best: GridValues, again: Sequence[Job]
) -> CellResult:
    """Return one cell: our result with the paper's settings, and with the best of its grid if there is one."""
    cell, grid = planned.cells[name], planned.trials[name]
    ours = _pooled(planned.jobs[name], done, planned)
    paper = paper_result(cell, compared_clients(planned.table, cell, planned.settings[name]))
    tuned: Tuned | None = None
    if grid:
        runs = _pooled(again, done, planned) if again else pool({}, {}, 1)
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
    """Return the table with the results so far."""
    table, bests, again = planned.table, _bests(planned, done), _again(planned, done)
    shown = {name: _entry(planned, name, done, bests.get(name, {}), again.get(name, [])) for name in planned.cells}
    entries = {
        name: entry for name, entry in shown.items() if name in planned.wanted or entry["ours"]["mean"] is not None
    }
    columns = [one for one in table.columns if one.name in {entry["column"] for entry in entries.values()}]
    rows = list(entries.values())
    planned.changes.update(
        changes_of(table, {name: planned.settings[name] for name in entries if name not in planned.changes})
    )
    outcome: Comparison = {
        "table": table.name,
        "title": table.title,
        "paper": table.paper,
        "seeds": list(planned.plan.seeds),
        "columns": [{"name": one.name, "title": one.title, "clients": list(one.clients)} for one in columns],
        "rows": rows,
        "deviations": [*list_changes(table, {name: planned.changes[name] for name in entries}), *table.deviations],
        "notes": list(table.notes),
        "measures": list(table.measures),
        "agreement": agreement(rows, table.measures, ranked=table.ranked),
        "sittings": _timings(planned.plan),
    }
    if words := [word for word in planned.plan.overrides if not word.startswith("device=")]:
        outcome["overrides"] = words
    if table.statistics:
        outcome["statistics"] = table_statistics(rows, table.statistics)
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


def parse_seeds(text: str) -> tuple[int, ...]:
    """Read "0,1,2"."""
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise PromptFedError(f'--seeds takes whole numbers such as 0,1,2, not "{text}".') from None
