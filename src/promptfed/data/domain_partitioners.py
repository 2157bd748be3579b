"""The partitions by domain: one client per domain, or a domain's images split over clients of its own."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.random import Generator

from promptfed.core.errors import PromptFedError, choice
from promptfed.data.dataset import Dataset, Indices
from promptfed.data.deal import NO_CLIENT, Flags, deal
from promptfed.data.partitioners import (
    dirichlet_owners,
    pathological_owners,
    require_images,
    require_positive,
    require_whole,
)
from promptfed.data.pfllib import TRIES, capped_plan, require_balanced
from promptfed.data.shares import Partition, from_owners

LEAST_BALANCED = 10  # training images, as in FedAPT's code
Owners = Callable[[Indices, Flags, str], Indices]


@dataclass(frozen=True)
class Domain:
    """One client per domain, in the order of the domains, with all the domain's images.

    No client holds the images of the domain called `unseen`.
    """

    name: ClassVar[str] = "domain"
    unseen: str = ""

    def split(self, dataset: Dataset, clients: int, rng: Generator) -> Partition:
        """Make the domain of each image its owner."""
        owner, domains = dataset.domains, len(dataset.domain_names)
        if self.unseen:
            left_out = domain_number(dataset, self.unseen)
            owner = np.where(owner == left_out, NO_CLIENT, owner - (owner > left_out))
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
    """Clients divided evenly over the domains, and inside a domain Dir(alpha) shares of each class.

    Balanced as in FedAPT's code, a client that has its equal part of the domain gets nothing of the further classes,
    and all is drawn again until each has 10 images.
    """

    name: ClassVar[str] = "domain-dirichlet"
    alpha: float = 0.5
    balanced: bool = False

    def __post_init__(self) -> None:
        require_positive("partition.alpha", self.alpha)
        require_balanced(self.balanced)

    def split(self, dataset: Dataset, clients: int, rng: Generator) -> Partition:
        """Split each domain over its own clients: domain d has clients d·k … d·k + k - 1."""
        each = clients_per_domain(self.name, dataset, clients)
        owners = self._balanced_owners if self.balanced else self._owners
        return split_domains(
            self.name, dataset, each, lambda labels, test, where: owners(labels, test, each, rng, where)
        )

    def _owners(self, labels: Indices, test: Flags, each: int, rng: Generator, where: str) -> Indices:
        return dirichlet_owners(labels, test, each, self.alpha, 1, rng)

    def _balanced_owners(self, labels: Indices, test: Flags, each: int, rng: Generator, where: str) -> Indices:
        sizes = np.bincount(labels[~test])
        for _ in range(TRIES if sizes.sum() >= LEAST_BALANCED * each else 0):
            plan = capped_plan(sizes, each, self.alpha, rng)
            if plan.sum() == sizes.sum() and plan.sum(axis=0).min() >= LEAST_BALANCED:
                return deal(plan, labels, test, rng)
        raise PromptFedError(
            f"The balanced domain-dirichlet partition with partition.alpha = {self.alpha} cannot give each of {each} "
            f"clients {LEAST_BALANCED} images of {where}; raise partition.alpha or use fewer clients."
        )


@dataclass(frozen=True)
class DomainPathological:
    """Clients divided evenly over the domains, and inside a domain a few random classes each."""

    name: ClassVar[str] = "domain-pathological"
    classes_per_client: int = 3

    def __post_init__(self) -> None:
        require_whole("partition.classes_per_client", self.classes_per_client)

    def split(self, dataset: Dataset, clients: int, rng: Generator) -> Partition:
        """Split each domain over its own clients: domain d has clients d·k … d·k + k - 1."""
        each, per_client = clients_per_domain(self.name, dataset, clients), self.classes_per_client
        return split_domains(
            self.name,
            dataset,
            each,
            lambda labels, test, where: pathological_owners(labels, test, each, per_client, rng, where),
        )


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
    owner = np.full(len(dataset), NO_CLIENT, dtype=np.int64)
    for domain, label in enumerate(dataset.domain_names):
        images = np.flatnonzero(dataset.domains == domain)
        test, where = dataset.test[images], f'the training part of domain "{label}"'
        require_images(each, int((~test).sum()), where=f' in domain "{label}"')
        local = owners(dataset.labels[images], test, where)
        owner[images] = np.where(local == NO_CLIENT, NO_CLIENT, local + domain * each)
    return from_owners(name, owner, dataset.test, each * len(dataset.domain_names))
