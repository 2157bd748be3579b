"""Columns of the measures beyond accuracy, by the names that `promptfed compare --measure` takes."""

from collections.abc import Callable, Sequence
from functools import partial

from promptfed.results.folder.reader import RunFolder
from promptfed.results.metrics import LESS_IS_BETTER, METRICS, TITLES

Read = Callable[[RunFolder], float | None]

MEANINGS = {
    "balanced_accuracy": "recall in percent, each class counting once",
    "macro_f1": "F1 in percent, each class counting once",
    "auroc": "area under the ROC curve in percent, each class against the rest",
    "ece": "by how much confidence and accuracy differ, in percent (lower is better)",
}
PLACES = {"": "mean", "worst_": "worst", "pooled_": "pooled"}
WHOSE = {"": "mean of the clients", "worst_": "the worst client", "pooled_": "all test images together"}


def measure_names() -> dict[str, str]:
    """Return every measure beyond accuracy, such as worst_auroc, and its meaning."""
    return {prefix + metric: f"{meaning}, {WHOSE[prefix]}" for metric, meaning in MEANINGS.items() for prefix in PLACES}


def reader(name: str) -> Read:
    """Return the function that reads a measure such as worst_auroc from a run."""
    prefix = next((prefix for prefix in PLACES if prefix and name.startswith(prefix)), "")
    return partial(_read, name.removeprefix(prefix), PLACES[prefix])


def _read(metric: str, place: str, run: RunFolder) -> float | None:
    found: float | None = getattr(run.metrics.scores[metric], place) if run.metrics else None
    return found


def less_is_better(name: str) -> bool:
    """Say whether a measure is better where it is lower."""
    return name.endswith(LESS_IS_BETTER)


def shared_headline(runs: Sequence[RunFolder]) -> str:
    """Return the measure that comes first: what all runs that have any ask for, else accuracy."""
    asked = {run.metrics.headline for run in runs if run.metrics}
    return asked.pop() if len(asked) == 1 else METRICS[0]


def titled(name: str) -> str:
    """Return a measure's name as it is written in a sentence."""
    return TITLES[name]
