"""Files a reader can trust: written in one step, so it finds the old content or the new, and sealed by a checksum.

A seal is the last entry of a JSON object, `"crc32": "0f3a9b21"`, or the last comment of a TOML file. It covers every
byte before it. What was written before there were seals is read as it is.
"""

import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows, where nothing is locked
    fcntl = None  # type: ignore[assignment]


SEAL = "crc32"
_HEX = re.compile("[0-9a-f]{8}")
_COMMENT = re.compile(rf"# {SEAL} (?P<checksum>\S*)\s*\Z")


def private(path: str, flags: int) -> int:
    """Open a file that only its owner may read: an `opener` for `open`."""
    return os.open(path, flags, 0o600)


def make_private(folder: Path) -> None:
    """Make a folder that only its owner may read; one that is there keeps its rights."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file in one step."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes | memoryview) -> None:
    """Write a file in one step."""
    part = part_of(path)
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        part.unlink(missing_ok=True)
        raise
    part.replace(path)


def part_of(path: Path) -> Path:
    """Return the file that holds a file's new content until it is whole."""
    return path.with_name(f".{path.name}.part")


def write_json(path: Path, value: object) -> None:
    """Write a JSON file in one step."""
    write_text(path, json.dumps(value, indent=1, allow_nan=True) + "\n")


def write_sealed(path: Path, value: Mapping[str, object]) -> None:
    """Write a JSON file in one step, with its checksum."""
    write_text(path, sealed(json.dumps(value, indent=1, allow_nan=True)) + "\n")


class AlteredError(ValueError):
    """A text is not the one that was sealed."""

    def __init__(self) -> None:
        super().__init__("it does not match its checksum, so it is damaged or was edited after it was written")


def sealed(text: str) -> str:
    """Return the text of a JSON object with the checksum of all that comes before it as the last entry."""
    body = text[:-1].rstrip()
    close = text[len(body) :]  # the brace, and the line break before it
    body += ("," if body != "{" else "") + (f"{close[:-1]} " if len(close) > 1 else " ")
    return f'{body}"{SEAL}": "{_checksum(body)}"{close}'


def unsealed(text: str) -> Any:
    """Return the JSON value in a text, without its seal; a text that is not as it was sealed is a ValueError."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    last = next(reversed(value), "") if isinstance(value, dict) else ""
    ending = value[last] if last else None
    # the name of the seal may be what was damaged; nothing else that ends a file of ours looks like a checksum
    if last and (SEAL in value or (isinstance(ending, str) and _HEX.fullmatch(ending))):
        body = text[: text.rfind(f'"{SEAL}"')]
        if last != SEAL or value.pop(SEAL) != _checksum(body):
            raise AlteredError
    return value


def sealed_toml(text: str) -> str:
    """Return a TOML text with its checksum as the last comment."""
    return f"{text}# {SEAL} {_checksum(text)}\n"


def unsealed_toml(text: str) -> str:
    """Return a TOML text without its seal; one that is not as it was sealed is a ValueError."""
    seal = _COMMENT.search(text)
    if seal is None:
        return text
    body = text[: seal.start()]
    if seal["checksum"] != _checksum(body):
        raise AlteredError
    return body


def _checksum(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"


@contextmanager
def held(path: Path, *, wait: bool) -> Iterator[None]:
    """Lock a file against other processes; if it is locked, wait or raise BlockingIOError."""
    with path.open("a") as lock:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
