"""Messages: one safetensors blob each, with the head in its metadata. Incoming messages are checked before use."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from promptfed.core.errors import PromptFedError
from promptfed.core.tree import Tree, settled
from promptfed.core.version import __version__
from promptfed.sites.versions import PACKED_BY, VERSION

FORMAT = 1
TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool)
HEAD_LIMIT = 2**20  # bytes of a message that are not numbers
Header = dict[str, Any]
Shapes = dict[str, tuple[torch.dtype, tuple[int, ...]]]


class Refused(PromptFedError):  # noqa: N818  (it is read as: the answer is refused)
    """A message that must not be used; the sentence says why."""


class NotFinite(Refused):
    """A message with a number that is not finite; asking the site again would not help."""


@dataclass(frozen=True)
class Message:
    """A head of plain JSON values, and a tree."""

    head: Header
    tree: Tree


def pack(message: Message) -> bytes:
    """Return the message as bytes; the order of names, which sums depend on, is kept."""
    plain = {name: _plain(value) for name, value in message.tree.items()}
    head = json.dumps({"format": FORMAT, PACKED_BY: __version__, "order": list(plain), **message.head})
    return save(plain, metadata={"head": head})


def _plain(value: torch.Tensor) -> torch.Tensor:
    return value.detach().cpu().clone(memory_format=torch.contiguous_format)


def unpack(data: bytes, limit: int) -> Message:
    """Return the message in `data`; refuse it if it is larger than `limit` bytes or not a message at all."""
    if len(data) > limit:
        raise Refused(f"it has {len(data):,} bytes, more than the {limit:,} allowed")
    try:
        size = int.from_bytes(data[:8], "little")
        if size > HEAD_LIMIT:
            raise Refused(f"its head has {size:,} bytes, more than the {HEAD_LIMIT:,} allowed")
        head = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["head"])
        tree = load(data)
        if head["format"] != FORMAT:
            raise Refused(_foreign_format(head))
        order = head.pop("order")
        if sorted(order) != sorted(tree):
            raise Refused("its names differ from those it announces")
        if strange := [name for name, value in tree.items() if value.dtype not in TYPES]:
            raise Refused(f'"{strange[0]}" has a data type that is never sent')
        return Message(head, settled({name: tree[name] for name in order}))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
        raise Refused("it is not a PromptFed message") from error


def _foreign_format(head: Header) -> str:
    """Return why a message in another format is refused."""
    number, maker = head["format"], head.get(PACKED_BY)
    known = isinstance(number, int) and isinstance(maker, str) and VERSION.fullmatch(maker)
    which = f"message format {number} of PromptFed {maker}" if known else "another message format"
    return f"it has {which}, and this is {__version__} with format {FORMAT}; install the same version on both sides"


def shapes(tree: Tree) -> Shapes:
    """Return the names, types and shapes of a tree."""
    return {name: (value.dtype, tuple(value.shape)) for name, value in tree.items()}


def check(tree: Tree, expected: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]) -> None:
    """Refuse a tree with other names, types or shapes, or with a number that is not finite."""
    if tree.keys() != expected.keys():
        missing, foreign = sorted(expected.keys() - tree.keys()), sorted(tree.keys() - expected.keys())
        raise Refused(f"its names are wrong: missing {missing}, not expected {foreign}")
    for name, (dtype, shape) in expected.items():
        value = tree[name]
        if value.dtype != dtype:
            raise Refused(f'"{name}" has type {value.dtype}, not {dtype}')
        if tuple(value.shape) != shape:
            raise Refused(f'"{name}" has shape {list(value.shape)}, not {list(shape)}')
    check_finite(tree)


def check_finite(tree: Tree) -> None:
    """Refuse a tree that holds a number that is not finite."""
    for name, value in tree.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise NotFinite(f'"{name}" holds a number that is not finite')
