"""The same measures for very many clients: no step takes one client at a time, and no array has clients and resamples.

Every image is weighted: by one, or by how often a resample has it. What is counted of a client's images follows from
sums over cells, the pairs of a client and a class (or a bin of confidence) that occur.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptfed.results.folder.each import Each
from promptfed.results.folder.predictions import Predictions
from promptfed.results.metrics import LESS_IS_BETTER, METRICS
from promptfed.results.metrics.ranking import auroc
from promptfed.results.metrics.resampling import interval
from promptfed.results.metrics.tallies import BINS, COUNTED, Tallies, find_bins

RESAMPLES = 200  # each goes over all images: with so many clients, a mean hardly varies

Array = NDArray[np.float64]
Numbers = NDArray[Any]


@dataclass(frozen=True)
class Cells:
    """The pairs of a client and a number that occur, and which of them an image belongs to."""

    client: Numbers  # of each cell
    of: tuple[Numbers, ...]  # for each list of numbers given: the cell of each image

    @classmethod
    def find(cls, client: Numbers, most: int, *numbers: Numbers) -> "Cells":
        """Find the cells of images [N] of these clients, with numbers below `most`."""
        pairs = np.concatenate([client.astype(np.int64) * most + one for one in numbers])
        cells, places = np.unique(pairs, return_inverse=True)
        return cls(cells // most, tuple(np.split(places, len(numbers))))

    def sum(self, which: int, weights: Numbers) -> Array:
        """Sum the images' weights in every cell."""
        return np.bincount(self.of[which], weights, minlength=len(self.client)).astype(np.float64)

    def mean(self, values: Array, counts: NDArray[np.bool_], clients: int) -> Array:
        """Return the mean of the values that count, of every client."""
        total = np.bincount(self.client, np.where(counts, values, 0), minlength=clients)
        return _divided(total, np.bincount(self.client, counts, minlength=clients))


class Crowd:
    """The answers of very many clients, measured under any weights of the images."""

    def __init__(self, found: Predictions) -> None:
        self.found, self.right = found, (found.label == found.predicted).astype(np.float64)
        self.classes = Cells.find(found.client, found.classes, found.label, found.predicted)
        self.bins = find_bins(found.confidence)
        self.binned = Cells.find(found.client, BINS, self.bins)
        self.sizes = np.bincount(found.client, minlength=found.clients)
        self.starts = np.cumsum(self.sizes) - self.sizes
        ranked = None if found.probabilities is None else auroc(found.label, found.probabilities)
        self.pooled_area, self.pooled_moved = ranked or (np.nan, np.zeros(len(found)))
        self.areas, self.moved = _areas(found, self.sizes)

    def draw(self, rng: np.random.Generator) -> Array:
        """Return how often one resample, drawn within each client, has each image."""
        sizes, starts = (np.repeat(part, self.sizes) for part in (self.sizes, self.starts))
        drawn = starts + (rng.random(len(sizes)) * sizes).astype(np.int64)
        return np.bincount(drawn, minlength=len(sizes)).astype(np.float64)

    def tally(self, weights: Array) -> Tallies:
        """Count all images together."""
        found, hits = self.found, weights * self.right

        def summed(where: Numbers, values: Array, size: int) -> Array:
            return np.bincount(where, values, minlength=size).astype(np.float64)[None]

        return Tallies(
            hits=summed(found.label, hits, found.classes),
            held=summed(found.label, weights, found.classes),
            given=summed(found.predicted, weights, found.classes),
            sure=summed(self.bins, weights * found.confidence, BINS),
            right=summed(self.bins, hits, BINS),
            count=summed(self.bins, weights, BINS),
        )

    def pooled_auroc(self, weights: Array) -> float:
        """Return the area of all images together, to first order in the weights."""
        return float(np.clip(self.pooled_area + (weights - 1) @ self.pooled_moved, 0, 1))

    def measure(self, weights: Array) -> dict[str, Array]:
        """Return every measure of every client [C], NaN where it is not defined."""
        clients, found, hits = self.found.clients, self.found, weights * self.right
        total = np.bincount(found.client, weights, minlength=clients)
        held, given = self.classes.sum(0, weights), self.classes.sum(1, weights)
        right, both = self.classes.sum(0, hits), held + given
        gap = np.abs(self.binned.sum(0, weights * found.confidence) - self.binned.sum(0, hits))
        moved = np.bincount(found.client, (weights - 1) * self.moved, minlength=clients)
        return {
            "accuracy": _divided(np.bincount(found.client, hits, minlength=clients), total),
            "balanced_accuracy": self.classes.mean(_divided(right, held), held > 0, clients),
            "macro_f1": self.classes.mean(_divided(2 * right, both), both > 0, clients),
            "auroc": np.clip(self.areas + moved, 0, 1),
            "ece": _divided(np.bincount(self.binned.client, gap, minlength=clients), total),
        }


def measure_crowd(found: Predictions, seed: int) -> tuple[Tallies, Tallies, dict[str, dict[str, Any]]]:
    """Return the counts of all images, those of every resample, and each measure with its intervals."""
    crowd, rng = Crowd(found), np.random.default_rng(seed)
    ones = np.ones(len(found))
    plain, each = crowd.tally(ones), crowd.measure(ones)
    worst = {metric: _worst(metric, values) for metric, values in each.items()}
    tallies, areas = [], []
    means: dict[str, list[float]] = {metric: [] for metric in METRICS}
    lows: dict[str, list[float]] = {metric: [] for metric in METRICS}
    for _ in range(RESAMPLES):
        weights = crowd.draw(rng)
        tallies.append(crowd.tally(weights))
        areas.append(crowd.pooled_auroc(weights))
        for metric, values in crowd.measure(weights).items():
            place = worst[metric]
            means[metric].append(_mean(values))
            lows[metric].append(np.nan if place is None else float(values[place]))
    drawn = Tallies(*(np.concatenate(parts) for parts in zip(*(vars(one).values() for one in tallies), strict=True)))
    pooled = {metric: float(count(plain)[0]) for metric, count in COUNTED.items()} | {"auroc": crowd.pooled_area}
    spread = {metric: count(drawn) for metric, count in COUNTED.items()} | {"auroc": np.array(areas)}
    return (
        plain,
        drawn,
        {
            metric: {
                "pooled": _plain(pooled[metric]),
                "pooled_interval": interval(spread[metric]) if pooled[metric] == pooled[metric] else None,
                "mean": _plain(_mean(each[metric])),
                "mean_interval": interval(np.array(means[metric])),
                "worst": None if (place := worst[metric]) is None else float(each[metric][place]),
                "worst_interval": interval(np.array(lows[metric])),
                "worst_client": place,
                "per_client": Each.of(each[metric]),
                "per_client_intervals": None,
            }
            for metric in METRICS
        },
    )


def _areas(found: Predictions, sizes: Numbers) -> tuple[Array, Array]:
    """Return each client's mean one-vs-rest AUROC [C], and its derivative by each image's weight [N]."""
    values, counted, moved = np.zeros(found.clients), np.zeros(found.clients), np.zeros(len(found))
    if found.probabilities is None:
        return np.full(found.clients, np.nan), moved
    for k in np.unique(found.label):
        positive, score = found.label == k, found.probabilities[:, k]
        high = np.bincount(found.client[positive], minlength=found.clients)
        low = sizes - high
        both = (high > 0) & (low > 0)
        others = np.where(positive, low[found.client], high[found.client])
        below = _ranks(found.client, score, positive * 0) - _ranks(found.client, score, positive)
        share = _divided(below, others)
        beaten = np.where(positive, share, 1 - share)  # a negative image: the share of positives above it
        area = _divided(np.bincount(found.client[positive], share[positive], minlength=found.clients), high)
        own = np.where(positive, high[found.client], low[found.client])
        here = both[found.client]
        moved += np.where(here, _divided(beaten - area[found.client], own), 0)
        values, counted = values + np.where(both, area, 0), counted + both
    return _divided(values, counted), _divided(moved, counted[found.client], 0.0)


def _ranks(client: Numbers, score: Numbers, side: Numbers) -> Array:
    """Return how many images of the same client and side have a lower score, equal ones counting half."""
    order = np.lexsort((score, side, client))
    ordered = [part[order] for part in (client, side, score)]
    group = np.concatenate(([True], np.any([part[1:] != part[:-1] for part in ordered[:2]], 0)))
    tie = group | np.concatenate(([True], ordered[2][1:] != ordered[2][:-1]))
    place = np.arange(len(order))
    first = np.maximum.accumulate(np.where(group, place, 0))
    ties = np.cumsum(tie) - 1
    starts = np.flatnonzero(tie)
    middle = starts + np.diff(np.append(starts, len(order))) / 2
    found = np.empty(len(order))
    found[order] = middle[ties] - first
    return found


def _worst(metric: str, values: Array) -> int | None:
    if np.isnan(values).all():
        return None
    return int(np.nanargmax(values) if metric in LESS_IS_BETTER else np.nanargmin(values))


def _mean(values: Array) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else np.nan


def _plain(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _divided(top: Numbers, bottom: Numbers, otherwise: float = np.nan) -> Array:
    """Divide; what is divided by zero is `otherwise`."""
    found: Array = np.divide(top, bottom, out=np.full(np.shape(top), otherwise), where=np.asarray(bottom) > 0)
    return found
