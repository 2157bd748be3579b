"""Personal trees of the clients that are not in the round: in memory while they fit, on disk beyond that.

A tree stays on the device it came from, so that whole models need not travel between rounds.

Files are written whole under new names and listed in the checkpoint's manifest, which alone says which of them count;
a file the manifest does not name is a leftover of an interrupted run and is removed.
"""

import json
import os
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.files import SEAL
from promptfed.core.ranks import ALONE, Ranks
from promptfed.core.tree import Tree
from promptfed.results.folder import names

Manifest = dict[str, dict[str, object]]
"""File name -> {"crc32": int, "clients": [the clients written into it]}."""


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
        self._ranks, self._owner = ranks, owner
        self._memory: dict[int, Tree] = {}  # in the order of last use
        self._bytes = 0
        self._staged: dict[int, Tree] = {}  # of the round under way
        self._unsaved: set[int] = set()
        self._where: dict[int, tuple[str, int]] = {}  # the file, and the client's row in it
        self._files: Manifest = {}
        self._written = self._before(0)

    def get(self, client: int) -> Tree:
        """Return the client's tree."""
        if client in self._staged:
            return self._staged[client]
        if client in self._memory:
            found = self._memory.pop(client)
            self._bytes -= tree.nbytes(found)
        elif client in self._where:
            found = self._read(client)
        else:
            found = self._fresh(client)
        self._keep(client, found)
        return found

    def put(self, client: int, value: Tree) -> None:
        """Replace the client's tree; it counts once the round is sealed."""
        self._staged[client] = tree.settled(value)

    def seal(self) -> None:
        """Make the trees of the finished round the ones to keep."""
        for client, value in self._staged.items():
            if client in self._memory:
                self._bytes -= tree.nbytes(self._memory.pop(client))
            self._unsaved.add(client)
            self._keep(client, value)
        self._staged.clear()

    def discard(self) -> None:
        """Forget the trees of an interrupted round."""
        self._staged.clear()

    def _keep(self, client: int, value: Tree) -> None:
        self._memory[client] = value
        self._bytes += tree.nbytes(value)
        if self._bytes > self._limit and len(self._memory) > 1:
            self._spill()

    def _spill(self) -> None:
        """Write what is not saved yet, then forget the least recently used half."""
        self._flush(self._unsaved & self._memory.keys())
        for client in list(self._memory)[: len(self._memory) // 2]:
            self._bytes -= tree.nbytes(self._memory.pop(client))

    def _flush(self, clients: Iterable[int]) -> None:
        """Write the clients' trees, those of one shape stacked, in files of about half the memory limit."""
        alike: dict[object, dict[int, Tree]] = {}
        held = 0
        for client in sorted(clients):
            # one that was read lies on the CPU, whatever device the others are on
            value = tree.to(self._memory[client], "cpu") if client in self._memory else self._read(client)
            shape = tuple((name, part.shape, part.dtype) for name, part in value.items())
            alike.setdefault(shape, {})[client] = value
            held += tree.nbytes(value)
            if held > self._limit / 2:
                self._write(alike)
                alike, held = {}, 0
        self._write(alike)

    def _write(self, alike: dict[object, dict[int, Tree]]) -> None:
        for trees in alike.values():
            stacked = tree.stack(list(trees.values()))
            if stacked:  # a client with nothing personal gets its empty tree from `fresh`
                self._folder.mkdir(parents=True, exist_ok=True)
                self._written += self._ranks.size
                name = names.personal_file(self._written)
                self._files[name] = {"crc32": write_tree(self._folder / name, stacked), "clients": list(trees)}
                self._where |= {client: (name, row) for row, client in enumerate(trees)}
            self._unsaved -= trees.keys()

    def _read(self, client: int) -> Tree:
        name, row = self._where[client]
        return read_tree(self._folder / name, row)

    def commit(self) -> Manifest:
        """Write all that changed; return the manifest of the files that now count.

        A file is rewritten once half of its clients have newer trees, so the disk holds at most about twice the state.
        """
        live: dict[str, list[int]] = {}
        for client, (name, _) in self._where.items():
            if client not in self._unsaved:
                live.setdefault(name, []).append(client)
        stale = [c for name, kept in live.items() if 2 * len(kept) < len(self._files[name]["clients"]) for c in kept]  # type: ignore[arg-type]
        self._flush(self._unsaved | set(stale))
        named = {name for name, _ in self._where.values()}
        self._files = {name: entry for name, entry in self._files.items() if name in named}
        return dict(self._files)

    def restore(self, manifest: Manifest) -> None:
        """Take over the files of a checkpoint, oldest first: a later file's client replaces an earlier one's."""
        for name in sorted(manifest):
            clients = manifest[name]["clients"]
            assert isinstance(clients, list)
            own = {client: (name, row) for row, client in enumerate(clients) if self._holds(client)}
            if own:
                verify(self._folder / name, manifest[name]["crc32"])
            self._where |= own
        self._files = dict(manifest)
        self._written = self._before(max((int(name[9:15]) for name in manifest), default=0))

    def whole(self, manifest: Manifest) -> "Store":
        """Return a store of all clients as a checkpoint has them, for reading."""
        store = Store(self._fresh, self._folder, self._limit / 2**20)
        store.restore(manifest)
        return store

    def _holds(self, client: int) -> bool:
        return not self._owner or self._owner[client] == self._ranks.rank

    def _before(self, last: int) -> int:
        """Return the number before this process's first file after file `last`: processes number theirs in turn."""
        return last + 1 + self._ranks.rank - self._ranks.size
