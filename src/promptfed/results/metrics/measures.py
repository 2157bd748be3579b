"""From a run's predictions to the measures that summary.json has."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptfed.core.arrays import MANY
from promptfed.results.folder.predictions import Predictions
from promptfed.results.metrics import LESS_IS_BETTER, METRICS
from promptfed.results.metrics.crowds import measure_crowd
from promptfed.results.metrics.ranking import auroc
from promptfed.results.metrics.resampling import LEVEL, RESAMPLES, interval, resamples
from promptfed.results.metrics.tallies import COUNTED, Tallies, recalls, tally

MOST_CLASSES = 200  # with more, a confusion matrix would be most of the summary
MOST_RECALLS = 20_000  # of all clients and classes

Numbers = NDArray[Any]
Line = dict[str, Any]


@dataclass(frozen=True)
class _Spread:
    """The values of every measure: of the images themselves, and of each resample [R]."""

    value: dict[str, float]  # NaN where a measure is not defined
    drawn: dict[str, Numbers]


def measure(found: Predictions, seed: int, headline: str) -> Line:
    """Return every measure per client, of the worst client and of all images, with its interval."""
    ones, drawn, scores = (measure_crowd if found.clients > MANY else _client_by_client)(found, seed)
    worst = scores[headline]["worst_client"]
    return {
        "headline": headline,
        "images": len(found),
        "resamples": len(drawn.count),
        "level": LEVEL,
        **scores,
        "worst_client": worst,
        "recall": _recalls(found, ones, drawn, worst),
        "confusion": _confusions(found, worst),
        "reliability": {
            "pooled": _reliability(ones),
            "worst": None
            if worst is None
            else _reliability(_counted_once(found, np.flatnonzero(found.client == worst))[0]),
        },
    }


def _client_by_client(found: Predictions, seed: int) -> tuple[Tallies, Tallies, dict[str, Line]]:
    """Return the counts of all images, those of every resample, and each measure with its intervals."""
    places = client_rows(found)
    pooled, moved = _ranking(found, np.arange(len(found)))
    ones, drawn = Tallies.zeros(1, found.classes), Tallies.zeros(RESAMPLES, found.classes)
    ranked = np.full(RESAMPLES, pooled)
    each: dict[int, _Spread] = {}
    for client, rows in enumerate(places):
        if not len(rows):
            continue
        plain, again, classes = _counted(found, rows, seed, client)
        own, pull = _ranking(found, rows)
        shifts = np.concatenate([w @ np.stack([pull, moved[rows]], 1) for _, w in resamples(len(rows), seed, client)])
        each[client] = _spread(plain, again, own, own + shifts[:, 0])
        ones.add(plain, classes)
        drawn.add(again, classes)
        ranked = ranked + shifts[:, 1]
    whole = _spread(ones, drawn, pooled, ranked)
    return ones, drawn, {metric: _scores(metric, whole, each, found.clients) for metric in METRICS}


def client_rows(found: Predictions) -> list[Numbers]:
    """Return the rows of every client, for some none."""
    return np.split(np.arange(len(found)), np.searchsorted(found.client, np.arange(1, found.clients)))


def confusion(found: Predictions, client: int | None = None) -> NDArray[np.int64]:
    """Return how many images of each class (down) got each answer (across): of one client, or of all."""
    chosen = slice(None) if client is None else found.client == client
    cells = found.label[chosen].astype(np.int64) * found.classes + found.predicted[chosen]
    return np.bincount(cells, minlength=found.classes**2).reshape(found.classes, found.classes)


def _ranking(found: Predictions, rows: Numbers) -> tuple[float, Numbers]:
    """Return the AUROC of some images and its derivatives; NaN where there is none."""
    ranked = None if found.probabilities is None else auroc(found.label[rows], found.probabilities[rows])
    return ranked or (np.nan, np.zeros(len(rows)))


def _counted(found: Predictions, rows: Numbers, seed: int, client: int) -> tuple[Tallies, Tallies, Numbers]:
    """Count a client's images once, and in every resample, for the classes that occur."""
    parts = found.label[rows], found.predicted[rows], found.confidence[rows]
    plain, classes = _counted_once(found, rows)
    again = [tally(*parts, weights, classes) for _, weights in resamples(len(rows), seed, client)]
    together = [np.concatenate(arrays) for arrays in zip(*(vars(one).values() for one in again), strict=True)]
    return plain, Tallies(*together), classes


def _counted_once(found: Predictions, rows: Numbers) -> tuple[Tallies, Numbers]:
    """Count some images, for the classes that occur."""
    label, predicted = found.label[rows], found.predicted[rows]
    classes = np.union1d(label, predicted)
    return tally(label, predicted, found.confidence[rows], np.ones((1, len(rows)), np.float32), classes), classes


def _spread(plain: Tallies, drawn: Tallies, ranked: float, redrawn: Numbers) -> _Spread:
    value = {metric: float(count(plain)[0]) for metric, count in COUNTED.items()} | {"auroc": ranked}
    again = {metric: count(drawn) for metric, count in COUNTED.items()} | {"auroc": np.clip(redrawn, 0, 1)}
    return _Spread(value, again)


def _scores(metric: str, whole: _Spread, each: dict[int, _Spread], clients: int) -> Line:
    """Return one measure of all images, of the mean over clients, of the worst client and of each client."""
    known = {client: one for client, one in each.items() if not np.isnan(one.value[metric])}
    pick = max if metric in LESS_IS_BETTER else min
    worst = pick(known, key=lambda client: known[client].value[metric], default=None)
    intervals = {client: interval(one.drawn[metric]) for client, one in known.items()}
    return {
        "pooled": _plain(whole.value[metric]),
        "pooled_interval": interval(whole.drawn[metric]),
        "mean": float(np.mean([one.value[metric] for one in known.values()])) if known else None,
        "mean_interval": interval(np.mean([one.drawn[metric] for one in known.values()], 0)) if known else None,
        "worst": known[worst].value[metric] if worst is not None else None,
        "worst_interval": None if worst is None else intervals[worst],
        "worst_client": worst,
        "per_client": [known[c].value[metric] if c in known else None for c in range(clients)],
        "per_client_intervals": [intervals.get(client) for client in range(clients)],
    }


def _recalls(found: Predictions, plain: Tallies, drawn: Tallies, worst: int | None) -> Line:
    """Return the recall of each class, of all images and of clients."""
    few = found.clients * found.classes <= MOST_RECALLS
    return {
        "pooled": _plainly(recalls(plain)[0]),
        "pooled_intervals": [interval(column) for column in recalls(drawn).T],
        "worst": None if worst is None else _own_recalls(confusion(found, worst)),
        "per_client": [_own_recalls(confusion(found, client)) for client in range(found.clients)] if few else None,
    }


def _own_recalls(counts: NDArray[np.int64]) -> list[float | None]:
    return [hits / held if held else None for hits, held in zip(np.diag(counts), counts.sum(1), strict=True)]


def _confusions(found: Predictions, worst: int | None) -> Line | None:
    if found.classes > MOST_CLASSES:
        return None
    return {
        "pooled": confusion(found).tolist(),
        "worst": None if worst is None else confusion(found, worst).tolist(),
    }


def _reliability(plain: Tallies) -> Line:
    """Return how many answers each bin of confidence has, how sure they are and how many of them are right."""
    count = plain.count[0]
    filled = np.where(count > 0, count, np.nan)
    sure, right = (_plainly(part[0] / filled) for part in (plain.sure, plain.right))
    return {"images": count.astype(int).tolist(), "confidence": sure, "accuracy": right}


def _plain(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _plainly(values: Sequence[float] | Numbers) -> list[float | None]:
    return [_plain(value) for value in values]
