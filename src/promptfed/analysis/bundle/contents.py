"""What a bundle holds, and how its files are written and read.

bundle.json            the method, the backbone, the classes, the clients, and a checksum of everything, itself included
shared.safetensors     the tensors that are equal for all clients
clients.safetensors    all other tensors, the clients' rows stacked [N, ...]; `forget` writes it under a new name

Opening a client's model reads bundle.json, the shared tensors and one row. All that is read is checked first; a row has
a checksum of its own, so the other rows need not be read.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.files import write_text
from promptfed.core.tree import Tree
from promptfed.data.dataset import Color
from promptfed.results.folder import names

FORMAT = 1
ABOUT, SHARED, CLIENTS = "bundle.json", "shared.safetensors", "clients.safetensors"


@dataclass(frozen=True)
class BundledFile:
    """A file of tensors as it was written."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class BundledClient:
    """What a bundle knows of one client beside its row."""

    name: str | None  # of a site
    accuracy: float | None  # on its test images, after the last round
    facts: Mapping[str, Any]  # of those that a client knows of itself, the ones its answers depend on
    sha256: str  # of its row
    metrics: Mapping[str, float | None] = field(default_factory=dict)  # the other measures of the same test, if any


@dataclass(frozen=True)
class Bundle:
    """What bundle.json says."""

    promptfed: str  # the version that wrote it
    method: Mapping[str, Any]
    prompt: Mapping[str, Any]
    backbone: Mapping[str, Any]
    fingerprint: str  # of the frozen backbone; empty if there is none
    classes: tuple[str, ...]
    shape: tuple[int, int]  # of the images: height, width
    mean: Color
    std: Color
    seed: int
    round: int
    trained: int  # clients of the run that were there from the start
    order: tuple[str, ...]  # a method may walk over a tree, and sums depend on the order
    clients: Mapping[int, BundledClient]  # by number, in the order of their rows
    shared: BundledFile
    rows: BundledFile


# -- writing ----------------------------------------------------------------------------------------------------------


def write_tensors(path: Path, content: Tree) -> BundledFile:
    """Write tensors to a file and flush it to disk."""
    save_file({name: value.contiguous() for name, value in content.items()}, path)
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return BundledFile(path.name, path.stat().st_size, file_sum(path))


def write_about(folder: Path, bundle: Bundle) -> None:
    """Write bundle.json in one step."""
    write_text(folder / ABOUT, _sealed({"format": FORMAT} | asdict(bundle)))


def _sealed(about: dict[str, Any]) -> str:
    """Return the text of bundle.json, with its own checksum at the end."""
    return _text(about | {"sha256": hashlib.sha256(_text(about).encode()).hexdigest()})


def _text(about: dict[str, Any]) -> str:
    return json.dumps(about, indent=1) + "\n"


# -- checksums --------------------------------------------------------------------------------------------------------


def file_sum(path: Path) -> str:
    """Return the sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def row_sum(row: Tree) -> str:
    """Return the sha256 of one client's tensors, with their names, types and shapes."""
    total = hashlib.sha256()
    for name in sorted(row):
        total.update(f"{name} {row[name].dtype} {tuple(row[name].shape)}\n".encode())
        total.update(raw(row[name]))
    return total.hexdigest()


def raw(value: Tensor) -> bytes:
    """Return the bytes of a tensor on the CPU."""
    return value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


# -- reading ----------------------------------------------------------------------------------------------------------


def open_bundle(folder: Path) -> Bundle:
    """Read bundle.json, or say what is wrong with it."""
    path = folder / ABOUT
    if not path.is_file():
        advice = f"; make one by promptfed bundle {folder} --out DIR" if (folder / names.RECIPE).is_file() else ""
        raise PromptFedError(f"{folder} is not a bundle: {ABOUT} is missing{advice}.")
    try:
        text = path.read_bytes().decode()
        about = json.loads(text)
        given = about.pop("format", None)
        if given != FORMAT:
            raise PromptFedError(f"{path} has format {given!r:.20}; this version of PromptFed reads format {FORMAT}.")
        about.pop("sha256")
        if _sealed({"format": FORMAT} | about) != text:
            raise ValueError("the checksum differs")
        return _from_json(about)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(path) from error


def _from_json(about: dict[str, Any]) -> Bundle:
    """Return the bundle that bundle.json describes."""
    if about.keys() != {one.name for one in fields(Bundle)}:
        raise ValueError("a key is missing or unknown")
    height, width = about["shape"]
    typed: dict[str, Any] = {name: tuple(about[name]) for name in ("classes", "mean", "std", "order")}
    typed |= {role: BundledFile(**about[role]) for role in ("shared", "rows")}
    if any(Path(typed[role].name).name != typed[role].name for role in ("shared", "rows")):
        raise ValueError("a file is outside the folder")
    clients = {int(number): BundledClient(**entry) for number, entry in about["clients"].items()}
    return Bundle(**about | typed | {"shape": (height, width), "clients": clients})


def read_client(folder: Path, bundle: Bundle, client: int) -> Tree:
    """Return the prepared model of one client; of the other clients' rows nothing is read."""
    verify(folder, bundle.shared)
    row = read_row(folder, bundle, client)
    parts = row | _tensors(folder / bundle.shared.name)
    if sorted(parts) != sorted(bundle.order):
        raise _damaged(folder / bundle.shared.name)
    return tree.settled(tree.pick(parts, bundle.order))


def read_row(folder: Path, bundle: Bundle, client: int) -> Tree:
    """Return the tensors that are the client's own, checked."""
    path, place = folder / bundle.rows.name, list(bundle.clients).index(client)
    _check_size(path, bundle.rows)
    row = _tensors(path, place)
    if row_sum(row) != bundle.clients[client].sha256:
        raise _damaged(path)
    return row


def verify(folder: Path, file: BundledFile) -> None:
    """Refuse a file that is missing or not the one that was written."""
    _check_size(folder / file.name, file)
    if file_sum(folder / file.name) != file.sha256:
        raise _damaged(folder / file.name)


def _check_size(path: Path, file: BundledFile) -> None:
    if not path.is_file():
        raise PromptFedError(f"The bundle is incomplete: {path} is missing; make the bundle again.")
    if path.stat().st_size != file.bytes:
        raise _damaged(path)


def _tensors(path: Path, row: int | None = None) -> Tree:
    """Read a file's tensors, or one row of them; the file is mapped, so nothing else of it is read."""
    try:
        with safe_open(path, framework="pt") as file:
            if row is None:
                return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (it is not a dict)
            return {name: file.get_slice(name)[row : row + 1][0] for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, IndexError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path) from error


def _damaged(path: Path) -> PromptFedError:
    return PromptFedError(f"The bundle is damaged: {path} is not what was written; make the bundle again.")
