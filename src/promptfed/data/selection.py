"""Which classes and how many images of a data set a run uses: halves for tests with new classes, and drawn shots."""

from dataclasses import replace
from typing import Literal

import numpy as np

from promptfed.core.errors import PromptFedError
from promptfed.data.dataset import Dataset, Indices
from promptfed.data.shares import Partition

Half = Literal["all", "base", "novel"]
STREAM = 104729  # keeps these draws apart from every other use of the run's seed


def halved(data: Dataset, half: Half) -> Dataset:
    """Return `data` with one half of its classes: the first ones are base, one more if they are odd; the rest novel.

    No image moves. Those of the other half are left out, with labels from len(classes) on, and `others` names them.
    """
    if half == "all":
        return data
    count = len(data.classes)
    if count < 2:
        raise PromptFedError(f'data.half={half} halves the classes, but data set "{data.name}" has only one.')
    order = np.roll(np.arange(count), 0 if half == "base" else -((count + 1) // 2))
    chosen = (count + 1) // 2 if half == "base" else count // 2
    place = np.empty(count, np.int64)
    place[order] = np.arange(count)
    labels = place[data.labels]
    return replace(
        data,
        labels=labels,
        classes=tuple(data.classes[number] for number in order[:chosen]),
        others=tuple(data.classes[number] for number in order[chosen:]),
        # what was left out before is no test image of the other half either
        test=data.test & data.dealt,
        val=None,
        used=data.dealt & (labels < chosen),
    )


def of_other_classes(data: Dataset) -> Indices:
    """Return the test images of the classes that are left out."""
    return np.flatnonzero(data.test & (data.labels >= len(data.classes)))


def few(data: Dataset, shots: int, seed: int) -> Dataset:
    """Return `data` with at most so many training images of each class in each domain, drawn by `seed`.

    The draws are nested: whoever asks for more gets the same ones and others. No image moves.
    """
    train = data.dealt & ~data.test
    kept = np.zeros(len(data), np.bool_)
    kept[_drawn(data, np.flatnonzero(train), shots, (seed,))] = True
    return replace(data, used=data.dealt & (data.test | kept), val=None)


def few_each(partition: Partition, data: Dataset, shots: int, seed: int) -> Partition:
    """Return the partition with at most so many training images of each class at each client, drawn by `seed`."""
    train = tuple(_drawn(data, rows, shots, (seed, client)) for client, rows in enumerate(partition.train))
    return replace(partition, train=train)


def _drawn(data: Dataset, rows: Indices, shots: int, key: tuple[int, ...]) -> Indices:
    """Return at most so many of `rows` of each class in each domain."""
    group = data.domains[rows] * (int(data.labels.max(initial=0)) + 1) + data.labels[rows]
    drawn = []
    for one in np.unique(group):
        members = rows[group == one]
        domain, label = int(data.domains[members[0]]), int(data.labels[members[0]])
        draw = np.random.default_rng([STREAM, *key, domain, label])
        drawn.append(draw.permutation(members)[:shots])
    return np.sort(np.concatenate(drawn)) if drawn else rows
