"""Personal trees of the clients that are not in the round: in memory while they fit, on disk beyond that.

A tree stays on the device it came from, so that whole models need not travel between rounds.

Files are written whole under new names and listed in the checkpoint's manifest, which alone says which of them count;
a file the manifest does not name is a leftover of an interrupted run and is removed. What a commit does depends on
what has changed, not on how many clients there are.
"""

import json
import os
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.files import SEAL
from promptfed.core.ranks import ALONE, Ranks
from promptfed.core.tree import Tree
from promptfed.federation.segments import Layout, Rows, Segment, open_segment, write_segment
from promptfed.results.folder import names

Manifest = dict[str, dict[str, Any]]
"""File name -> {"crc32", "index": checksum of its index, "rows": how many}; in format 1 {"crc32", "clients": [...]}."""

LARGEST = 2**26  # bytes of a file: to get rid of old trees, never more than this is written at a time
SMALLEST = 2**20  # a file is not made smaller than this for want of memory
SLACK = 0.15  # the disk holds at most this share of outdated trees
SMALL_FILES = 64  # more files of less than a quarter of the size are joined
OVERHEAD = 512  # bytes of memory that a tensor takes beside its numbers
CHECKED_WHOLE = (
    2**28
)  # bytes of checkpoint that are read when a run resumes; in a larger one, a tree is checked when it is read


def write_tree(path: Path, content: Tree, *, sealed: bool = False) -> int:
    """Write a tree and return its checksum; a `sealed` file has one of its own, for what no checkpoint names."""
    data = _bytes(content)
    if sealed:
        data = _bytes(content, {SEAL: str(zlib.crc32(data))})
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return zlib.crc32(data)


def _bytes(content: Tree, more: Mapping[str, str] = MappingProxyType({})) -> bytes:
    """Return a tree as a file's content."""
    # a clone: two names may share one tensor's memory, which the format refuses
    plain = {name: value.cpu().clone(memory_format=torch.contiguous_format) for name, value in content.items()}
    # the format sorts names, but a method may walk over a tree, and sums depend on the order
    return save(plain, metadata={"order": json.dumps(list(content)), **more})


def verify(path: Path, checksum: object) -> None:
    """Refuse a file that is missing or not the one that was written."""
    if not path.is_file():
        raise PromptFedError(f"The checkpoint is incomplete: {path} is missing; start a new run with another --out.")
    if zlib.crc32(path.read_bytes()) != checksum:
        raise PromptFedError(
            f"The checkpoint is damaged: {path} is not what was saved; start a new run with another --out."
        )


def read_tree(path: Path, row: int | None = None) -> Tree:
    """Read a tree in the order it was written, or one row of a stacked tree."""
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata()
            order = json.loads(about["order"])
            if row is None:
                found = {name: file.get_tensor(name) for name in order}
                if SEAL in about and about[SEAL] != str(zlib.crc32(_bytes(found))):
                    raise ValueError("it does not match its checksum")
                return tree.settled(found)
            return tree.settled({name: file.get_slice(name)[row : row + 1][0] for name in order})
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise PromptFedError(f"The checkpoint file {path} cannot be read: {error}.") from error


@dataclass(frozen=True, eq=False)
class _Stacked:
    """A file of format 1: stacked trees, whose clients the manifest lists."""

    path: Path
    clients: NDArray[np.int32]
    entry: dict[str, Any]

    def read(self, row: int) -> Tree:
        return read_tree(self.path, row)


class Store:
    """One personal tree per client; a client never seen has the tree `fresh(client)`."""

    def __init__(
        self,
        fresh: Callable[[int], Tree],
        folder: Path,
        memory_mb: float = 1024,
        ranks: Ranks = ALONE,
        owner: Sequence[int] = (),  # which process of the run has each client's tree; empty: this one has all
    ) -> None:
        self._fresh, self._folder, self._limit = fresh, folder, memory_mb * 2**20
        self._most = int(min(max(self._limit / 2, SMALLEST), LARGEST))  # bytes of a file
        self._memory: dict[int, tuple[Tree, int]] = {}  # each with its size, in the order of last use
        self._bytes = 0
        self._staged: dict[int, Tree] = {}  # of the round under way
        self._unsaved: set[int] = set()
        self._where = np.zeros((0, 2), np.int32)  # [clients, 2]: the number of the file, 0 for none, and the row in it
        self._files: dict[int, Segment | _Stacked] = {}
        self._live: dict[int, int] = {}  # the file's rows that no later file replaces
        self._named: set[int] = set()  # files that a manifest names
        self._unsynced: dict[int, Segment] = {}  # files of which the disk may have a part; most are gone by the commit
        self._ranks, self._owner = ranks, np.array(owner, np.int32)
        self._written = self._before(0)

    def get(self, client: int) -> Tree:
        """Return the client's tree."""
        if client in self._staged:
            return self._staged[client]
        if client in self._memory:
            self._memory[client] = kept = self._memory.pop(client)
            return kept[0]
        saved = client < len(self._where) and self._where[client, 0]
        found = self._read(client) if saved else self._fresh(client)
        self._keep(client, found)
        return found

    def put(self, client: int, value: Tree) -> None:
        """Replace the client's tree; it counts once the round is sealed."""
        self._staged[client] = tree.settled(value)

    def seal(self) -> None:
        """Make the trees of the finished round the ones to keep."""
        for client, value in self._staged.items():
            if client in self._memory:
                self._bytes -= self._memory.pop(client)[1]
            self._unsaved.add(client)
            self._keep(client, value)
        self._staged.clear()

    def discard(self) -> None:
        """Forget the trees of an interrupted round."""
        self._staged.clear()

    def commit(self) -> Manifest:
        """Write all that changed; return the manifest of the files that now count.

        Files that hold the most outdated trees are written anew, so the disk holds little more than the state.
        """
        self._flush(self._unsaved)
        self._rewrite(self._outdated())
        self._files = {number: file for number, file in self._files.items() if self._live[number]}
        for number in sorted(self._unsynced.keys() & self._files.keys()):
            self._unsynced[number].sync()
        self._unsynced.clear()
        self._live = {number: self._live[number] for number in self._files}
        self._named = set(self._files)
        return {file.path.name: file.entry for file in self._files.values()}

    def restore(self, manifest: Manifest) -> None:
        """Take over the files of a checkpoint, oldest first: a later file's client replaces an earlier one's."""
        paths = {name: self._folder / name for name in sorted(manifest, key=names.personal_number)}
        self._named = set(map(names.personal_number, paths))
        small = sum(path.stat().st_size for path in paths.values() if path.is_file()) <= CHECKED_WHOLE
        for name, path in paths.items():
            entry, number = manifest[name], names.personal_number(name)
            if small or "index" not in entry:
                verify(path, entry["crc32"])
            stacked = "clients" in entry
            self._files[number] = (
                _Stacked(path, np.array(entry["clients"], np.int32), entry) if stacked else open_segment(path, entry)
            )
            self._place(self._files[number].clients, number)
        if len(self._owner):
            known = self._where[: len(self._owner)]
            known[self._owner[: len(known)] != self._ranks.rank] = 0  # the trees of other processes' clients
        self._live = dict.fromkeys(self._files, 0) | _counted(self._where[:, 0])
        self._written = self._before(max(self._files, default=0))

    def whole(self, manifest: Manifest) -> "Store":
        """Return a store of all clients as a checkpoint has them, for reading."""
        store = Store(self._fresh, self._folder, self._limit / 2**20)
        store.restore(manifest)
        return store

    def _before(self, last: int) -> int:
        """Return the number before this process's first file after file `last`: processes number theirs in turn."""
        return last + 1 + self._ranks.rank - self._ranks.size

    def _keep(self, client: int, value: Tree) -> None:
        room = _room(value)
        self._memory[client] = value, room
        self._bytes += room
        if self._bytes > self._limit and len(self._memory) > 1:
            self._spill()

    def _spill(self) -> None:
        """Write what is not saved yet, then forget the least recently used half."""
        self._flush(self._unsaved)
        for client in list(self._memory)[: len(self._memory) // 2]:
            self._bytes -= self._memory.pop(client)[1]

    def _flush(self, clients: Iterable[int]) -> None:
        """Write the clients' trees, those of one shape to a file together."""
        alike: dict[object, dict[int, Tree]] = {}
        held = 0
        for client in sorted(clients):
            value = self._memory[client][0] if client in self._memory else self._read(client)
            shape = tuple((name, part.shape, part.dtype, part.device) for name, part in value.items())
            alike.setdefault(shape, {})[client] = value
            held += tree.nbytes(value)
            if held > self._most:
                self._write_all(alike)
                alike, held = {}, 0
        self._write_all(alike)

    def _write_all(self, alike: Mapping[object, dict[int, Tree]]) -> None:
        for trees in alike.values():
            first = next(iter(trees.values()))
            if first:  # a client with nothing personal gets its empty tree from `fresh`
                layout = Layout.of(first)
                self._write(layout, np.array(list(trees), np.int32), layout.pack(list(trees.values())))
            self._unsaved -= trees.keys()

    def _write(self, layout: Layout, clients: NDArray[np.int32], rows: Rows) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._written += self._ranks.size
        path = self._folder / names.personal_file(self._written)
        segment = write_segment(path, layout, clients, rows)
        self._files[self._written] = self._unsynced[self._written] = segment
        self._place(clients, self._written)

    def _place(self, clients: NDArray[np.int32], number: int) -> None:
        """Note that these clients' trees are now in this file; remove files that nobody needs any more."""
        if (lacking := int(clients.max()) + 1 - len(self._where)) > 0:
            room = np.zeros((max(lacking, len(self._where) // 2), 2), np.int32)
            self._where = np.concatenate((self._where, room))
        replaced = _counted(self._where[clients, 0])
        self._where[clients, 0], self._where[clients, 1] = number, np.arange(len(clients))
        self._live[number] = len(clients)
        for old, count in replaced.items():
            self._live[old] = self._live.get(old, 0) - count
            if not self._live[old] and old not in self._named and old in self._files:
                self._files.pop(old).path.unlink(missing_ok=True)

    def _read(self, client: int) -> Tree:
        number, row = self._where[client].tolist()
        return self._files[number].read(row)

    def _outdated(self) -> list[int]:
        """Return the files to write anew: those with most outdated trees, and small ones where they are many."""
        sizes = {number: _size(file) for number, file in self._files.items()}
        kept = {number: size * self._live[number] / len(self._files[number].clients) for number, size in sizes.items()}
        waste, chosen = sum(sizes.values()) - sum(kept.values()), []
        for number in sorted(sizes, key=lambda number: kept[number] / sizes[number]):
            if waste <= SLACK * sum(kept.values()):
                break
            waste -= sizes[number] - kept[number]
            chosen.append(number)
        small = [number for number in sizes if kept[number] and 4 * sizes[number] < self._most]
        return sorted({*chosen, *small}) if len(small) > SMALL_FILES else chosen

    def _rewrite(self, numbers: Iterable[int]) -> None:
        """Write what still counts in these files to new ones, without a look into the trees."""
        alike: dict[Layout, list[tuple[NDArray[np.int32], Rows]]] = {}
        for number in numbers:
            file = self._files[number]
            where = self._where[file.clients]
            rows = np.flatnonzero((where[:, 0] == number) & (where[:, 1] == np.arange(len(where))))
            if isinstance(file, _Stacked):
                self._flush(file.clients[rows].tolist())
            elif len(rows):
                parts = alike.setdefault(file.layout, [])
                parts.append((file.clients[rows], file.gather(rows)))
                if sum(content.size for _, content in parts) > self._most:
                    self._join(file.layout, alike.pop(file.layout))
        for layout, parts in alike.items():
            self._join(layout, parts)

    def _join(self, layout: Layout, parts: list[tuple[NDArray[np.int32], Rows]]) -> None:
        clients, rows = (np.concatenate(part) for part in zip(*parts, strict=True))
        self._write(layout, clients, rows)


def _room(content: Tree) -> int:
    """Return how much memory a tree takes."""
    return tree.nbytes(content) + OVERHEAD * len(content)


def _size(file: Segment | _Stacked) -> int:
    return file.path.stat().st_size if isinstance(file, _Stacked) else max(file.layout.width, 1) * len(file.clients)


def _counted(numbers: NDArray[np.int32]) -> dict[int, int]:
    """Return how often each number but 0 occurs."""
    found, counts = np.unique(numbers[numbers > 0], return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))
