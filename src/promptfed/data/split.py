"""Which images are for testing, and a smaller training set: both the same on every machine."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from promptfed.data.dataset import Dataset, Indices


def stratified(labels: Indices, domains: Indices, fraction: float, seed: int) -> NDArray[np.bool_]:
    """Return a test mask [N] holding `fraction` of each class in each domain, never all of its images."""
    test = np.zeros(len(labels), bool)
    for domain, label in sorted(set(zip(domains.tolist(), labels.tolist(), strict=True))):
        members = np.flatnonzero((labels == label) & (domains == domain))
        count = min(int(len(members) * fraction + 0.5), len(members) - 1)
        test[np.random.default_rng([seed, domain, label]).permutation(members)[:count]] = True
    return test


def fewer(data: Dataset, limit: int) -> Dataset:
    """Return `data` with the first `limit` training images per class and domain (0: all), and all test images."""
    if limit == 0:
        return data
    keep = data.test.copy()
    group = data.domains * len(data.classes) + data.labels
    for one in np.unique(group):
        keep[np.flatnonzero((group == one) & ~data.test)[:limit]] = True
    return replace(
        data,
        images=data.images[keep],
        labels=data.labels[keep],
        test=data.test[keep],
        domains=data.domains[keep],
    )
