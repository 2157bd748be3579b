"""What is counted of a set of images, each as often as its weight says, and the measures that follow from the counts.

Every array has a leading R, one row per weighting of the same images: the plain one, or a bootstrap resample.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

BINS = 15  # of confidence, all of the same width

Array = NDArray[np.float64]
Numbers = NDArray[Any]


@dataclass(frozen=True)
class Tallies:
    """The counts of R weightings, for K classes."""

    hits: Array  # [R, K] right answers
    held: Array  # [R, K] images of a class
    given: Array  # [R, K] answers that name a class
    sure: Array  # [R, BINS] the confidence of the answers, summed
    right: Array  # [R, BINS] right answers
    count: Array  # [R, BINS] all answers

    @classmethod
    def zeros(cls, rows: int, classes: int) -> "Tallies":
        """Return the counts of no image."""
        return cls(*(np.zeros((rows, size)) for size in (classes,) * 3 + (BINS,) * 3))

    def add(self, other: "Tallies", classes: Numbers) -> None:
        """Add counts of some classes in place: with many clients and classes, most of a new array would be zeros."""
        for mine, theirs in ((self.hits, other.hits), (self.held, other.held), (self.given, other.given)):
            mine[:, classes] += theirs
        for mine, theirs in ((self.sure, other.sure), (self.right, other.right), (self.count, other.count)):
            mine += theirs


def find_bins(confidence: Numbers) -> Numbers:
    """Return the bin of each confidence; a bin holds its upper edge."""
    found: Numbers = np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)
    return found


def tally(label: Numbers, predicted: Numbers, confidence: Numbers, weights: Numbers, classes: Numbers) -> Tallies:
    """Count images [n] under weights [R, n], for these classes [K] in ascending order; no others may occur."""
    right = label == predicted
    bins = find_bins(confidence)

    def summed(size: int, where: Numbers, value: Numbers | float) -> Array:
        marks = np.zeros((len(label), size), np.float32)
        marks[np.arange(len(label)), where] = value
        found: Array = (weights @ marks).astype(np.float64)
        return found

    own, said = np.searchsorted(classes, label), np.searchsorted(classes, predicted)
    return Tallies(
        hits=summed(len(classes), own, right),
        held=summed(len(classes), own, 1),
        given=summed(len(classes), said, 1),
        sure=summed(BINS, bins, confidence),
        right=summed(BINS, bins, right),
        count=summed(BINS, bins, 1),
    )


def recalls(found: Tallies) -> Array:
    """Return each class's share of right answers [R, K]; NaN for a class without images."""
    return _divided(found.hits, found.held)


def accuracy(found: Tallies) -> Array:
    """Return the share of right answers [R]."""
    return _divided(found.hits.sum(-1), found.held.sum(-1))


def balanced_accuracy(found: Tallies) -> Array:
    """Return the mean recall of the classes that have images [R]."""
    present = found.held > 0
    return _divided(np.where(present, recalls(found), 0).sum(-1), present.sum(-1))


def macro_f1(found: Tallies) -> Array:
    """Return the mean F1 of the classes that have images or were answered [R]."""
    both = found.held + found.given
    return _divided(np.where(both > 0, _divided(2 * found.hits, both), 0).sum(-1), (both > 0).sum(-1))


def calibration_error(found: Tallies) -> Array:
    """Return the expected calibration error [R]: confidence against right answers, bin by bin."""
    return _divided(np.abs(found.sure - found.right).sum(-1), found.count.sum(-1))


COUNTED = {
    "accuracy": accuracy,
    "balanced_accuracy": balanced_accuracy,
    "macro_f1": macro_f1,
    "ece": calibration_error,
}


def _divided(top: Numbers, bottom: Numbers) -> Array:
    """Divide; what is divided by zero is NaN."""
    found: Array = np.divide(top, bottom, out=np.full(np.shape(top), np.nan), where=np.asarray(bottom) > 0)
    return found
