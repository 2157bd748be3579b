"""The ways to split one data set over clients that keep the official test images apart.

Each is a frozen dataclass whose fields are the keys under [partition] in a recipe. Test images follow the training
images: a client is tested on the classes it trains on, in the same proportions. A client may end without any, and
test images of a class that nobody trains on stay unused.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from promptfed.core.errors import PromptFedError, choice
from promptfed.data.dataset import Dataset, Images, Indices
from promptfed.data.deal import (
    NOBODY,
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
from promptfed.data.shares import Partition, from_owners

Rng = np.random.Generator
Owners = Callable[[Indices, Flags, str], Indices]


@dataclass(frozen=True)
class Iid:
    """Shuffled and equal: every client a random sample, sizes within one image of each other."""

    name: ClassVar[str] = "iid"

    def split(self, dataset: Dataset, clients: int, rng: Rng) -> Partition:
        """Deal the shuffled training images round the clients, and likewise the test images."""
        require_images(clients, int((~dataset.test).sum()))
        owner = np.full(len(dataset), NOBODY, dtype=np.int64)
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

    def split(self, dataset: Dataset, clients: int, rng: Rng) -> Partition:
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

    def split(self, dataset: Dataset, clients: int, rng: Rng) -> Partition:
        """Draw who holds which class, then share each class out."""
        require_images(clients, int((~dataset.test).sum()))
        where = f'the training part of data set "{dataset.name}"'
        owner = pathological_owners(dataset.labels, dataset.test, clients, self.classes_per_client, rng, where)
        return from_owners(self.name, owner, dataset.test, clients)


@dataclass(frozen=True)
class Disjoint:
    """Consecutive groups of classes, one group per client, with all their images; nobody shares a class."""

    name: ClassVar[str] = "disjoint"
    classes_per_client: int = 2

    def __post_init__(self) -> None:
        require_whole("partition.classes_per_client", self.classes_per_client)

    def split(self, dataset: Dataset, clients: int, rng: Rng) -> Partition:
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
        return from_owners(self.name, np.where(owner < clients, owner, NOBODY), dataset.test, clients)


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

    def split(self, dataset: Dataset, clients: int, rng: Rng) -> Partition:
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

    def split(self, dataset: Dataset, clients: int, rng: Rng) -> Partition:
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


@dataclass(frozen=True)
class Aspects:
    """One aspect each: k-means on the images' colours, a client per cluster, so that each sees one look of a thing.

    A colour is the mean over one of `cells` × `cells` parts of the image. Test images go to the nearest cluster.
    """

    name: ClassVar[str] = "aspects"
    needs_images: ClassVar[bool] = True
    cells: int = 4

    def __post_init__(self) -> None:
        require_whole("partition.cells", self.cells)

    def split(self, dataset: Dataset, clients: int, rng: Rng) -> Partition:
        """Cluster the training images; a client left without any gets one of the largest cluster."""
        require_images(clients, int((~dataset.test).sum()))
        look = colours(dataset.images, self.cells)
        owner = np.empty(len(dataset), dtype=np.int64)
        owner[~dataset.test], centres = clusters(look[~dataset.test], clients, int(rng.integers(2**31)))
        far = np.square(look[dataset.test][:, None] - centres).sum(-1)
        owner[dataset.test] = far.argmin(1)
        return from_owners(self.name, owner, dataset.test, clients)


@dataclass(frozen=True)
class Domain:
    """One client per domain, in the order of the domains, with all the domain's images.

    Nobody holds the images of the domain called `unseen`.
    """

    name: ClassVar[str] = "domain"
    unseen: str = ""

    def split(self, dataset: Dataset, clients: int, rng: Rng) -> Partition:
        """Make the domain of each image its owner."""
        owner, domains = dataset.domains, len(dataset.domain_names)
        if self.unseen:
            left_out = domain_number(dataset, self.unseen)
            owner = np.where(owner == left_out, NOBODY, owner - (owner > left_out))
            domains -= 1
        if clients != domains:
            less = f' less "{self.unseen}"' if self.unseen else ""
            raise PromptFedError(
                f'The domain partition has one client per domain: data set "{dataset.name}" has '
                f"{domains} domains{less}, so use {domains} clients, not {clients}."
            )
        return from_owners(self.name, owner, dataset.test, clients)


@dataclass(frozen=True)
class DomainDirichlet:
    """Clients divided evenly over the domains, and inside a domain Dir(alpha) shares of each class."""

    name: ClassVar[str] = "domain-dirichlet"
    alpha: float = 0.5

    def __post_init__(self) -> None:
        require_positive("partition.alpha", self.alpha)

    def split(self, dataset: Dataset, clients: int, rng: Rng) -> Partition:
        """Split each domain over its own clients: domain d has clients d·k … d·k + k - 1."""
        each = clients_per_domain(self.name, dataset, clients)
        return split_domains(
            self.name, dataset, each, lambda labels, test, _: dirichlet_owners(labels, test, each, self.alpha, 1, rng)
        )


@dataclass(frozen=True)
class DomainPathological:
    """Clients divided evenly over the domains, and inside a domain a few random classes each."""

    name: ClassVar[str] = "domain-pathological"
    classes_per_client: int = 3

    def __post_init__(self) -> None:
        require_whole("partition.classes_per_client", self.classes_per_client)

    def split(self, dataset: Dataset, clients: int, rng: Rng) -> Partition:
        """Split each domain over its own clients: domain d has clients d·k … d·k + k - 1."""
        each, per_client = clients_per_domain(self.name, dataset, clients), self.classes_per_client
        return split_domains(
            self.name,
            dataset,
            each,
            lambda labels, test, where: pathological_owners(labels, test, each, per_client, rng, where),
        )


def deal_sizes(name: str, dataset: Dataset, sizes: Indices, repeat: bool, rng: Rng) -> Partition:
    """Deal so many training images to each client, whatever their class, and test images in the same proportions.

    With `repeat` they are dealt round and round; a client holds no image twice, so never more than there are.
    """
    train, test = (rng.permutation(np.flatnonzero(part)) for part in (~dataset.test, dataset.test))
    require_images(1 if repeat else len(sizes), len(train))
    takers = np.repeat(np.arange(len(sizes)), in_proportion(sizes, len(test)))
    if repeat:
        firsts, sizes = np.cumsum(sizes) - sizes, np.minimum(sizes, len(train))
        dealt = [train.take(range(first, first + size), mode="wrap") for first, size in zip(firsts, sizes, strict=True)]
        return Partition(name, tuple(dealt), tuple(test[takers == n] for n in range(len(sizes))), repeats=True)
    if sizes.sum() > len(train):
        raise PromptFedError(
            f"The partition deals {sizes.sum()} training images to {len(sizes)} clients but there are only "
            f"{len(train)}; use fewer clients, or at most {len(train) // len(sizes)} images each."
        )
    owner = np.full(len(dataset), NOBODY, dtype=np.int64)
    owner[train[: sizes.sum()]] = np.repeat(np.arange(len(sizes)), sizes)
    owner[test] = takers
    return from_owners(name, owner, dataset.test, len(sizes))


def colours(images: Images, cells: int) -> NDArray[np.float64]:
    """Return the mean colours of cells × cells parts of each image [N, H, W, 3], from 0 to 1, as [N, cells² · 3]."""
    rows, columns = (np.arange(cells) * side // cells for side in images.shape[1:3])
    if cells > min(images.shape[1:3]):
        raise PromptFedError(
            f"partition.cells = {cells} but the images have {images.shape[1]} × {images.shape[2]} pixels."
        )
    sums = np.add.reduceat(np.add.reduceat(images, rows, axis=1, dtype=np.float64), columns, axis=2)
    heights, widths = (
        np.diff(np.append(starts, side)) for starts, side in zip((rows, columns), images.shape[1:3], strict=True)
    )
    means: NDArray[np.float64] = sums / (255 * heights[:, None, None] * widths[:, None])
    return means.reshape(len(images), -1)


def clusters(look: NDArray[np.float64], count: int, seed: int) -> tuple[Indices, NDArray[np.float64]]:
    """Return the k-means cluster of each row [N], none of them empty, and the clusters' centres."""
    try:
        from sklearn.cluster import KMeans
    except ImportError as error:
        raise PromptFedError(
            'The aspects partition needs the [analysis] extra: pip install "promptfed[analysis]".'
        ) from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fewer different images than clusters; mended below
        found = KMeans(count, n_init=4, random_state=seed).fit(look)
    owner = found.labels_.astype(np.int64)
    for empty in np.flatnonzero(np.bincount(owner, minlength=count) == 0):
        owner[np.flatnonzero(owner == np.bincount(owner).argmax())[-1]] = empty
    return owner, found.cluster_centers_


def domain_number(dataset: Dataset, name: str) -> int:
    """Return the number of the domain of that name."""
    if name not in dataset.domain_names:
        raise choice("domain", name, dataset.domain_names, f'data set "{dataset.name}"')
    return dataset.domain_names.index(name)


def domain_last(dataset: Dataset, name: str) -> Dataset:
    """Return the same images with the domain of that name counted last, so that the others' numbers have no gap."""
    number, last = domain_number(dataset, name), len(dataset.domain_names) - 1
    others = tuple(one for one in dataset.domain_names if one != name)
    domains = np.where(dataset.domains == number, last, dataset.domains - (dataset.domains > number))
    return replace(dataset, domains=domains, domain_names=(*others, name))


def dirichlet_owners(labels: Indices, test: Flags, clients: int, alpha: float, least: int, rng: Rng) -> Indices:
    """Owners when each class is shared in Dir(alpha) proportions and nobody has fewer than `least` training images."""
    plan = dirichlet_plan(np.bincount(labels[~test]), clients, alpha, rng)
    return deal(top_up(plan, least), labels, test, rng)


def pathological_owners(labels: Indices, test: Flags, clients: int, per_client: int, rng: Rng, where: str) -> Indices:
    """Owners when each client holds `per_client` random classes of those that have training images."""
    sizes = np.bincount(labels[~test])
    present = np.flatnonzero(sizes)
    require_classes(per_client, len(present), where)
    held = np.zeros((len(sizes), clients), dtype=np.bool_)
    held[present] = draw_classes(len(present), per_client, clients, rng)
    return deal(top_up(holders_plan(sizes, held, rng), 1), labels, test, rng)


def clients_per_domain(name: str, dataset: Dataset, clients: int) -> int:
    """How many clients each domain gets."""
    domains = len(dataset.domain_names)
    if clients < 1 or clients % domains:
        near = max(1, round(clients / domains)) * domains
        raise PromptFedError(
            f'The {name} partition divides clients evenly over the {domains} domains of "{dataset.name}"; '
            f"use {near} clients, not {clients}."
        )
    return clients // domains


def split_domains(name: str, dataset: Dataset, each: int, owners: Owners) -> Partition:
    """Split every domain by itself over `each` clients of its own."""
    owner = np.full(len(dataset), NOBODY, dtype=np.int64)
    for domain, label in enumerate(dataset.domain_names):
        images = np.flatnonzero(dataset.domains == domain)
        test, where = dataset.test[images], f'the training part of domain "{label}"'
        require_images(each, int((~test).sum()), where=f' in domain "{label}"')
        local = owners(dataset.labels[images], test, where)
        owner[images] = np.where(local == NOBODY, NOBODY, local + domain * each)
    return from_owners(name, owner, dataset.test, each * len(dataset.domain_names))


def require_images(clients: int, images: int, what: str = "training images", where: str = "") -> None:
    """Refuse a split that cannot give every client a training image."""
    require_clients(clients)
    if clients > images:
        raise PromptFedError(
            f"The partition has {clients} clients{where} but only {images} {what}; use at most {images} clients{where}."
        )


def require_clients(clients: int) -> None:
    """Refuse a split over nobody."""
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
