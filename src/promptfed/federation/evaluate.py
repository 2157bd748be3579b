"""How a set of clients is summed up, the same for every method."""

from collections.abc import Sequence

import numpy as np

Score = dict[str, float | list[float | None] | None]


def score(correct: Sequence[float], count: Sequence[float]) -> Score:
    """Return plain mean, sample-weighted mean, worst client, 10th percentile and every client's accuracy.

    A client without test images has no accuracy (None) and counts nowhere.
    """
    each = [right / total if total else None for right, total in zip(correct, count, strict=True)]
    known = np.array([value for value in each if value is not None])
    if not len(known):
        return {"mean": None, "weighted": None, "worst": None, "p10": None, "per_client": each}
    return {
        "mean": float(known.mean()),
        "weighted": float(sum(correct) / sum(count)),
        "worst": float(known.min()),
        "p10": float(np.percentile(known, 10)),
        "per_client": each,
    }
