"""A segment: a file of the personal trees of many clients, a row each, written once and never changed.

It is a safetensors file of three tensors: `clients`, the `crc32` of every row, and `rows`, the trees' bytes. Its index,
which is all but the rows, is small, so a store of any size opens in a moment; a row is checked whenever it is read.
"""

import json
import math
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save

from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.tree import Tree

Rows = NDArray[np.uint8]  # [N, bytes of a tree]
HEAD = 8  # bytes before the header, which say how long it is


@dataclass(frozen=True)
class Layout:
    """Where in a row each tensor of a tree lies: name, type, shape and first byte."""

    fields: tuple[tuple[str, str, tuple[int, ...], int], ...]
    width: int

    @classmethod
    def of(cls, content: Tree) -> "Layout":
        """Return the layout of trees like this one; a tensor starts at a multiple of its numbers' size."""
        fields, end = [], 0
        for name, value in content.items():
            end += -end % value.element_size()
            fields.append((name, str(value.dtype).removeprefix("torch."), tuple(value.shape), end))
            end += value.numel() * value.element_size()
        return cls(tuple(fields), end)

    def pack(self, trees: Sequence[Tree]) -> Rows:
        """Return trees of this layout as rows; all of them lie on one device."""
        rows = torch.zeros(len(trees), self.width, dtype=torch.uint8)
        for name, value in tree.stack(trees).items():
            if value.numel():
                raw = value.cpu().contiguous().view(len(trees), -1).view(torch.uint8)
                first = next(first for other, _, _, first in self.fields if other == name)
                rows[:, first : first + raw.shape[1]] = raw
        return rows.numpy()

    def unpack(self, row: bytearray) -> Tree:
        """Return the tree that a row holds."""
        found = {}
        for name, kind, shape, first in self.fields:
            count, dtype = math.prod(shape), getattr(torch, kind)
            # an empty tensor has no bytes to stand on
            flat = (
                torch.frombuffer(row, dtype=dtype, count=count, offset=first) if count else torch.empty(0, dtype=dtype)
            )
            found[name] = flat.view(shape)
        return tree.settled(found)


@dataclass(frozen=True, eq=False)
class Segment:
    """One file and its index."""

    path: Path
    layout: Layout
    clients: NDArray[np.int32]  # [N], whose tree each row is
    sums: NDArray[np.uint32]  # [N], the checksum of each row
    start: int  # where the rows begin
    crc32: int  # of the whole file
    index: int  # the checksum of what comes before the rows

    @property
    def entry(self) -> dict[str, object]:
        """What the checkpoint's manifest says of it."""
        return {"crc32": self.crc32, "index": self.index, "rows": len(self.clients)}

    def sync(self) -> None:
        """Wait until the file is on the disk."""
        with self.path.open("r+b") as file:
            os.fsync(file.fileno())

    def read(self, row: int) -> Tree:
        """Return one tree."""
        content = bytearray(self.layout.width)
        try:
            with self.path.open("rb", buffering=0) as file:
                file.seek(self.start + row * self.layout.width)
                got = file.readinto(content)
        except OSError as error:
            raise unreadable(self.path, error) from error
        if zlib.crc32(content) != self.sums[row] or got != self.layout.width:
            raise unreadable(self.path, "a tree in it does not match its checksum")
        return self.layout.unpack(content)

    def gather(self, chosen: NDArray[np.intp]) -> Rows:
        """Return the chosen rows as they are."""
        try:
            content = np.fromfile(self.path, np.uint8, offset=self.start).reshape(len(self.clients), self.layout.width)
        except (OSError, ValueError) as error:
            raise unreadable(self.path, error) from error
        rows: Rows = content[chosen]
        if (checksums(rows) != self.sums[chosen]).any():
            raise unreadable(self.path, "a tree in it does not match its checksum")
        return rows


def checksums(rows: Rows) -> NDArray[np.uint32]:
    """Return the checksum of every row."""
    return np.fromiter(map(zlib.crc32, np.ascontiguousarray(rows)), np.uint32, len(rows))


def write_segment(path: Path, layout: Layout, clients: NDArray[np.int32], rows: Rows) -> Segment:
    """Write the clients' rows to a new file; until `Segment.sync` the disk may have a part of it."""
    sums = checksums(rows)
    parts = {"clients": clients.astype(np.int32), "crc32": sums.view(np.int32), "rows": rows}
    about = {"layout": json.dumps([layout.width, layout.fields])}
    content = save({name: torch.from_numpy(np.ascontiguousarray(part)) for name, part in parts.items()}, about)
    path.write_bytes(content)
    start = len(content) - rows.size
    return Segment(path, layout, clients, sums, start, zlib.crc32(content), zlib.crc32(content[:start]))


def open_segment(path: Path, entry: dict[str, Any]) -> Segment:
    """Read a segment's index; one that is missing, cut off or not the one the manifest names is refused."""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD)
            header = file.read(min(int.from_bytes(head, "little"), os.fstat(file.fileno()).st_size))
            about = json.loads(header)
            start = HEAD + len(header) + int(about["rows"]["data_offsets"][0])
            body = file.read(start - HEAD - len(header))
            size = os.fstat(file.fileno()).st_size
        if zlib.crc32(head + header + body) != entry["index"]:
            raise ValueError
        width, fields = json.loads(about["__metadata__"]["layout"])
    except FileNotFoundError:
        raise PromptFedError(
            f"The checkpoint is incomplete: {path} is missing; start a new run with another --out."
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _altered(path) from error
    layout = Layout(tuple((name, kind, tuple(shape), first) for name, kind, shape, first in fields), width)

    def part(name: str, dtype: Any) -> NDArray[Any]:
        first, last = about[name]["data_offsets"]
        return np.frombuffer(body[first:last], dtype)

    clients = part("clients", np.int32)
    if size != start + len(clients) * width:
        raise _altered(path)
    return Segment(path, layout, clients, part("crc32", np.uint32), start, entry["crc32"], entry["index"])


def unreadable(path: Path, why: object) -> PromptFedError:
    """Return the error of a checkpoint file that was whole when the run began and is no longer."""
    return PromptFedError(f"The checkpoint file {path} cannot be read: {why}.")


def _altered(path: Path) -> PromptFedError:
    return PromptFedError(
        f"The checkpoint is damaged: {path} is not what was saved; start a new run with another --out."
    )
