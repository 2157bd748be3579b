"""Which images each client holds: the Partition value, its hash and its file."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptfed.core.arrays import MANY, Arrays, compact, read_arrays, write_arrays
from promptfed.core.errors import PromptFedError
from promptfed.core.files import AlteredError, sealed, unsealed, write_text
from promptfed.data.dataset import Dataset, Indices
from promptfed.data.lists import ImageLists

LARGEST = 2**63 - 1


@dataclass(frozen=True, eq=False)
class Partition:
    """One data set split over clients: the image indices each client trains and tests on, in ascending order.

    No image is used twice and every client has a training image; a client without test images is allowed.
    If training images repeat, an image may train several clients, but is never tested on.
    """

    name: str
    train: Sequence[Indices]
    test: Sequence[Indices]
    repeats: bool = False

    def __post_init__(self) -> None:
        if not len(self.train) or len(self.train) != len(self.test):
            raise PromptFedError(
                f'Partition "{self.name}" has {len(self.train)} training and {len(self.test)} test lists; '
                "every client needs one of each."
            )
        train, test = ImageLists.of(self.train).ascending(), ImageLists.of(self.test).ascending()
        object.__setattr__(self, "train", train)
        object.__setattr__(self, "test", test)
        if len(empty := np.flatnonzero(train.sizes == 0)):
            raise PromptFedError(
                f'Partition "{self.name}" leaves client {empty[0]} of {len(self)} without a training image; '
                "use fewer clients or another partition."
            )
        trained = np.unique(train.flat) if self.repeats else train.flat
        used = np.sort(np.concatenate((trained, test.flat)))
        repeated = used[1:][used[1:] == used[:-1]]
        if not len(repeated):
            same = (train.flat[1:] == train.flat[:-1]) & (np.diff(train.owners) == 0)
            repeated = train.flat[1:][same]
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

    @cached_property
    def hash(self) -> str:
        """A fingerprint of the index lists alone, the same on every platform."""
        return fingerprint(self.train, self.test)

    def counts(self, dataset: Dataset) -> NDArray[np.int64]:
        """Training images per class, [clients, classes]."""
        return ImageLists.of(self.train).tally(dataset.labels, len(dataset.classes))

    def save(self, path: str | Path, dataset: Dataset) -> None:
        """Write partition.json; a reader finds the whole new file or the old one, never a part.

        The lists of many clients are arrays in a file beside it, which is written first.
        """
        path, counts = Path(path), self.counts(dataset)
        domains = ImageLists.of(self.train).tally(dataset.domains, len(dataset.domain_names))
        document = {
            "name": self.name,
            "hash": self.hash,
            "dataset": dataset.name,
            "images": len(dataset),
            **({"repeats": True} if self.repeats else {}),
            "classes": list(dataset.classes),
            "domain_names": list(dataset.domain_names),
        }
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            many = len(self) > MANY
            document["clients"] = self._write_columns(path, counts, domains) if many else self._rows(counts, domains)
            write_text(path, sealed(json.dumps(document, separators=(",", ":"))) + "\n")
        except OSError as error:
            raise PromptFedError(f"The partition file {path} cannot be written: {error.strerror}.") from None

    def _rows(self, counts: NDArray[np.int64], domains: NDArray[np.int64]) -> list[dict[str, list[int]]]:
        columns = zip(self.train, self.test, counts.tolist(), domains.tolist(), strict=True)
        return [
            {"train": train.tolist(), "test": test.tolist(), "counts": classes, "domains": places}
            for train, test, classes, places in columns
        ]

    def _write_columns(self, path: Path, counts: NDArray[np.int64], domains: NDArray[np.int64]) -> dict[str, object]:
        train, test = ImageLists.of(self.train), ImageLists.of(self.test)
        arrays = {"train": train.flat, "train_sizes": train.sizes, "test": test.flat, "test_sizes": test.sizes}
        arrays |= {"counts": counts, "domains": domains}
        packed = {name: compact(value) for name, value in arrays.items()}
        return {"count": len(self), **write_arrays(path.with_suffix(".npz"), packed)}

    @classmethod
    def load(cls, path: str | Path, dataset: Dataset) -> "Partition":
        """Read partition.json, and refuse a file that is damaged, edited, or made for other data."""
        document, columns, partition = _parsed(Path(path))
        made_for, images = document["dataset"], document["images"]
        if (made_for, images) != (dataset.name, len(dataset)):
            if made_for == dataset.name:
                raise PromptFedError(
                    f'{path} divides {images:,} images of the data set "{made_for}", which has {len(dataset):,} now; '
                    "put back those that it was made for."
                )
            raise PromptFedError(
                f'The partition file {path} splits the data set "{made_for}" with {images} images, '
                f'not "{dataset.name}" with {len(dataset)} images.'
            )
        train, test = ImageLists.of(partition.train), ImageLists.of(partition.test)
        if max(int(rows.flat.max(initial=-1)) for rows in (train, test)) >= len(dataset):
            raise PromptFedError(
                f'The partition file {path} names images beyond the {len(dataset)} of "{dataset.name}".'
            )
        if not np.array_equal(partition.counts(dataset), columns["counts"]):
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
        document, columns, partition = _parsed(path)
        try:
            classes, places = tuple(map(str, document["classes"])), len(document["domain_names"])
            counts, domains = columns["counts"].reshape(-1, len(classes)), columns["domains"].reshape(-1, places)
        except (KeyError, TypeError, ValueError):
            raise _damaged(path) from None
        sizes = ImageLists.of(partition.train).sizes
        if any(len(tally) != len(sizes) or (tally.sum(1) != sizes).any() for tally in (counts, domains)):
            raise _damaged(path)
        return cls(partition, classes, counts, domains)


def _parsed(path: Path) -> tuple[Any, Arrays, Partition]:
    """Read a partition file; return all of it, its counts, and the partition, whose fingerprint is checked."""
    document = _read(path)
    try:
        name, stored, clients = document["name"], document["hash"], document["clients"]
        columns = read_arrays(path.parent, clients) if isinstance(clients, dict) else _columns(clients)
        whole = {"dataset", "images"} <= document.keys() and isinstance(name, str)
        repeats = document.get("repeats", False) is True
        columns = {key: _whole(value) for key, value in columns.items()}
        train, test = (ImageLists(columns[key], columns[f"{key}_sizes"]) for key in ("train", "test"))
        whole = whole and all(lists.starts[-1] == len(lists.flat) for lists in (train, test))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _damaged(path) from None
    if not whole or stored != fingerprint(train, test):
        raise _damaged(path)
    return document, columns, Partition(name, train, test, repeats)


def _columns(clients: Any) -> Arrays:
    """Return what a file lists client by client, as columns."""
    lists = {key: ImageLists.of([_indices(client[key]) for client in clients]) for key in ("train", "test")}
    columns: Arrays = {key: part.flat for key, part in lists.items()}
    columns |= {f"{key}_sizes": part.sizes for key, part in lists.items()}
    tallies = {key: [client.get(key) for client in clients] for key in ("counts", "domains")}
    if None in tallies["counts"]:
        raise ValueError("a client has no counts")
    return columns | {key: np.array(rows, np.int64) for key, rows in tallies.items() if None not in rows}


def _whole(values: NDArray[Any]) -> NDArray[np.int64]:
    if values.dtype.kind not in "iu":
        raise ValueError("it holds other than whole numbers")
    return values.astype(np.int64)


def _damaged(path: Path) -> PromptFedError:
    return PromptFedError(f"The partition file {path} is damaged or was edited; make it again or restore the original.")


def from_owners(name: str, owner: Indices, test: NDArray[np.bool_], clients: int) -> Partition:
    """The Partition in which image i belongs to client owner[i], or to no client where that is -1."""
    return Partition(name, grouped(owner, ~test, clients), grouped(owner, test, clients))


def grouped(owner: Indices, chosen: NDArray[np.bool_], clients: int) -> ImageLists:
    """The chosen images of each client."""
    images = np.flatnonzero(chosen & (owner >= 0))
    images = images[np.argsort(owner[images], kind="stable")]
    return ImageLists(images, np.bincount(owner[images], minlength=clients))


def fingerprint(train: Sequence[Indices], test: Sequence[Indices]) -> str:
    """SHA-256 over little-endian 64-bit integers: the number of clients, then each list's length and indices."""
    columns = [ImageLists.of(train), ImageLists.of(test)]
    content = np.empty(1 + sum(len(one) + len(one.flat) for one in columns), "<i8")
    content[0] = len(train)
    sizes = np.stack([one.sizes for one in columns], 1).ravel() + 1  # with the length itself
    starts = 1 + np.cumsum(sizes) - sizes
    for number, one in enumerate(columns):
        heads = starts[number::2]
        content[heads] = one.sizes
        content[np.repeat(heads + 1 - one.starts[:-1], one.sizes) + np.arange(len(one.flat))] = one.flat
    return f"sha256:{hashlib.sha256(content.tobytes()).hexdigest()}"


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
