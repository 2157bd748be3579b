"""The ways to split one data set over clients that keep the official test images apart.

Each is a frozen dataclass whose fields are the keys under [partition] in a recipe. Test images follow the training
images: a client is tested on the classes it trains on, in the same proportions. A client may end without any, and
test images of a class that no client trains on stay unused.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.random import Generator

from promptfed.core.errors import PromptFedError
from promptfed.data.dataset import Dataset, Indices
from promptfed.data.deal import (
    NO_CLIENT,
    Flags,
    apportion,
    deal,
    dirichlet_plan,
    draw_classes,
    holders_plan,
    in_proportion,
    proportions,
    top_up,
)
from promptfed.data.lists import ImageLists
from promptfed.data.shares import Partition, from_owners


@dataclass(frozen=True)
class Iid:
    """Shuffled and equal: every client a random sample, sizes within one image of each other."""

    name: ClassVar[str] = "iid"

    def split(self, dataset: Dataset, clients: int, rng: Generator) -> Partition:
        """Deal the shuffled training images round the clients, and likewise the test images."""
        require_images(clients, int((~dataset.test).sum()))
        owner = np.full(len(dataset), NO_CLIENT, dtype=np.int64)
        for part in (~dataset.test, dataset.test):
            images = rng.permutation(np.flatnonzero(part))
            owner[images] = np.arange(len(images)) % clients
        return from_owners(self.name, owner, dataset.test, clients)


@dataclass(frozen=True)
class Dirichlet:
    """Label skew (Hsu, Qi, Brown 2019): the clients' shares of each class are one draw from Dir(alpha).

    A client left with fewer than `min_train` training images is topped up from the largest clients.
    """

    name: ClassVar[str] = "dirichlet"
    alpha: float = 0.3
    min_train: int = 1

    def __post_init__(self) -> None:
        require_positive("partition.alpha", self.alpha)
        require_whole("partition.min_train", self.min_train)

    def split(self, dataset: Dataset, clients: int, rng: Generator) -> Partition:
        """Draw each class's shares, top up, and deal the test images in the proportions that came out."""
        images = int((~dataset.test).sum())
        require_images(clients, images)
        if clients * self.min_train > images:
            raise PromptFedError(
                f"partition.min_train = {self.min_train} asks for {clients * self.min_train} training images "
                f"for {clients} clients but there are only {images}; use at most {images // clients}."
            )
        owner = dirichlet_owners(dataset.labels, dataset.test, clients, self.alpha, self.min_train, rng)
        return from_owners(self.name, owner, dataset.test, clients)


@dataclass(frozen=True)
class Pathological:
    """A few classes each, drawn at random; the images of a class are shared equally by its holders.

    Every class has a holder as soon as clients × classes_per_client reaches the number of classes; before that, the
    images of the other classes stay unused. A client whose classes run out of images gets one of another class.
    """

    name: ClassVar[str] = "pathological"
    classes_per_client: int = 5

    def __post_init__(self) -> None:
        require_whole("partition.classes_per_client", self.classes_per_client)

    def split(self, dataset: Dataset, clients: int, rng: Generator) -> Partition:
        """Draw who holds which class, then share each class out."""
        require_images(clients, int((~dataset.test).sum()))
        where = f'the training part of data set "{dataset.name}"'
        owner = pathological_owners(dataset.labels, dataset.test, clients, self.classes_per_client, rng, where)
        return from_owners(self.name, owner, dataset.test, clients)


@dataclass(frozen=True)
class Disjoint:
    """Consecutive groups of classes, one group per client, with all their images; no two clients share a class."""

    name: ClassVar[str] = "disjoint"
    classes_per_client: int = 2

    def __post_init__(self) -> None:
        require_whole("partition.classes_per_client", self.classes_per_client)

    def split(self, dataset: Dataset, clients: int, rng: Generator) -> Partition:
        """Client i gets classes i·k … i·k + k - 1; classes beyond the last client's stay unused."""
        require_images(clients, int((~dataset.test).sum()))
        require_classes(self.classes_per_client, len(dataset.classes), f'data set "{dataset.name}"')
        most = len(dataset.classes) // self.classes_per_client
        if clients > most:
            raise PromptFedError(
                f"The disjoint partition has no classes left for client {most}: {len(dataset.classes)} classes with "
                f"partition.classes_per_client = {self.classes_per_client} suffice for {most} clients, not {clients}."
            )
        owner = dataset.labels // self.classes_per_client
        return from_owners(self.name, np.where(owner < clients, owner, NO_CLIENT), dataset.test, clients)


@dataclass(frozen=True)
class DisjointRandom:
    """All classes, dealt at random and as equally as can be, with all their images; no two clients share a class."""

    name: ClassVar[str] = "disjoint-random"

    def split(self, dataset: Dataset, clients: int, rng: Generator) -> Partition:
        """Deal the shuffled classes that have training images; the first clients get one more if they do not divide."""
        require_images(clients, int((~dataset.test).sum()))
        present = np.unique(dataset.labels[~dataset.test])
        if clients > len(present):
            raise PromptFedError(
                f"The disjoint-random partition gives every client a class of its own: {len(present)} classes suffice "
                f"for {len(present)} clients, not {clients}."
            )
        holder = np.full(len(dataset.classes), NO_CLIENT, dtype=np.int64)
        holder[rng.permutation(present)] = np.arange(len(present)) % clients
        return from_owners(self.name, holder[dataset.labels], dataset.test, clients)


@dataclass(frozen=True)
class Equal:
    """The same number of random training images each, such as three photographs of one thing; others stay unused.

    With `repeat` the shuffled images are dealt round and round: several clients may hold the same one.
    """

    name: ClassVar[str] = "equal"
    each: int = 3
    repeat: bool = False

    def __post_init__(self) -> None:
        require_whole("partition.each", self.each)

    def split(self, dataset: Dataset, clients: int, rng: Generator) -> Partition:
        """Deal `each` of the shuffled training images to every client, and all test images as equally as can be."""
        require_clients(clients)
        sizes = np.full(clients, self.each, dtype=np.int64)
        return deal_sizes(self.name, dataset, sizes, self.repeat, rng)


@dataclass(frozen=True)
class Quantity:
    """Size skew: client sizes are one draw from Dir(alpha), classes are mixed; at least one training image each.

    `each` is the mean size; 0: all images are dealt. With `repeat` a client that would have none gets one more image,
    and once all are dealt they are dealt again: several clients may hold the same one.
    """

    name: ClassVar[str] = "quantity"
    alpha: float = 0.5
    each: int = 0
    repeat: bool = False

    def __post_init__(self) -> None:
        require_positive("partition.alpha", self.alpha)
        if self.each:
            require_whole("partition.each", self.each)

    def split(self, dataset: Dataset, clients: int, rng: Generator) -> Partition:
        """Treat all images as one class, so that only sizes differ."""
        if self.each or self.repeat:
            require_clients(clients)
            total = clients * self.each or int((~dataset.test).sum())
            sizes = apportion(proportions(self.alpha, clients, rng), total)
            sizes = np.maximum(sizes, 1) if self.repeat else top_up(sizes[None], 1)[0]
            return deal_sizes(self.name, dataset, sizes, self.repeat, rng)
        require_images(clients, int((~dataset.test).sum()))
        owner = dirichlet_owners(np.zeros_like(dataset.labels), dataset.test, clients, self.alpha, 1, rng)
        return from_owners(self.name, owner, dataset.test, clients)


def deal_sizes(name: str, dataset: Dataset, sizes: Indices, repeat: bool, rng: Generator) -> Partition:
    """Deal so many training images to each client, whatever their class, and test images in the same proportions.

    With `repeat` they are dealt round and round; a client holds no image twice, so never more than there are.
    """
    train, test = (rng.permutation(np.flatnonzero(part)) for part in (~dataset.test, dataset.test))
    require_images(1 if repeat else len(sizes), len(train))
    takers = np.repeat(np.arange(len(sizes)), in_proportion(sizes, len(test)))
    if repeat:
        firsts, sizes = np.cumsum(sizes) - sizes, np.minimum(sizes, len(train))
        within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        dealt = train.take(np.repeat(firsts, sizes) + within, mode="wrap")
        tested = test[np.argsort(takers, kind="stable")]
        return Partition(
            name, ImageLists(dealt, sizes), ImageLists(tested, np.bincount(takers, minlength=len(sizes))), repeats=True
        )
    if sizes.sum() > len(train):
        raise PromptFedError(
            f"The partition deals {sizes.sum()} training images to {len(sizes)} clients but there are only "
            f"{len(train)}; use fewer clients, or at most {len(train) // len(sizes)} images each."
        )
    owner = np.full(len(dataset), NO_CLIENT, dtype=np.int64)
    owner[train[: sizes.sum()]] = np.repeat(np.arange(len(sizes)), sizes)
    owner[test] = takers
    return from_owners(name, owner, dataset.test, len(sizes))


def dirichlet_owners(labels: Indices, test: Flags, clients: int, alpha: float, least: int, rng: Generator) -> Indices:
    """Owners when each class is shared in Dir(alpha) proportions; each client has `least` training images or more."""
    plan = dirichlet_plan(np.bincount(labels[~test]), clients, alpha, rng)
    return deal(top_up(plan, least), labels, test, rng)


def pathological_owners(
    labels: Indices, test: Flags, clients: int, per_client: int, rng: Generator, where: str
) -> Indices:
    """Owners when each client holds `per_client` random classes of those that have training images."""
    sizes = np.bincount(labels[~test])
    present = np.flatnonzero(sizes)
    require_classes(per_client, len(present), where)
    held = np.zeros((len(sizes), clients), dtype=np.bool_)
    held[present] = draw_classes(len(present), per_client, clients, rng)
    return deal(top_up(holders_plan(sizes, held, rng), 1), labels, test, rng)


def require_images(clients: int, images: int, what: str = "training images", where: str = "") -> None:
    """Refuse a split that cannot give every client a training image."""
    require_clients(clients)
    if clients > images:
        raise PromptFedError(
            f"The partition has {clients} clients{where} but only {images} {what}; use at most {images} clients{where}."
        )


def require_clients(clients: int) -> None:
    """Refuse a split over no clients."""
    if clients < 1:
        raise PromptFedError(f"A partition needs at least 1 client, not {clients}.")


def require_classes(per_client: int, classes: int, where: str) -> None:
    """Refuse more classes per client than there are."""
    if per_client > classes:
        raise PromptFedError(f"partition.classes_per_client = {per_client} but {where} has only {classes} classes.")


def require_positive(key: str, value: object) -> None:
    """Refuse anything but a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not (0 < value < math.inf):
        raise PromptFedError(f"{key} must be a finite number above 0, not {value!r}.")


def require_whole(key: str, value: object) -> None:
    """Refuse anything but a whole number from 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise PromptFedError(f"{key} must be a whole number of at least 1, not {value!r}.")
