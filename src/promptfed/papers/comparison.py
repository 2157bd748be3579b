"""Compare the results of a table's runs with the numbers the paper printed: the content of table.json.

Accuracies are in percent, as papers print them; FIDs are not scaled. Nothing here runs anything or imports torch.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NotRequired, TypedDict

import numpy as np

from promptfed.core.errors import PromptFedError
from promptfed.core.files import unsealed
from promptfed.core.statistics import rank_correlation
from promptfed.results.folder import names
from promptfed.results.folder.reader import per_domain
from promptfed.runs.cells import COSTS, TableCell
from promptfed.runs.rows import PrintedFigure

FAR = 3.0  # a larger difference from the paper, in points, is listed
FEWEST = 3  # methods needed to compare their order
# by what a grid's best point is chosen, where it is not by what the table measures: that would be looking ahead
CHOSEN_BY = {"unseen": "seen", "elsewhere": "deployed", "newcomers": "mean"}


class ClientTraffic(TypedDict):
    """What one client receives and sends in one round."""

    down_floats: int
    up_floats: int
    down_bytes: float
    up_bytes: float


class Ours(TypedDict):
    """The runs of one cell, one per seed; a seed without a result has a sentence in `problems`."""

    mean: float | None
    std: float | None  # the sample standard deviation over seeds
    weighted: NotRequired[float | None]  # the mean over test images, not over clients
    best_weighted: NotRequired[float | None]  # the same in the best round, as received; None if a seed lacks it
    best_local: NotRequired[float | None]  # likewise, right after local training: participants as trained
    adapted: NotRequired[bool]  # the last round's models were adapted, those of other rounds were tested as received
    beside: NotRequired[dict[str, float | None]]  # more measures of the last round, by name; None if no run has it
    measured: NotRequired[str]  # the features a FID was computed in, and the number of pictures
    per_client: list[float | None]
    before: float | None
    after: float | None
    by_seed: dict[str, float | None]
    recipe_hashes: dict[str, str]
    traffic: ClientTraffic | None
    problems: dict[str, str]


class GridPoint(TypedDict):
    """One point of a row's grid: its mean accuracy on the validation images, or a sentence about what went wrong."""

    setting: dict[str, Any]
    validation: float | None
    problem: str


class Tuned(TypedDict):
    """The best point of a row's grid and its runs on the test images; empty if no point has a result."""

    setting: dict[str, Any]
    grid: list[GridPoint]
    ours: Ours
    difference: float | None  # by the paper's own measure


class PaperResult(TypedDict):
    """The numbers the paper printed for the clients that our runs have."""

    mean: float
    per_client: list[float]
    traffic: float | None


class CellResult(TypedDict):
    """One row in one column: our result beside the paper's."""

    column: str
    row: str
    title: str
    ours: Ours
    paper: PaperResult | None
    difference: float | None  # of our mean, whichever measure the paper uses
    tuned: Tuned | None


class Agreement(TypedDict):
    """How well our results agree with the paper's in one column."""

    column: str
    methods: int
    rank_correlation: dict[str, float | None]  # of the methods' order, by measure; None: too few methods, or all equal
    far: list[str]  # rows that differ by more than `FAR` points
    by: NotRequired[str]  # the paper's own measure, by which `far` is decided


class Timing(TypedDict):
    """How many runs one command made, and in how much time."""

    began: str
    runs: int
    workers: int
    seconds: float
    runs_per_hour: float
    gpu_percent: float | None  # how busy the GPU was; None if that is unknown


class Heading(TypedDict):
    """One column; its clients have titles if the paper prints them one by one."""

    name: str
    title: str
    clients: list[str]


class CellStatistics(TypedDict):
    """One cell over its seeds, in points; an error needs two seeds, a difference one that both rows have."""

    column: str
    row: str
    mean: float | None
    error: float | None  # standard error of the mean
    difference: float | None  # to the baseline, the mean over the seeds that both have
    difference_error: float | None  # its standard error
    rank: float | None  # in its column, 1 the best; equals share theirs


class RowStatistics(TypedDict):
    """One row over the columns in which it has a result."""

    row: str
    rank: float  # the mean of its ranks
    columns: int


class TableStatistics(TypedDict):
    """The statistics of a table."""

    baseline: str
    cells: list[CellStatistics]
    rows: list[RowStatistics]


class Comparison(TypedDict):
    """The content of table.json."""

    table: str
    title: str
    paper: str
    seeds: list[int]
    columns: list[Heading]
    rows: list[CellResult]
    deviations: list[str]
    notes: list[str]
    measures: NotRequired[list[str]]
    agreement: NotRequired[list[Agreement]]
    sittings: NotRequired[list[Timing]]
    statistics: NotRequired[TableStatistics]
    overrides: NotRequired[list[str]]  # keys that the command changed
    unfinished: NotRequired[int]  # runs that were not finished when this was written


# -- from summaries to numbers --------------------------------------------------------------------------------------


def headline(summary: Mapping[str, Any], measure: str) -> Mapping[str, Any]:
    """Return `mean` and `per_client` of a run by that measure; for the server's own model, per domain."""
    if measure == "fid":
        return {"mean": _global(summary).get("fid"), "per_client": []}
    accuracy: Mapping[str, Any] = summary["accuracy"]
    if measure == "mean":
        return accuracy
    if measure == "newcomers":
        return {"mean": accuracy.get(measure), "per_client": []}
    if measure == "trained":
        found: Mapping[str, Any] = accuracy.get(measure) or {}
        return {"mean": found.get("mean"), "per_client": found.get("per_client", [])}
    each = per_domain(accuracy.get("elsewhere" if measure == "elsewhere" else "deployed") or {})
    counted = {"unseen": each[-1:], "seen": each[:-1]}.get(measure, each)  # what no client has comes last
    return {"mean": mean(counted) if counted else None, "per_client": each}


def with_quality(summary: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """Return a run's summary with what `promptfed quality` measured after its last round, if anything."""
    path = folder / names.QUALITY
    if not path.is_file():
        return summary
    try:
        found = unsealed(path.read_text(encoding="utf-8"))
        return {**summary, "quality": found} if found["round"] == summary["rounds"] else summary
    except (ValueError, KeyError, TypeError):
        raise PromptFedError(f"{path} is damaged; run promptfed quality {folder} again.") from None


def _global(summary: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what was measured of the server's word; empty if it has none or was not measured."""
    words = summary.get("quality", {}).get("words", [])
    return next((line for line in words if line["word"] == "global" and "client" not in line), {})


def _measured_how(summary: Mapping[str, Any]) -> str:
    word = _global(summary)
    return f"{summary['quality']['features']}, {word['drawn']} pictures, {word['real']} images" if word else ""


def pool(
    summaries: Mapping[int, Mapping[str, Any]],
    problems: Mapping[int, str],
    per_round: int,
    measure: str = "mean",
    beside: Sequence[str] = (),
) -> Ours:
    """Return the runs of one cell as one value; `summaries` and `problems` are by seed."""
    found = [summaries[seed] for seed in sorted(summaries)]
    accuracies = [summary["accuracy"] for summary in found]
    scale = 1 if measure == "fid" else 100
    means = {str(seed): _times(scale, headline(summaries[seed], measure)["mean"]) for seed in sorted(summaries)}
    known = [value for value in means.values() if value is not None]
    ours: Ours = {
        "mean": _mean(list(means.values())),
        "std": round(stdev(known), 4) if len(known) > 1 else None,
        "weighted": _mean([_percent(accuracy.get("weighted")) for accuracy in accuracies]),
        "best_weighted": _best(accuracies, "best_weighted"),
        "best_local": _best(accuracies, "best_local"),
        "adapted": any(_adapted(accuracy) for accuracy in accuracies),
        "per_client": _per_client(found, measure),
        "before": _mean([_percent((accuracy["before"] or {}).get("mean")) for accuracy in accuracies]),
        "after": _mean([_percent((accuracy["after"] or {}).get("mean")) for accuracy in accuracies]),
        "by_seed": means,
        "recipe_hashes": {str(seed): summaries[seed]["recipe_hash"] for seed in sorted(summaries)},
        "traffic": _traffic(found[0], per_round) if found else None,
        "problems": {str(seed): problems[seed] for seed in sorted(problems)},
    }
    if measure == "fid":
        ours["measured"] = "; ".join(dict.fromkeys(filter(None, map(_measured_how, found))))
    if beside:
        ours["beside"] = {name: _mean([_beside(one, name) for one in found]) for name in beside}
    return ours


def _beside(summary: Mapping[str, Any], name: str) -> float | None:
    """Return a measure of the same models as the mean, of one client or on other images; or what the run cost."""
    if name in COSTS:
        return _cost(summary, name)
    accuracy: Mapping[str, Any] = summary["accuracy"]
    others: Mapping[str, float | None] = accuracy.get("sets", {}).get(name, {})
    own: float | None = accuracy.get(name)
    return _percent(others["mean"] if others else own)


def _cost(summary: Mapping[str, Any], name: str) -> float | None:
    """Return what a run cost: megabytes, seconds, gigabytes, rounds, or the largest ε of any client."""
    if name == "sent":
        sent: float = summary["traffic"]["down_bytes"] + summary["traffic"]["up_bytes"]
        return sent / 1e6
    if name == "epsilon":
        spent: Mapping[str, Any] = summary.get("privacy") or summary.get("examples") or {"epsilon": []}
        each: list[float] = spent["epsilon"]
        return max(each, default=None)
    found: float | None = summary.get(
        "seconds" if name == "seconds" else {"memory": "peak_memory_bytes"}.get(name, name)
    )
    return found / 1e9 if name == "memory" and found is not None else found


def paper_result(cell: TableCell, clients: int) -> PaperResult | None:
    """Return the paper's numbers; if our runs have only the first of its clients, its mean is taken over those."""
    figure: PrintedFigure | None = cell.figure
    if figure is None:
        return None
    ours = list(figure.clients[:clients])
    shortened = bool(ours) and len(ours) < len(figure.clients)
    return {
        "mean": round(mean(ours), 2) if shortened else figure.mean,
        "per_client": ours,
        "traffic": cell.row.traffic,
    }


def paper_measure(measures: Sequence[str]) -> str:
    """Return the measure the paper uses: a table shows `weighted` because its paper averages over images."""
    return next((name for name in ("best-round", "weighted") if name in measures), measures[0])


def difference(ours: Ours, paper: PaperResult | None, measure: str = "mean") -> float | None:
    """Return ours minus the paper's, in points."""
    value = _measured(ours, measure)
    return None if paper is None or value is None else round(value - paper["mean"], 2)


def agreement(rows: Sequence[CellResult], measures: Sequence[str], *, ranked: bool = True) -> list[Agreement]:
    """Compare our results with the paper's column by column: the order of the methods, and which ones are far off.

    The paper's own measure decides, and comes first. Rows that lack our result or the paper's are left out. Where the
    rows are not methods, they are not `ranked`.
    """
    found: list[Agreement] = []
    theirs = paper_measure(measures)
    for column in dict.fromkeys(entry["column"] for entry in rows):
        both = [(entry, entry["paper"]["mean"]) for entry in rows if entry["column"] == column and entry["paper"]]
        both = [(entry, printed) for entry, printed in both if _measured(entry["ours"], theirs) is not None]
        if not both:
            continue
        printed = [value for _, value in both]
        correlations = {
            name: order_correlation([_measured(entry["ours"], name) for entry, _ in both], printed)
            for name in (dict.fromkeys([theirs, *measures]) if ranked else ())
        }
        far = [entry["row"] for entry, _ in both if abs(difference(entry["ours"], entry["paper"], theirs) or 0.0) > FAR]
        found.append(
            {"column": column, "methods": len(both), "rank_correlation": correlations, "far": far, "by": theirs}
        )
    return found


def order_correlation(ours: Sequence[float | None], theirs: Sequence[float]) -> float | None:
    """Return Spearman's correlation of the methods' order, ours against the paper's; None for too few methods."""
    pairs = [(one, other) for one, other in zip(ours, theirs, strict=True) if one is not None]
    found = rank_correlation(*np.array(pairs).T) if len(pairs) >= FEWEST else None
    return None if found is None else round(round(found, 12), 4)  # the inner rounding drops floating-point noise


def _measured(ours: Ours, measure: str) -> float | None:
    """Return one of our numbers; the mean is by the table's own measure.

    The best round of a method that adapts at the end is the last one: no other is tested as adapted.
    """
    if measure == "best-local":
        return ours.get("best_local")
    if measure == "best-round" and not ours.get("adapted"):
        return ours.get("best_weighted")
    return ours.get("weighted") if measure in ("weighted", "best-round") else ours["mean"]


def _best(accuracies: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """Return the mean of the best rounds over all seeds; None if a seed, such as of an older run, lacks it."""
    found = [_percent(accuracy.get(key)) for accuracy in accuracies]
    return None if None in found else _mean(found)


def _adapted(accuracy: Mapping[str, Any]) -> bool:
    """Return whether the last round's models are not those the clients received."""
    before: Mapping[str, Any] = accuracy.get("before") or accuracy
    return any(before.get(key) != accuracy.get(key) for key in ("mean", "weighted", "per_client"))


def _percent(fraction: float | None) -> float | None:
    return _times(100, fraction)


def _times(scale: int, value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else round(scale * value, 4)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(mean(known), 4) if known else None


def _per_client(found: Sequence[Mapping[str, Any]], measure: str) -> list[float | None]:
    """Average every client or domain over the seeds, unless the seeds have different partitions."""
    if measure != "deployed" and len({summary["partition_hash"] for summary in found}) > 1:
        return []
    runs = [headline(summary, measure)["per_client"] for summary in found]
    return [_mean([_percent(value) for value in client]) for client in zip(*runs, strict=True)]


def _traffic(summary: Mapping[str, Any], per_round: int) -> ClientTraffic:
    sent, contacts = summary["traffic"], summary["rounds"] * per_round
    return {
        "down_floats": sent["down_floats"],
        "up_floats": sent["up_floats"],
        "down_bytes": round(sent["down_bytes"] / contacts, 1),
        "up_bytes": round(sent["up_bytes"] / contacts, 1),
    }
