"""The area under the ROC curve, and how much each image moves it."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Numbers = NDArray[Any]


def auroc(label: Numbers, probabilities: Numbers) -> tuple[float, Array] | None:
    """Return the mean one-vs-rest AUROC, and its derivative by each image's weight [n].

    A class counts if some images have it and some do not; where none counts, there is no AUROC. For two classes both
    are the same. The derivatives are those of DeLong et al. 1988: they make the value of a resample a weighted sum.
    """
    classes = [k for k in np.unique(label) if (label != k).any()]
    if not classes:
        return None
    each = [_one_class(label == k, probabilities[:, k]) for k in classes]
    moved: Array = np.mean([part for _, part in each], 0)
    return float(np.mean([value for value, _ in each])), moved


def _one_class(positive: Numbers, score: Numbers) -> tuple[float, Array]:
    """Return the share of pairs of a positive and a negative that are in order, ties being half in order."""
    high, low = np.sort(score[positive]), np.sort(score[~positive])
    beaten = _below(low, score[positive]) / len(low)
    beating = 1 - _below(high, score[~positive]) / len(high)
    value = float(beaten.mean())
    moved = np.empty(len(score))
    moved[positive] = (beaten - value) / len(high)
    moved[~positive] = (beating - value) / len(low)
    return value, moved


def _below(ordered: Numbers, values: Numbers) -> Array:
    """Return how many of `ordered` lie below each value, equal ones counting half."""
    left, right = np.searchsorted(ordered, values, "left"), np.searchsorted(ordered, values, "right")
    found: Array = (left + right) / 2
    return found
