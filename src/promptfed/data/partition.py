"""Splitting one data set over clients, by name: `make_partition("dirichlet", {"alpha": 0.1}, dataset, 50, seed=0)`."""

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from promptfed.core.errors import PromptFedError, choice
from promptfed.data.aspects import Aspects
from promptfed.data.dataset import Dataset
from promptfed.data.domain_partitioners import Domain, DomainDirichlet, DomainPathological
from promptfed.data.lists import ImageLists
from promptfed.data.partitioners import Dirichlet, Disjoint, DisjointRandom, Equal, Iid, Pathological, Quantity
from promptfed.data.pfllib import PfllibDirichlet, PfllibIid, PfllibPathological
from promptfed.data.shares import Partition

__all__ = ["PARTITIONS", "POOLED", "Partition", "Partitioner", "make_partition"]

FILE = "file:"
POOLED = "pfllib-"  # these deal official training and test images alike, and divide each client's own
STREAM = 7919  # keeps these draws apart from every other use of the run's seed


class Partitioner(Protocol):
    """A way to split: a frozen dataclass whose fields are the keys under [partition] in a recipe.

    One that looks at the images themselves declares `needs_images = True`; to the others they need not be there.
    """

    name: ClassVar[str]

    def split(self, dataset: Dataset, clients: int, rng: np.random.Generator) -> Partition:
        """Split the data set: every client gets a training image, and no image is used twice unless it repeats."""
        ...


PARTITIONS: dict[str, type[Partitioner]] = {
    kind.name: kind
    for kind in (
        Iid,
        Dirichlet,
        Pathological,
        Disjoint,
        DisjointRandom,
        Quantity,
        Equal,
        Aspects,
        Domain,
        DomainDirichlet,
        DomainPathological,
        PfllibIid,
        PfllibPathological,
        PfllibDirichlet,
    )
}


def make_partition(name: str, options: Mapping[str, object], dataset: Dataset, clients: int, seed: int) -> Partition:
    """Split by the partitioner of that name with those fields, or read a saved split: name "file:PATH"."""
    if name.startswith(FILE):
        return _from_file(Path(name.removeprefix(FILE)).expanduser(), options, dataset, clients)
    if name not in PARTITIONS:
        raise choice("partition", name, [*PARTITIONS, f"{FILE}PATH"])
    if seed < 0:
        raise PromptFedError(f"seed must be a whole number from 0, not {seed}.")
    kind: Any = PARTITIONS[name]
    _known(options, [field.name for field in fields(kind)], name)
    rng = np.random.default_rng(np.random.SeedSequence([seed, STREAM]))
    partitioner: Partitioner = kind(**options)
    if dataset.dealt.all():
        return partitioner.split(dataset, clients, rng)
    return _split_some(partitioner, dataset, clients, rng)


def _split_some(partitioner: Partitioner, dataset: Dataset, clients: int, rng: np.random.Generator) -> Partition:
    """Split the images that may be dealt as if there were no others, and number them as in the whole set."""
    rows = np.flatnonzero(dataset.dealt)
    only = replace(
        dataset,
        images=dataset.images[rows if getattr(partitioner, "needs_images", False) else slice(0)],
        labels=dataset.labels[rows],
        test=dataset.test[rows],
        domains=dataset.domains[rows],
        val=None,
        used=None,
    )
    part = partitioner.split(only, clients, rng)
    return replace(part, train=ImageLists.of(part.train).mapped(rows), test=ImageLists.of(part.test).mapped(rows))


def _from_file(path: Path, options: Mapping[str, object], dataset: Dataset, clients: int) -> Partition:
    _known(options, [], f"{FILE}{path}")
    partition = Partition.load(path, dataset)
    if len(partition) != clients:
        raise PromptFedError(
            f"The partition file {path} has {len(partition)} clients; use {len(partition)} clients, not {clients}."
        )
    tested = ImageLists.of(partition.test).flat
    held = np.concatenate((ImageLists.of(partition.train).flat, tested))
    left_out = np.unique(held[~dataset.dealt[held]])
    if len(left_out):
        raise PromptFedError(
            f'The partition file {path} names image {left_out[0]}, which is left out of "{dataset.name}" here; '
            "it was made for another evaluation split."
        )
    if not partition.name.startswith(POOLED):
        strange = tested[~dataset.test[tested]]
        if len(strange):
            raise PromptFedError(
                f'The partition file {path} tests on image {strange[0]}, which is not a test image of "{dataset.name}" '
                "here; it was made for another evaluation split."
            )
    return partition


def _known(options: Mapping[str, object], valid: list[str], name: str) -> None:
    for key in options:
        if key not in valid:
            raise choice("key", key, valid, f'the partition "{name}"')
