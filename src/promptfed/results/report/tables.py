"""Compare runs: one row per method and setting, seeds pooled."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import mean, stdev
from typing import Any

from promptfed.results.folder.reader import RunFolder, per_domain
from promptfed.results.report.groups import RunGroup, group_runs
from promptfed.results.report.measures import less_is_better, measure_names, reader, shared_headline
from promptfed.results.report.table import Cell, Column, Table, human_bytes, percent
from promptfed.results.report.verdict import role, sends_nothing

Names = tuple[Column, list[Cell]]  # a column that says what a row is


@dataclass(frozen=True)
class Measure:
    """A column, and the function that returns a group's cell and rank (higher is better; None is not ranked)."""

    column: Column
    fill: Callable[[RunGroup], tuple[Cell, float | None]]


def compare(runs: Sequence[RunFolder]) -> Table:
    """Return one row per method and setting: accuracies, traffic and time, seeds pooled as mean ± std."""
    return _table(group_runs(runs), _compared(runs))


def headline(runs: Sequence[RunFolder]) -> Table:
    """Return the short table: method, mean, worst client, and the traffic of the whole run."""
    groups = group_runs(runs)
    return _table(groups, _HEADLINE, [_role_column(groups)] if any(map(role, groups)) else [])


def _table(groups: Sequence[RunGroup], measures: Sequence[Measure], more: Sequence[Names] = ()) -> Table:
    """Lay out the method, then what differs between settings, then the measures."""
    names = [_method_column(groups), *more, *_setting_columns(groups)]
    columns = [_ranked(measure, groups) for measure in measures]
    head = tuple(column for column, _ in names) + tuple(measure.column for measure in measures)
    rows = zip(*(cells for _, cells in names), *columns, strict=True)
    return Table(head, tuple(rows), len(names))


def _method_column(groups: Sequence[RunGroup]) -> Names:
    """Return the method column, with the number of seeds if there are several."""
    cells = []
    for group in groups:
        seeds = f" (n={len(group.runs)})" if len(group.runs) > 1 else ""
        cells.append(Cell(f"{group.label}{seeds}", (group.label, str(len(group.runs)))))
    notes = ["n seeds as mean ± sample std"] if any(len(group.runs) > 1 for group in groups) else []
    # Methods adapt at the very end, so an unfinished run has only received models.
    notes += ["unfinished runs as received, so far"] if not all(group.finished for group in groups) else []
    return Column("method", ", ".join(notes), ("method", "seeds"), False), cells


def _role_column(groups: Sequence[RunGroup]) -> Names:
    """Return the column that names baselines as baselines."""
    return Column("", "", ("role",), False), [Cell(role(group), (role(group),)) for group in groups]


def _setting_columns(groups: Sequence[RunGroup]) -> list[Names]:
    """Return columns for those of data set, partition, backbone, clients and rounds in which the runs differ."""
    readers: dict[str, Callable[[RunGroup], Any]] = {
        "data set": lambda group: group.setting.dataset,
        "partition": lambda group: group.setting.partition,
        "backbone": lambda group: group.setting.backbone,
        "clients": lambda group: group.setting.clients,
        "rounds": lambda group: group.runs[0].rounds[-1].number,
    }
    found = []
    for title, read in readers.items():
        values = [str(read(group)) for group in groups]
        if len(set(values)) > 1:
            column = Column(title, "", (title.replace(" ", ""),), title in ("clients", "rounds"))
            found.append((column, [Cell(value, (value,)) for value in values]))
    return found


def _ranked(measure: Measure, groups: Sequence[RunGroup]) -> list[Cell]:
    """Return the cells of one column; the best finished one of each setting is marked if they differ."""
    filled = [measure.fill(group) for group in groups]
    ranks = [rank if group.finished else None for group, (_, rank) in zip(groups, filled, strict=True)]
    cells = []
    for group, (cell, _), rank in zip(groups, filled, ranks, strict=True):
        rivals = [r for r, other in zip(ranks, groups, strict=True) if r is not None and other.setting == group.setting]
        cells.append(replace(cell, best=len(set(rivals)) > 1 and rank == max(rivals)))
    return cells


def _values(group: RunGroup, read: Callable[[RunFolder], float | None]) -> list[float]:
    return [value for run in group.runs if (value := read(run)) is not None]


def _pooled(found: Sequence[float], write: Callable[[float], str]) -> str:
    """Write one value, or mean ± sample std of several."""
    return " ± ".join(field for field in _plain(found, write) if field)


def _plain(found: Sequence[float], write: Callable[[float], str]) -> tuple[str, str]:
    """Return the mean and, for several values, the sample std."""
    return write(mean(found)), write(stdev(found)) if len(found) > 1 else ""


def _missing(column: Column) -> tuple[Cell, None]:
    return Cell("–", ("",) * len(column.fields)), None


def _accuracy(title: str, legend: str, read: Callable[[RunFolder], float | None], sign: int = 1) -> Measure:
    """Return a column of percents, ranked as rounded, so that equal cells are equally good; sign -1: less is better."""
    column = Column(title, legend, (title.replace(" ", "_"), f"{title.replace(' ', '_')}_std"))

    def fill(group: RunGroup) -> tuple[Cell, float | None]:
        found = _values(group, read)
        if not found:
            return _missing(column)
        return Cell(_pooled(found, percent), _plain(found, percent)), sign * round(mean(found), 4)

    return Measure(column, fill)


def _best(ranked: bool) -> Measure:
    """Return the column of the best mean of any round, and that round."""
    legend = "best mean as received of any round @ that round"
    column = Column("best", legend, ("best", "best_std", "best_round"))

    def fill(group: RunGroup) -> tuple[Cell, float | None]:
        found = _values(group, lambda run: run.best_mean)
        rounds = sorted({run.best_round for run in group.runs if run.best_round is not None})
        if not found or not rounds:
            return _missing(column)
        when = "–".join(map(str, sorted({rounds[0], rounds[-1]})))
        cell = Cell(f"{_pooled(found, percent)} @ {when}", (*_plain(found, percent), when))
        return cell, round(mean(found), 4) if ranked else None

    return Measure(column, fill)


def _per_contact(
    title: str, legend: str, size: Callable[[RunFolder], float], floats: Callable[[RunFolder], int]
) -> Measure:
    """Return a column of what is sent for one client in one round, in bytes and in floats; less is better."""
    column = Column(title, legend, (f"{title}_bytes", f"{title}_floats"))

    def fill(group: RunGroup) -> tuple[Cell, float | None]:
        sent, numbers = mean(map(size, group.runs)), round(mean(map(floats, group.runs)))
        cell = Cell(f"{human_bytes(sent)} ({numbers:,} floats)", (f"{sent:.0f}", str(numbers)))
        return cell, None if sends_nothing(group) else -round(sent)  # who does not federate is not cheap at it

    return Measure(column, fill)


def _seconds() -> Measure:
    column = Column("seconds", "wall time of the run", ("seconds", "seconds_std"))

    def fill(group: RunGroup) -> tuple[Cell, float | None]:
        found = [run.seconds for run in group.runs]
        return Cell(_pooled(found, "{:.1f}".format), _plain(found, "{:.1f}".format)), -round(mean(found), 1)

    return Measure(column, fill)


def _clock() -> Measure:
    """Return the column of how long the run took by its simulated clock; less is better."""
    column = Column("hours", "on the run's simulated links and devices", ("hours", "hours_std"))

    def fill(group: RunGroup) -> tuple[Cell, float | None]:
        found = _values(group, lambda run: run.clock)
        if not found:
            return _missing(column)
        hours = [seconds / 3600 for seconds in found]
        return Cell(_pooled(hours, "{:.3g}".format), _plain(hours, "{:.3g}".format)), -mean(hours)

    return Measure(column, fill)


def _whole_run() -> Measure:
    column = Column("traffic", "bytes of the whole run, down and up, all clients", ("traffic_bytes",))

    def fill(group: RunGroup) -> tuple[Cell, float | None]:
        sent = mean(run.traffic.down_bytes + run.traffic.up_bytes for run in group.runs)
        return Cell(human_bytes(sent), (f"{sent:.0f}",)), None if sends_nothing(group) else -round(sent)

    return Measure(column, fill)


def _compared(runs: Sequence[RunFolder]) -> tuple[Measure, ...]:
    """Return the columns of the long table; those about adaptation and newcomers only if a run has them."""
    adapting = any(run.adapts for run in runs)
    first = shared_headline(runs)
    return (
        *(_BEYOND[name] for name in (first, f"worst_{first}") if name in _BEYOND),
        _mean(" (so are worst, p10 and weighted)"),
        *([_BEFORE] if adapting else []),
        *(measure for name, measure in _OTHERS.items() if any(name in run.beyond for run in runs)),
        *([_NEWCOMERS] if any(run.newcomers is not None for run in runs) else []),
        *_MORE,
        # Methods that adapt are not used as received, so their best round is not ranked.
        _best(ranked=not adapting),
        *_COSTS,
        *([_clock()] if any(run.clock is not None for run in runs) else []),
    )


def _mean(others: str = "") -> Measure:
    """Return the main column; its legend names the other columns of the same models."""
    legend = "accuracy in percent, each client on its own test images, after the method's own adaptation if it has one"
    return _accuracy("mean", legend + others, lambda run: run.scores.mean if run.scores else None)


def _by_domain(run: RunFolder) -> float | None:
    each = per_domain(run.deployed or {})
    return mean(each) if each else None


def _on_others(name: str, run: RunFolder) -> float | None:
    return run.beyond.get(name)


def best_round(run: RunFolder) -> float | None:
    """Return what stands beside a paper's best round: only the last round is tested as adapted."""
    return run.scores.weighted if run.adapts and run.scores else run.best_weighted


_BEFORE = _accuracy(
    "before", "mean as received, before that adaptation", lambda run: run.before.mean if run.before else None
)
_OTHERS = {
    name: _accuracy(name, legend, partial(_on_others, name))
    for name, legend in (
        ("own-names", "mean on the own test images, only the classes that a client trains on being named"),
        ("neighbour", "mean on the other clients' test images"),
        ("base", "mean on all clients' test images"),
        ("novel", "mean on test images of classes that training never named"),
        ("hm", "harmonic mean of base and novel"),
        ("cm", "mean of the own images' mean and hm"),
    )
}
_NEWCOMERS = _accuracy(
    "newcomers", "mean of the clients that joined after the others, counted in mean too", lambda run: run.newcomers
)
_MORE = (
    _accuracy("worst", "the worst client", lambda run: run.scores.worst if run.scores else None),
    _accuracy("p10", "the client at the 10th percentile", lambda run: run.scores.p10 if run.scores else None),
    _accuracy("weighted", "mean weighted by test images", lambda run: run.scores.weighted if run.scores else None),
    _accuracy("after", "mean after one more local training", lambda run: run.after.mean if run.after else None),
    _accuracy("deployed", "the server's own model, no client", lambda run: (run.deployed or {}).get("all")),
)
_COSTS = (
    _per_contact(
        "down", "sent to one client per round", lambda run: run.down_bytes, lambda run: run.traffic.down_floats
    ),
    _per_contact("up", "sent back by it", lambda run: run.up_bytes, lambda run: run.traffic.up_floats),
    _seconds(),
)
_BEST_ROUND = _accuracy(
    "best-round",
    "weighted, in the best round of all tested; of a method that adapts at the end in the last one, adapted",
    best_round,
)
_BEST_LOCAL = _accuracy(
    "best-local",
    "weighted, in the best round, right after local training: its participants as trained, all others as received",
    lambda run: run.best_local,
)
_DOMAINS = _accuracy("domains", "accuracy of the server's own model in percent, the mean over domains", _by_domain)
_BEYOND = {
    name: _accuracy(name, legend, reader(name), -1 if less_is_better(name) else 1)
    for name, legend in measure_names().items()
}
ACCURACIES = {
    measure.column.title: measure
    for measure in (_mean(), _BEFORE, *_MORE, _BEST_ROUND, _BEST_LOCAL, _DOMAINS, *_OTHERS.values(), *_BEYOND.values())
}
_HEADLINE = (
    _mean(),
    _accuracy("worst client", "the client served worst", lambda run: run.scores.worst if run.scores else None),
    _whole_run(),
)
