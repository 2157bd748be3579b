"""Run a paper's whole table: every cell with every seed in a run folder of its own, and ours beside the paper's.

    OUT/CELL/seed0/                          the paper's setting
    OUT/tune/CELL/method.lr=0.05/            the grid, seed 0, on validation images        (only with tune)
    OUT/tuned/CELL/method.lr=0.05/seed0/     the best of the grid, where it is another one (only with tune)
    OUT/table.md  OUT/table.json  OUT/sittings.jsonl

Finished runs are not run again and stopped ones go on, so a killed table goes on when the same command is given again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from promptfed import config
from promptfed.cells import SUFFIX, Cell, PaperTable, read_cells
from promptfed.config import Recipe
from promptfed.errors import PromptFedError, choice
from promptfed.jobs import Done, Job, execute
from promptfed.outcome import Entry, Ours, Outcome, Tried, agreement, difference, headline, paper_of, pool
from promptfed.sittings import read_sittings
from promptfed.tables import write_table

Setting = dict[str, Any]
# how a run is simulated, how often it is looked at and where: nothing of this changes what the paper did
_OUR_OWN = {"seed", "device", "checkpoint_seconds", "evaluate.every", "evaluate.personal", "evaluate.after"}


@dataclass(frozen=True)
class Plan:
    """What to do with a table: overrides of all its recipes, seeds, which rows and columns in which order, and how.

    Without rows or columns all are run, as the table has them.
    """

    out: Path
    overrides: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    workers: int = 1
    tune: bool = False
    merge: tuple[Path, ...] = ()  # other `out` folders of the same table: what is finished there is not run again


def find_table(source: str) -> PaperTable:
    """Return a shipped table by name, or the one in a .table.toml file."""
    shipped = config.tables()
    if source in shipped:
        return read_cells(shipped[source], source)
    if source.endswith(SUFFIX):
        return read_cells(Path(source), Path(source).name.removesuffix(SUFFIX))
    raise choice("table", source, shipped)


def reproduce(table: PaperTable, plan: Plan) -> Outcome:
    """Run what is left of the table, write table.md and table.json, and return the latter's content."""
    wanted = _selected(table, plan)
    _check_plan(plan)
    cells = {name: cell for name, cell in table.cells().items() if name in wanted or _fits(cell, plan.overrides)}
    settings = {name: _recipe(cell, plan.overrides) for name, cell in cells.items()}
    jobs = {
        name: [_job(plan.out / name, name, recipe, seed) for seed in plan.seeds] for name, recipe in settings.items()
    }
    trials = {name: _trials(plan, cell) if plan.tune else [] for name, cell in cells.items()}
    done = _execute({name: jobs[name] + [job for _, job in trials[name]] for name in cells}, wanted, plan)
    measure = table.measures[0]
    ours = {name: _pooled(jobs[name], done, measure) for name in cells}
    best = {name: setting for name, grid in trials.items() if (setting := _best(grid, done, measure)) is not None}
    tuned = _run_best(plan, cells, settings, ours, best, wanted, measure)
    shown = [name for name in cells if name in wanted or ours[name]["mean"] is not None]
    entries = []
    for name in shown:
        entry = _entry(cells[name], _told_apart(table, cells[name], settings[name]), ours[name])
        if trials[name]:
            runs = tuned.get(name, pool({}, {}, 1))
            entry["tuned"] = {
                "setting": best.get(name, {}),
                "grid": [_tried(setting, done[job.folder], measure) for setting, job in trials[name]],
                "ours": runs,
                "difference": difference(runs, entry["paper"]),
            }
        entries.append(entry)
    outcome = _outcome(table, plan, entries, {name: settings[name] for name in shown})
    write_table(plan.out, outcome)
    return outcome


# -- planning -------------------------------------------------------------------------------------------------------


def _selected(table: PaperTable, plan: Plan) -> list[str]:
    """Return the names of the cells in the rows and columns asked for, row by row if rows were named."""
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


def _place(cell: Cell, plan: Plan) -> tuple[int, int]:
    """Return where a cell stands in the order of the rows and columns that were named."""
    row = plan.rows.index(cell.row.name) if plan.rows else 0
    return row, plan.columns.index(cell.column.name) if plan.columns else 0


def _check_plan(plan: Plan) -> None:
    if not plan.seeds or len(set(plan.seeds)) != len(plan.seeds) or min(plan.seeds) < 0:
        raise PromptFedError(f"Seeds are different whole numbers from 0, not {','.join(map(str, plan.seeds))!r}.")
    if plan.workers < 1:
        raise PromptFedError(f"A table needs at least 1 worker, not {plan.workers}.")
    for folder in plan.merge:
        if not folder.is_dir():
            raise PromptFedError(f"There is no folder {folder} to merge.")
    for key in (override.partition("=")[0].strip() for override in plan.overrides):
        if key == "seed":
            raise PromptFedError("A table's seeds are given by --seeds 0,1,2, not by seed=….")
        if key == "evaluate.split":
            raise PromptFedError("A table is evaluated on test images; --tune uses the validation images by itself.")


def _recipe(cell: Cell, words: Sequence[str]) -> Recipe:
    found = config.expand(cell.recipe, words, f'cell "{cell.name}"')
    if len(found) != 1:
        raise PromptFedError(f'Cell "{cell.name}" would be a sweep of {len(found)} runs; give every key one value.')
    return found[0]


def _fits(cell: Cell, words: Sequence[str]) -> bool:
    """Say whether a cell that is not asked for understands the overrides; if so, what it finished before is shown."""
    try:
        _recipe(cell, words)
    except PromptFedError:
        return False
    return True


def _words(setting: Setting) -> list[str]:
    return [f"{key}={config.literal(value)}" for key, value in setting.items()]


def _job(folder: Path, label: str, recipe: Recipe, seed: int) -> Job:
    return Job(f"{label}, seed {seed}", replace(recipe, seed=seed), folder / f"seed{seed}")


def _trials(plan: Plan, cell: Cell) -> list[tuple[Setting, Job]]:
    """Return the row's grid in ascending order, each point with its run on the validation images."""
    found = []
    for values in product(*(sorted(tried) for tried in cell.row.tune.values())) if cell.row.tune else ():
        setting = dict(zip(cell.row.tune, values, strict=True))
        recipe = _recipe(cell, [*plan.overrides, *_words(setting), "evaluate.split=val"])
        folder = plan.out / "tune" / cell.name / _folder(setting)
        found.append((setting, Job(f"{cell.name}, {_folder(setting)}", replace(recipe, seed=0), folder)))
    return found


def _folder(setting: Setting) -> str:
    return ",".join(f"{key}={value}" for key, value in setting.items()).replace("/", "_")


def _best(grid: Sequence[tuple[Setting, Job]], done: Mapping[Path, Done], measure: str) -> Setting | None:
    """Return the point with the best mean validation accuracy; of equals, the first, which has the smaller rate."""
    scored = [(score, setting) for setting, job in grid if (score := _score(done[job.folder], measure)) is not None]
    return max(scored, key=lambda one: one[0])[1] if scored else None


def _score(done: Done, measure: str) -> float | None:
    value = headline(done.summary, measure)["mean"] if done.summary else None
    return float(value) if value is not None and value == value else None


def _tried(setting: Setting, done: Done, measure: str) -> Tried:
    score = _score(done, measure)
    return {
        "setting": setting,
        "validation": None if score is None else round(100 * score, 4),
        "problem": done.problem,
    }


def _run_best(
    plan: Plan,
    cells: Mapping[str, Cell],
    settings: Mapping[str, Recipe],
    ours: Mapping[str, Ours],
    best: Mapping[str, Setting],
    wanted: Sequence[str],
    measure: str,
) -> dict[str, Ours]:
    """Run the best point of every grid with all seeds; where it is the paper's setting, those runs serve again."""
    found: dict[str, Ours] = {}
    jobs: dict[str, list[Job]] = {}
    for name, setting in best.items():
        recipe = _recipe(cells[name], [*plan.overrides, *_words(setting)])
        if recipe == settings[name]:
            found[name] = ours[name]
            continue
        folder = plan.out / "tuned" / name / _folder(setting)
        jobs[name] = [_job(folder, f"{name} {_folder(setting)}", recipe, seed) for seed in plan.seeds]
    done = _execute(jobs, wanted, plan)
    return found | {name: _pooled(some, done, measure) for name, some in jobs.items()}


def _execute(jobs: Mapping[str, list[Job]], wanted: Sequence[str], plan: Plan) -> dict[Path, Done]:
    return execute(jobs, wanted, plan.out, merge=plan.merge, workers=plan.workers)


# -- what came out --------------------------------------------------------------------------------------------------


def _pooled(jobs: Sequence[Job], done: Mapping[Path, Done], measure: str) -> Ours:
    """Return the runs of one setting, which differ in their seed alone."""
    results = {job.recipe.seed: done[job.folder] for job in jobs}
    summaries = {seed: one.summary for seed, one in results.items() if one.summary is not None}
    problems = {seed: one.problem for seed, one in results.items() if one.problem}
    recipe = jobs[0].recipe
    return pool(summaries, problems, recipe.per_round or recipe.clients - recipe.newcomers, measure)


def _told_apart(table: PaperTable, cell: Cell, recipe: Recipe) -> int:
    """Return how many of the paper's figures we have beside the mean: our clients, or all domains."""
    return len(cell.column.clients) if table.measures[0] == "deployed" else recipe.clients


def _entry(cell: Cell, told_apart: int, ours: Ours) -> Entry:
    paper = paper_of(cell, told_apart)
    return {
        "column": cell.column.name,
        "row": cell.row.name,
        "title": cell.row.title,
        "ours": ours,
        "paper": paper,
        "difference": difference(ours, paper),
        "tuned": None,
    }


def _outcome(table: PaperTable, plan: Plan, entries: list[Entry], settings: Mapping[str, Recipe]) -> Outcome:
    names = {entry["column"] for entry in entries}
    columns = [column for column in table.columns if column.name in names]
    return {
        "table": table.name,
        "title": table.title,
        "paper": table.paper,
        "seeds": list(plan.seeds),
        "columns": [{"name": one.name, "title": one.title, "clients": list(one.clients)} for one in columns],
        "rows": entries,
        "deviations": [*deviations(table, settings), *table.deviations],
        "notes": list(table.notes),
        "measures": list(table.measures),
        "agreement": agreement(entries, table.measures),
        "sittings": read_sittings([plan.out, *plan.merge]),
    }


def deviations(table: PaperTable, settings: Mapping[str, Recipe]) -> list[str]:
    """Return a line for every key in which a cell is run otherwise than the paper did: `key`: paper's → ours."""
    found: dict[str, list[str]] = {}
    cells = table.cells()
    for name, recipe in settings.items():
        theirs, ours = config.flatten(_recipe(cells[name], _words(table.theirs))), config.flatten(recipe)
        for key in theirs | ours:
            if key in _OUR_OWN or key.startswith("fleet.") or theirs.get(key) == ours.get(key):
                continue
            found.setdefault(f"`{key}`: {_value(theirs.get(key))} → {_value(ours.get(key))}", []).append(name)
        titles = cells[name].column.clients
        if cells[name].figure and (have := _told_apart(table, cells[name], recipe)) < len(titles):
            some = f"over our clients {', '.join(titles[:have])} instead of {', '.join(titles)}"
            found.setdefault(f"The paper's mean is taken {some}", []).append(name)
    return [f"{line}{_where(names, cells, settings)}." for line, names in found.items()]


def _where(names: Sequence[str], cells: Mapping[str, Cell], settings: Mapping[str, Recipe]) -> str:
    """Say which cells a deviation is about, unless it is about all that stand in the paper."""
    if set(names) >= {name for name in settings if cells[name].figure}:
        return ""
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
