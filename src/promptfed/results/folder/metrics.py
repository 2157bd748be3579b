"""What summary.json says beyond accuracy, as frozen values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from promptfed.results.folder.each import Each
from promptfed.results.metrics import METRICS

Interval = tuple[float, float]
Counts = tuple[tuple[int, ...], ...]  # images by class (down) and answer (across)
Shares = tuple[float | None, ...]


@dataclass(frozen=True)
class MetricScores:
    """One measure: of all images together, of the mean over clients, of the worst client and of each client."""

    pooled: float | None
    pooled_interval: Interval | None
    mean: float | None
    mean_interval: Interval | None
    worst: float | None
    worst_interval: Interval | None
    worst_client: int | None
    per_client: Sequence[float | None]


@dataclass(frozen=True)
class ReliabilityBin:
    """The answers of one range of confidence: how many, how sure, and which share of them is right."""

    images: int
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class Metrics:
    """Every measure of a run's final models; `headline` names the one that comes first."""

    headline: str
    images: int
    scores: Mapping[str, MetricScores]
    worst_client: int | None  # by the headline
    recall: Shares
    recall_intervals: tuple[Interval | None, ...]
    worst_recall: Shares
    confusion: Counts | None
    worst_confusion: Counts | None
    reliability: tuple[ReliabilityBin, ...]
    worst_reliability: tuple[ReliabilityBin, ...]


def parse_metrics(raw: Mapping[str, Any] | None) -> Metrics | None:
    """Return the summary's `metrics`, or None if it has none."""
    if raw is None:
        return None
    recall, counts, bins = raw["recall"], raw["confusion"] or {}, raw["reliability"]
    return Metrics(
        headline=str(raw["headline"]),
        images=int(raw["images"]),
        scores={metric: _scores(raw[metric]) for metric in METRICS},
        worst_client=raw["worst_client"],
        recall=tuple(recall["pooled"]),
        recall_intervals=tuple(_interval(one) for one in recall["pooled_intervals"]),
        worst_recall=tuple(recall["worst"] or ()),
        confusion=_counts(counts.get("pooled")),
        worst_confusion=_counts(counts.get("worst")),
        reliability=_bins(bins["pooled"]),
        worst_reliability=_bins(bins["worst"]),
    )


def _bins(raw: Mapping[str, Any] | None) -> tuple[ReliabilityBin, ...]:
    """Return the bins that hold any answer."""
    if raw is None:
        return ()
    parts = zip(raw["images"], raw["confidence"], raw["accuracy"], strict=True)
    return tuple(ReliabilityBin(int(count), float(sure), float(right)) for count, sure, right in parts if count)


def _scores(raw: Mapping[str, Any]) -> MetricScores:
    return MetricScores(
        pooled=raw["pooled"],
        pooled_interval=_interval(raw["pooled_interval"]),
        mean=raw["mean"],
        mean_interval=_interval(raw["mean_interval"]),
        worst=raw["worst"],
        worst_interval=_interval(raw["worst_interval"]),
        worst_client=raw["worst_client"],
        per_client=raw["per_client"] if isinstance(raw["per_client"], Each) else tuple(raw["per_client"]),
    )


def _interval(raw: Any) -> Interval | None:
    return None if raw is None else (float(raw[0]), float(raw[1]))


def _counts(raw: Any) -> Counts | None:
    return None if raw is None else tuple(tuple(map(int, row)) for row in raw)
