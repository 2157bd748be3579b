"""Which images are for testing or validation, and a smaller training set: all the same on every machine."""

from dataclasses import replace
from itertools import compress
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from promptfed.core.errors import PromptFedError, choice
from promptfed.data.dataset import Dataset, Indices
from promptfed.data.patients import whole_patients
from promptfed.data.shares import Partition

Split = Literal["test", "val"]
SHARE = 0.2  # of the training images validates, where a data set does not say which


def stratified(
    labels: Indices, domains: Indices, fraction: float, seed: int, patients: Indices | None = None
) -> NDArray[np.bool_]:
    """Return a test mask [N] holding `fraction` of each class in each domain, never all of its images.

    Where `patients` are known, all images of one are on the same side, and the fraction is met as nearly as can be.
    """
    if patients is not None:
        return whole_patients(labels, domains, patients, fraction, seed)
    test = np.zeros(len(labels), bool)
    for domain, label in sorted(set(zip(domains.tolist(), labels.tolist(), strict=True))):
        members = np.flatnonzero((labels == label) & (domains == domain))
        count = min(int(len(members) * fraction + 0.5), len(members) - 1)
        test[np.random.default_rng([seed, domain, label]).permutation(members)[:count]] = True
    return test


def evaluated_on(dataset: Dataset, split: Split, seed: int, share: float = SHARE) -> Dataset:
    """Return `dataset` as it is evaluated on its "test" images, or on its "val" images without any test image.

    Where there are no official validation images, `seed` chooses a `share` of each class in each domain of the
    training images. No image moves: what is left out is marked in `used`.
    """
    if split not in get_args(Split):
        raise choice("evaluation split", split, get_args(Split))
    if split == "test":
        return dataset if dataset.val is None else replace(dataset, used=dataset.dealt, val=None)
    train = dataset.dealt & ~dataset.test
    if dataset.val is None:
        rows = np.flatnonzero(train)
        held_out = np.zeros(len(dataset), np.bool_)
        patients = None if dataset.patients is None else dataset.patients[rows]
        held_out[rows[stratified(dataset.labels[rows], dataset.domains[rows], share, seed, patients)]] = True
    else:
        held_out = dataset.val if dataset.used is None else dataset.val & dataset.used
    if not held_out.any():
        raise _too_few(dataset)
    return replace(dataset, test=held_out, val=None, used=train | held_out)


def validated(partition: Partition, dataset: Dataset, seed: int, share: float = SHARE) -> Partition:
    """Return the partition with a `share` of each client's training images in place of its test images, class by class.

    For one that itself says which images test: what it tests on is neither trained on nor looked at.
    """
    train, held_out = [], []
    for rows in partition.train:
        chosen = stratified(dataset.labels[rows], dataset.domains[rows], share, seed)
        train.append(rows[~chosen])
        held_out.append(rows[chosen])
    if not any(map(len, held_out)):
        raise _too_few(dataset)
    return replace(partition, train=tuple(train), test=tuple(held_out))


def _too_few(dataset: Dataset) -> PromptFedError:
    return PromptFedError(
        f'Data set "{dataset.name}" has too few training images to set some aside for validation; '
        "evaluate on its test images."
    )


def fewer(data: Dataset, limit: int) -> Dataset:
    """Return `data` with the first `limit` training images per class and domain (0: all), and all others."""
    if limit == 0:
        return data
    trains = data.dealt & ~data.test
    keep = ~trains
    group = data.domains * len(data.classes) + data.labels
    for one in np.unique(group):
        keep[np.flatnonzero((group == one) & trains)[:limit]] = True
    return replace(
        data,
        images=data.images[keep],
        labels=data.labels[keep],
        test=data.test[keep],
        domains=data.domains[keep],
        val=None if data.val is None else data.val[keep],
        used=None if data.used is None else data.used[keep],
        patients=None if data.patients is None else data.patients[keep],
        columns={key: tuple(compress(values, keep)) for key, values in data.columns.items()},
    )
