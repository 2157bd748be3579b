"""Atomic writes: a reader finds the old content or the new one, never a part."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows, where nothing is locked
    fcntl = None  # type: ignore[assignment]


def private(path: str, flags: int) -> int:
    """Open a file that only its owner may read: an `opener` for `open`."""
    return os.open(path, flags, 0o600)


def make_private(folder: Path) -> None:
    """Make a folder that only its owner may read; one that is there keeps its rights."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file in one step."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file in one step."""
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        part.unlink(missing_ok=True)
        raise
    part.replace(path)


def write_json(path: Path, value: object) -> None:
    """Write a JSON file in one step."""
    write_text(path, json.dumps(value, indent=1, allow_nan=True) + "\n")


@contextmanager
def held(path: Path, *, wait: bool) -> Iterator[None]:
    """Lock a file against other processes; if it is locked, wait or raise BlockingIOError."""
    with path.open("a") as lock:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
