"""Which images each client holds: the Partition value, its hash and its file."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptfed.core.errors import PromptFedError
from promptfed.core.files import AlteredError, sealed, unsealed, write_text
from promptfed.data.dataset import Dataset, Indices

LARGEST = 2**63 - 1


@dataclass(frozen=True, eq=False)
class Partition:
    """One data set split over clients: the image indices each client trains and tests on, in ascending order.

    No image is used twice and every client has a training image; a client without test images is allowed.
    If training images repeat, an image may train several clients, but is never tested on.
    """

    name: str
    train: tuple[Indices, ...]
    test: tuple[Indices, ...]
    repeats: bool = False

    def __post_init__(self) -> None:
        if not self.train or len(self.train) != len(self.test):
            raise PromptFedError(
                f'Partition "{self.name}" has {len(self.train)} training and {len(self.test)} test lists; '
                "every client needs one of each."
            )
        object.__setattr__(self, "train", tuple(_ascending(images) for images in self.train))
        object.__setattr__(self, "test", tuple(_ascending(images) for images in self.test))
        for client, images in enumerate(self.train):
            if not len(images):
                raise PromptFedError(
                    f'Partition "{self.name}" leaves client {client} of {len(self)} without a training image; '
                    "use fewer clients or another partition."
                )
        trained = [np.unique(np.concatenate(self.train))] if self.repeats else self.train
        used = np.sort(np.concatenate((*trained, *self.test)))
        repeated = _twice(used)
        for images in self.train:
            repeated = repeated if len(repeated) else _twice(images)
        if used[0] < 0:
            raise PromptFedError(f'Partition "{self.name}" uses image {used[0]}; images count from 0.')
        if len(repeated):
            raise PromptFedError(f'Partition "{self.name}" uses image {repeated[0]} more than once.')

    def __len__(self) -> int:
        return len(self.train)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Partition) and (self.name, self.hash) == (other.name, other.hash)

    def __hash__(self) -> int:
        return hash((self.name, self.hash))

    @property
    def hash(self) -> str:
        """A fingerprint of the index lists alone, the same on every platform."""
        return fingerprint(self.train, self.test)

    def counts(self, dataset: Dataset) -> NDArray[np.int64]:
        """Training images per class, [clients, classes]."""
        return _tally(self.train, dataset.labels, len(dataset.classes))

    def save(self, path: str | Path, dataset: Dataset) -> None:
        """Write partition.json; a reader finds the whole new file or the old one, never a part."""
        counts = self.counts(dataset).tolist()
        domains = _tally(self.train, dataset.domains, len(dataset.domain_names)).tolist()
        document = {
            "name": self.name,
            "hash": self.hash,
            "dataset": dataset.name,
            "images": len(dataset),
            **({"repeats": True} if self.repeats else {}),
            "classes": list(dataset.classes),
            "domain_names": list(dataset.domain_names),
            "clients": [
                {"train": train.tolist(), "test": test.tolist(), "counts": classes, "domains": places}
                for train, test, classes, places in zip(self.train, self.test, counts, domains, strict=True)
            ],
        }
        _write_whole(Path(path), sealed(json.dumps(document, separators=(",", ":"))) + "\n")

    @classmethod
    def load(cls, path: str | Path, dataset: Dataset) -> "Partition":
        """Read partition.json, and refuse a file that is damaged, edited, or made for other data."""
        document, partition = _parsed(Path(path))
        made_for, images = document["dataset"], document["images"]
        if (made_for, images) != (dataset.name, len(dataset)):
            raise PromptFedError(
                f'The partition file {path} splits the data set "{made_for}" with {images} images, '
                f'not "{dataset.name}" with {len(dataset)} images.'
            )
        if max(int(rows.max(initial=-1)) for rows in (*partition.train, *partition.test)) >= len(dataset):
            raise PromptFedError(
                f'The partition file {path} names images beyond the {len(dataset)} of "{dataset.name}".'
            )
        if partition.counts(dataset).tolist() != [client["counts"] for client in document["clients"]]:
            raise PromptFedError(
                f'The class counts in the partition file {path} do not fit the labels of "{dataset.name}"; '
                "the file was edited or the data set has changed."
            )
        return partition


@dataclass(frozen=True)
class DescribedPartition:
    """A partition with what its file says about the images, for those who do not have them."""

    partition: Partition
    classes: tuple[str, ...]
    counts: NDArray[np.int64]  # training images per class [clients, classes]
    domains: NDArray[np.int64]  # and per domain [clients, domains]

    @classmethod
    def load(cls, path: Path) -> "DescribedPartition":
        """Read the partition.json of a run."""
        document, partition = _parsed(path)
        try:
            classes = tuple(map(str, document["classes"]))
            counts, domains = (
                np.array([client[key] for client in document["clients"]], np.int64).reshape(len(partition), size)
                for key, size in (("counts", len(classes)), ("domains", len(document["domain_names"])))
            )
        except (KeyError, TypeError, ValueError):
            raise _damaged(path) from None
        if any((tally.sum(1) != [len(rows) for rows in partition.train]).any() for tally in (counts, domains)):
            raise _damaged(path)
        return cls(partition, classes, counts, domains)


def _parsed(path: Path) -> tuple[Any, Partition]:
    """Read a partition file; return all of it, and the partition, whose fingerprint is checked."""
    document = _read(path)
    try:
        name, stored = document["name"], document["hash"]
        train = tuple(_indices(client["train"]) for client in document["clients"])
        test = tuple(_indices(client["test"]) for client in document["clients"])
        whole = {"dataset", "images"} <= document.keys() and all("counts" in client for client in document["clients"])
        repeats = document.get("repeats", False) is True
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _damaged(path) from None
    if not whole or stored != fingerprint(train, test) or not isinstance(name, str):
        raise _damaged(path)
    return document, Partition(name, train, test, repeats)


def _damaged(path: Path) -> PromptFedError:
    return PromptFedError(f"The partition file {path} is damaged or was edited; make it again or restore the original.")


def from_owners(name: str, owner: Indices, test: NDArray[np.bool_], clients: int) -> Partition:
    """The Partition in which image i belongs to client owner[i], or to no client where that is -1."""
    return Partition(name, grouped(owner, ~test, clients), grouped(owner, test, clients))


def grouped(owner: Indices, chosen: NDArray[np.bool_], clients: int) -> tuple[Indices, ...]:
    """The chosen images of each client."""
    images = np.flatnonzero(chosen & (owner >= 0))
    images = images[np.argsort(owner[images], kind="stable")]
    ends = np.cumsum(np.bincount(owner[images], minlength=clients))
    return tuple(np.split(images, ends[:-1]))


def fingerprint(train: Sequence[Indices], test: Sequence[Indices]) -> str:
    """SHA-256 over little-endian 64-bit integers: the number of clients, then each list's length and indices."""
    digest = hashlib.sha256(np.int64(len(train)).astype("<i8").tobytes())
    for lists in zip(train, test, strict=True):
        for images in lists:
            digest.update(np.int64(len(images)).astype("<i8").tobytes())
            digest.update(np.ascontiguousarray(images, dtype="<i8").tobytes())
    return f"sha256:{digest.hexdigest()}"


def _ascending(images: Indices) -> Indices:
    ordered = np.sort(np.asarray(images, dtype=np.int64))
    ordered.setflags(write=False)
    return ordered


def _twice(images: Indices) -> Indices:
    """Images that stand in an ascending list more than once."""
    found: Indices = images[1:][images[1:] == images[:-1]]
    return found


def _tally(lists: tuple[Indices, ...], values: Indices, bins: int) -> NDArray[np.int64]:
    rows = [np.bincount(values[images], minlength=bins) for images in lists]
    return np.array(rows, dtype=np.int64).reshape(len(lists), bins)


def _indices(values: Any) -> Indices:
    if not all(type(value) is int and 0 <= value <= LARGEST for value in values):
        raise ValueError("an image index is a whole number from 0")
    return np.array(values, dtype=np.int64)


def _read(path: Path) -> Any:
    try:
        return unsealed(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PromptFedError(f"There is no partition file {path}.") from None
    except OSError as error:
        raise PromptFedError(f"The partition file {path} cannot be read: {error.strerror}.") from None
    except AlteredError as error:
        raise PromptFedError(f"The partition file {path} cannot be used: {error}.") from None
    except (ValueError, RecursionError):
        raise PromptFedError(f"The partition file {path} is damaged or was edited: it is not valid JSON.") from None


def _write_whole(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    except OSError as error:
        raise PromptFedError(f"The partition file {path} cannot be written: {error.strerror}.") from None
