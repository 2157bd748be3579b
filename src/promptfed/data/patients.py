"""Test images by patient: whoever is in testing is not in training."""

import numpy as np
from numpy.typing import NDArray

from promptfed.data.dataset import Indices

Mask = NDArray[np.bool_]


def whole_patients(labels: Indices, domains: Indices, patients: Indices, fraction: float, seed: int) -> Mask:
    """Return a test mask [N] of whole patients, with about `fraction` of each class in each domain, never all of it."""
    kinds = sorted(set(zip(domains.tolist(), labels.tolist(), strict=True)))
    stratum = np.array([kinds.index(one) for one in zip(domains.tolist(), labels.tolist(), strict=True)], np.int64)
    people, person = np.unique(patients, return_inverse=True)
    images = np.zeros((len(people), len(kinds)), np.int64)  # of each patient in each class of each domain
    np.add.at(images, (person, stratum), 1)
    usual = images.argmax(1) if len(kinds) else np.zeros(len(people), np.int64)
    tested = np.zeros(len(people), np.bool_)
    for number, (domain, label) in enumerate(kinds):
        members = np.flatnonzero(usual == number)
        order = np.random.default_rng([seed, domain, label]).permutation(members)
        tested[_nearest(order, images.sum(1), fraction)] = True
    _give_back(tested, images)
    return tested[person]


def _nearest(order: Indices, sizes: Indices, fraction: float) -> list[int]:
    """Return the patients, in this order, that bring the tested images nearest to the fraction; one is left."""
    wanted, taken, chosen = float(sizes[order].sum()) * fraction, 0, list[int]()
    for one in order.tolist():
        if len(chosen) < len(order) - 1 and taken + sizes[one] / 2 <= wanted:
            chosen.append(one)
            taken += int(sizes[one])
    return chosen


def _give_back(tested: Mask, images: Indices) -> None:
    """Return to training the smallest patient of every class in a domain that has nothing else to train on."""
    for column in images.T:
        if not column[~tested].any():
            holders = np.flatnonzero(column)
            tested[holders[images[holders].sum(1).argmin()]] = False
