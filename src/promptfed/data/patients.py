"""Test images by patient and by content: whoever, and whatever, is in testing is not in training."""

import hashlib

import numpy as np
from numpy.typing import NDArray

from promptfed.data.dataset import Images, Indices

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


def copies_of(images: Images) -> Indices:
    """Return a number for each image [N], the same for images that are equal pixel by pixel."""
    same = np.unique([hashlib.sha256(image).digest() for image in images], return_inverse=True)[1]
    return same.astype(np.int64)


def linked(one: Indices, other: Indices) -> Indices:
    """Return a number for each image [N], the same for those that a chain of equal numbers in either links."""
    group, before = one, np.empty(0, np.int64)
    while not np.array_equal(group, before):
        before = group
        for numbers in (other, one):
            group = together(group, numbers)
    return group


def together(side: NDArray[np.generic], group: Indices) -> Indices:
    """Return the least value of each group for every image in it [N]."""
    values = side.astype(np.int64)
    least = np.full(int(group.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(least, group, values)
    return least[group]


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
