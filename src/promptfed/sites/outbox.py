"""HOME/outbox.jsonl: a line for every answer that leaves a site. A full file becomes outbox.1.jsonl, and so on."""

import errno
import json
import time
from pathlib import Path

from torch import Tensor

from promptfed.core import tree
from promptfed.core.files import make_private, private
from promptfed.core.tree import Tree
from promptfed.sites.wire import Header

FIRST = ("run", "round", "nonce", "kind", "error")  # what a line begins with
LARGEST = 2**24  # bytes of a file
FILES = 10  # that are kept
FULL = (errno.ENOSPC, errno.EDQUOT)


def log_answer(home: Path, head: Header, sent: Tree, size: int) -> None:
    """Record what is sent: the head as it is, and names, shapes and norms of tensors, never their values."""
    tensors = {
        name: {"shape": list(value.shape), "bytes": tree.nbytes({name: value}), "norm": _norm(value)}
        for name, value in sent.items()
    }
    first = {key: head.get(key) for key in FIRST}
    rest = {key: value for key, value in head.items() if key not in first}
    line = {"time": round(time.time(), 3), **first, "bytes": size, "head": rest, "tensors": tensors}
    make_private(home)
    path = home / "outbox.jsonl"
    if path.exists() and path.stat().st_size >= LARGEST:
        _rotate(path)
    with open(path, "a", encoding="utf-8", opener=private) as file:
        file.write(json.dumps(line) + "\n")


def describe_failure(error: Exception) -> str:
    """Return what a coordinator is told of a failure at a site: nothing private, but a full disk by its name."""
    if isinstance(error, OSError) and error.errno in FULL:
        return "its disk is full, so it cannot take part until its owner frees some space"
    return f"{type(error).__name__}; the site's own log has the details"


def _rotate(path: Path) -> None:
    """Give every full file the next number; the oldest one goes."""
    names = [path, *(path.with_name(f"outbox.{number}.jsonl") for number in range(1, FILES))]
    for older, newer in reversed(list(zip(names[1:], names[:-1], strict=True))):
        if newer.exists():
            newer.replace(older)


def _norm(value: Tensor) -> float:
    return round(float(value.double().norm()), 6)
