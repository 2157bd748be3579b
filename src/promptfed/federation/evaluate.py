"""How a set of clients is summed up, the same for every method."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from promptfed.core.arrays import MANY
from promptfed.results.folder.each import Each

Score = dict[str, Any]
"""`mean`, `weighted`, `worst` and `p10`, and `per_client`: a list, or for very many clients an array (`Each`)."""


def score(correct: Sequence[float], count: Sequence[float]) -> Score:
    """Return plain mean, sample-weighted mean, worst client, 10th percentile and every client's accuracy.

    A client without test images has no accuracy (None) and counts nowhere.
    """
    each: Sequence[float | None]
    if len(count) > MANY:
        total = np.array(count, np.float64)
        each = Each.of(np.divide(correct, total, out=np.full(len(total), np.nan), where=total > 0))
        known = each.known
    else:
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


def local_score(trained: Score, received: Score | None, count: Sequence[float]) -> Score | None:
    """Return the score, without each client's, of the participants' `trained` models and what all others `received`.

    Both are of the same moment, right after local training, so `received` is what the round before found; without it,
    or with other clients, there is no such score.
    """
    after, before = trained["per_client"], received["per_client"] if received else None
    if before is None or len(after) != len(before):
        return None
    if isinstance(after, Each):
        values = np.where(np.isnan(after.values), np.array(before, np.float64), after.values)
        images = np.where(np.isnan(values), 0, count)
        found = score((np.nan_to_num(values) * images).tolist(), images.tolist())
        return {name: value for name, value in found.items() if name != "per_client"}
    each = [new if new is not None else old for new, old in zip(after, before, strict=True)]
    tested = [number if value is not None else 0.0 for value, number in zip(each, count, strict=True)]
    found = score([(value or 0.0) * number for value, number in zip(each, tested, strict=True)], tested)
    return {name: value for name, value in found.items() if name != "per_client"}
