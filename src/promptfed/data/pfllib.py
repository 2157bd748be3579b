"""Splits compatible with PFLlib and the pFedPT authors' code, whose published numbers were made with them.

Official training and test images are merged and split over the clients; then each client's images are divided at
random, not by class, into training and test. What this does to the sizes is part of the compatibility: classes are
filled in the order of client ids, and where sizes are unbalanced the last holder of a class gets all that is left.
The number of a class's holders is rounded up, as in PFLlib; the authors' older copy rounds it down, which is the same
in all of their settings. With `draw = "authors"` the clients are the very ones of the authors' published script.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np
from numpy.random import Generator

from promptfed.core.errors import PromptFedError, choice
from promptfed.data.authors_draw import authors_state, deal_dirichlet, deal_in_order, divide
from promptfed.data.dataset import Dataset, Indices
from promptfed.data.deal import NO_CLIENT, Counts, apportion, proportions
from promptfed.data.partitioners import require_classes, require_images, require_positive, require_whole
from promptfed.data.shares import Partition, from_owners, grouped

TRAIN_FRACTION = 0.75
LEAST_IMAGES = 8
TRIES = 1000
Draw = Literal["seed", "authors"]
"""From the run's seed, or as the pFedPT authors' script draws, which has a seed of its own."""


@dataclass(frozen=True)
class PfllibIid:
    """Every class on every client; unless balanced, in the sizes of PFLlib's usual command: the last is a giant."""

    name: ClassVar[str] = "pfllib-iid"
    train_fraction: float = TRAIN_FRACTION
    balanced: bool = False
    draw: Draw = "seed"

    def __post_init__(self) -> None:
        require_fraction(self.train_fraction)
        require_balanced(self.balanced)
        require_draw(self.draw)

    def split(self, dataset: Dataset, clients: int, rng: Generator) -> Partition:
        """Let every client hold every class."""
        require_images(clients, len(dataset), "images")
        return ordered_split(self, dataset, clients, len(dataset.classes), rng)


@dataclass(frozen=True)
class PfllibPathological:
    """A few classes each, filled in the order of client ids: blocks of clients share one set of classes."""

    name: ClassVar[str] = "pfllib-pathological"
    classes_per_client: int = 5
    balanced: bool = False
    train_fraction: float = TRAIN_FRACTION
    draw: Draw = "seed"

    def __post_init__(self) -> None:
        require_whole("partition.classes_per_client", self.classes_per_client)
        require_fraction(self.train_fraction)
        require_balanced(self.balanced)
        require_draw(self.draw)

    def split(self, dataset: Dataset, clients: int, rng: Generator) -> Partition:
        """Give each class to the first clients that still need one."""
        require_images(clients, len(dataset), "images")
        require_classes(self.classes_per_client, len(dataset.classes), f'data set "{dataset.name}"')
        return ordered_split(self, dataset, clients, self.classes_per_client, rng)


@dataclass(frozen=True)
class PfllibDirichlet:
    """Dir(alpha) shares of each class, none for a client that already has its equal part of all images.

    Drawn again until the smallest client has 8 images.
    """

    name: ClassVar[str] = "pfllib-dirichlet"
    alpha: float = 0.3
    train_fraction: float = TRAIN_FRACTION
    draw: Draw = "seed"

    def __post_init__(self) -> None:
        require_positive("partition.alpha", self.alpha)
        require_fraction(self.train_fraction)
        require_draw(self.draw)

    def split(self, dataset: Dataset, clients: int, rng: Generator) -> Partition:
        """Take the first of at most 1000 draws in which the smallest client has 8 images."""
        require_images(clients, len(dataset), "images")
        if len(dataset) < LEAST_IMAGES * clients:
            raise PromptFedError(
                f"The pfllib-dirichlet partition gives each client at least {LEAST_IMAGES} images: "
                f"{len(dataset)} images are enough for {len(dataset) // LEAST_IMAGES} clients, not {clients}."
            )
        sizes, state = class_sizes(dataset), authors_state()
        for _ in range(TRIES):
            if self.draw == "authors":
                dealt = deal_dirichlet(dataset.labels, len(sizes), clients, self.alpha, state)
                if min(map(len, dealt)) >= LEAST_IMAGES:
                    return divide(self.name, dealt, self.train_fraction, state)
                continue
            plan = capped_plan(sizes, clients, self.alpha, rng)
            if plan.sum() == len(dataset) and plan.sum(axis=0).min() >= LEAST_IMAGES:
                return merged_split(self.name, dataset, plan, self.train_fraction, rng)
        raise PromptFedError(
            f"The pfllib-dirichlet partition with partition.alpha = {self.alpha} left one of {clients} clients with "
            f"fewer than {LEAST_IMAGES} images in each of {TRIES} draws; raise partition.alpha or use fewer clients."
        )


def ordered_split(
    made: PfllibIid | PfllibPathological, dataset: Dataset, clients: int, per_client: int, rng: Generator
) -> Partition:
    """Fill the clients in order with so many classes each."""
    sizes = class_sizes(dataset)
    if made.draw == "authors":
        state = authors_state()
        dealt = deal_in_order(dataset.labels, len(sizes), clients, per_client, made.balanced, LEAST_IMAGES, state)
        return divide(made.name, dealt, made.train_fraction, state)
    plan = holders_in_order(sizes, clients, per_client, made.balanced, rng)
    return merged_split(made.name, dataset, plan, made.train_fraction, rng)


def class_sizes(dataset: Dataset) -> Indices:
    """Images per class, training and test together."""
    return np.bincount(dataset.labels, minlength=len(dataset.classes))


def holders_in_order(sizes: Indices, clients: int, per_client: int, balanced: bool, rng: Generator) -> Counts:
    """Images of each class for the first clients that still lack classes, [classes, clients]."""
    plan = np.zeros((len(sizes), clients), dtype=np.int64)
    lacking = np.full(clients, per_client)
    most = -(-clients * per_client // len(sizes))
    for row, size in zip(plan, sizes, strict=True):
        holders = np.flatnonzero(lacking)[:most]
        lacking[holders] -= 1
        if len(holders):
            row[holders] = holder_amounts(int(size), len(holders), balanced, rng)
    return plan


def holder_amounts(size: int, holders: int, balanced: bool, rng: Generator) -> Indices:
    """Equal or random amounts for all holders of a class but the last, who gets the remainder."""
    part = max(1, size // holders)
    # At least one image each, where there are enough: only classes with fewer than ten images a holder can tell.
    low = max(1, size // (10 * holders))
    amounts = np.full(holders - 1, part) if balanced else rng.integers(low, max(part, low + 1), holders - 1)
    ends = np.append(np.minimum(np.cumsum(amounts), size), size)
    return np.diff(ends, prepend=0)


def capped_plan(sizes: Indices, clients: int, alpha: float, rng: Generator) -> Counts:
    """One draw of the images of each class for each client, [classes, clients].

    It is incomplete where all the shares of a class fall on clients that are full.
    """
    plan = np.zeros((len(sizes), clients), dtype=np.int64)
    held = np.zeros(clients, dtype=np.int64)
    for row, size in zip(plan, sizes, strict=True):
        shares = proportions(alpha, clients, rng) * (held * clients < sizes.sum())
        if not shares.sum():
            break
        row[:] = apportion(shares / shares.sum(), int(size))
        held += row
    return plan


def merged_split(name: str, dataset: Dataset, plan: Counts, train_fraction: float, rng: Generator) -> Partition:
    """Deal every class as planned, official training and test images alike, then divide each client at random."""
    if dataset.patients is not None:
        raise PromptFedError(
            f"partition.name={name} divides images at random, so a patient could be in training and in testing; "
            "choose a partition whose name does not begin with pfllib-."
        )
    owner = np.full(len(dataset), NO_CLIENT, dtype=np.int64)
    for label, row in enumerate(plan):
        images = rng.permutation(np.flatnonzero(dataset.labels == label))
        owner[images[: row.sum()]] = np.repeat(np.arange(len(row)), row)
    test = np.zeros(len(dataset), dtype=np.bool_)
    for mine in grouped(owner, ~test, plan.shape[1]):
        test[rng.permutation(mine)[max(1, int(train_fraction * len(mine))) :]] = True
    return from_owners(name, owner, test, plan.shape[1])


def require_fraction(value: object) -> None:
    """Refuse a training fraction that is not between 0 and 1."""
    if not isinstance(value, float) or not 0 < value < 1:
        raise PromptFedError(f"partition.train_fraction must be a number between 0 and 1, not {value!r}.")


def require_balanced(value: object) -> None:
    """Refuse what is neither true nor false."""
    if not isinstance(value, bool):
        raise PromptFedError(f"partition.balanced must be true or false, not {value!r}.")


def require_draw(value: object) -> None:
    """Refuse a draw that does not exist."""
    if value not in get_args(Draw):
        raise choice("partition.draw", str(value), get_args(Draw))
