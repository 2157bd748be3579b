"""HOME/audit.jsonl: a record of every message that leaves a site, in a chain that shows any later change.

    audit.jsonl                 the newest records, a line each
    audit.0000000001.jsonl      older ones, by the number of the first; nothing is ever removed
    audit.head                  the number and hash of the last record, so that a missing end is noticed

A record names the hash of the one before it and is signed with the site's own key (`identity.pem`). It is on the disk
before the message leaves, which takes its number and hash to the coordinator. `promptfed sites audit HOME` checks all.
"""

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptfed.core import tree
from promptfed.core.files import AlteredError, make_private, unsealed, write_sealed
from promptfed.sites.disclosure import digest
from promptfed.sites.identity import signing_key
from promptfed.sites.versions import PACKED_BY
from promptfed.sites.wire import Header, Message, Refused

FILE, HEAD = "audit.jsonl", "audit.head"
AUDIT = "audit"  # the part of an answer's head that tells its record
OUTSIDE = (AUDIT, "format", PACKED_BY)  # what is added to a head after its digest was taken
FIRST = ("run", "round", "kind", "nonce", "error")  # what a record repeats of the message's head, by name
LARGEST = 2**24  # bytes of a file
LONGEST = 500  # letters of a text that is recorded as it is
GENESIS = hashlib.sha256(b"promptfed audit\n").hexdigest()
DAMAGED = "its audit log does not check out, so nothing leaves before its owner has looked at it"
LINE = re.compile(rb'(?P<body>\{.*), "hash": "(?P<hash>[0-9a-f]{64})", "signature": "(?P<signature>[0-9a-f]{128})"\}')


@dataclass(frozen=True)
class Mark:
    """A place in the log: the number of a record, counted from 1, and its hash."""

    number: int
    hash: str


def describe(message: Message) -> Header:
    """Return what a record says of a message: names, shapes and a digest of its tensors, never a value."""
    told = {key: _shortened(value) for key, value in message.head.items() if key not in FIRST}
    tensors = {
        name: {"type": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}
        for name, value in message.tree.items()
    }
    first = {key: _shortened(message.head.get(key)) for key in FIRST}  # a coordinator must not fill the disk
    size = tree.nbytes(message.tree)
    return {**first, "head": told, "tensors": tensors, "bytes": size, "digest": digest_of(message)}


def digest_of(message: Message) -> str:
    """Return the digest of a message, which a coordinator that has kept it can work out too."""
    head = json.dumps({key: value for key, value in message.head.items() if key not in OUTSIDE}, sort_keys=True)
    return hashlib.sha256(f"{head}\n{digest(message.tree)}".encode()).hexdigest()


class AuditLog:
    """The log of one site, to which records are only ever added."""

    def __init__(self, home: Path, site: str) -> None:
        self.home, self.site, self.path = home, site, home / FILE
        self._last: Mark | None = None  # as this process has written it
        self._size = -1  # of the file after that

    def append(self, entry: Mapping[str, Any]) -> Mark:
        """Add a record; when this returns it is on the disk. OSError if it cannot be, and then the log is as before."""
        make_private(self.home)
        last = self._checked()
        body = json.dumps({"n": last.number + 1, "before": last.hash, "time": _now(), "site": self.site, **entry})
        found = hashlib.sha256(body.encode()).hexdigest()
        signature = signing_key(self.home).sign(signed(found)).hex()
        line = f'{body[:-1]}, "hash": "{found}", "signature": "{signature}"}}\n'.encode()
        if self._bytes() >= LARGEST:
            self._set_aside()
        self._size = _append(self.path, line)
        self._last = Mark(last.number + 1, found)
        write_sealed(self.home / HEAD, {"n": self._last.number, "hash": found})
        return self._last

    def _checked(self) -> Mark:
        """Return the last record, if the log ends as it was left; a line cut off by a crash never left, and goes."""
        if self._last is not None and self._bytes() == self._size:
            return self._last
        content = self.path.read_bytes() if self.path.is_file() else b""
        whole = content.rfind(b"\n") + 1
        last, head = self._end(content[:whole]), read_head(self.home)
        if last.number < head.number or (last.number == head.number and last.hash != head.hash):
            raise Refused(DAMAGED)
        if whole < len(content):
            os.truncate(self.path, whole)
        return last

    def _end(self, content: bytes) -> Mark:
        """Return the last whole record, in the newest file or in the one before it."""
        lines = content.split(b"\n")[:-1]
        if not lines and (older := older_files(self.home)):
            lines = older[-1].read_bytes().split(b"\n")[:-1]
        if not lines:
            return Mark(0, GENESIS)
        parsed = parse(lines[-1])
        if parsed is None or parsed.found != parsed.hash:
            raise Refused(DAMAGED)
        return Mark(int(parsed.record["n"]), parsed.hash)

    def _set_aside(self) -> None:
        """Give a full file the number of its first record."""
        with self.path.open("rb") as file:
            first = parse(file.readline().rstrip(b"\n"))
        if first is None:
            raise Refused(DAMAGED)
        self.path.rename(self.home / f"audit.{first.record['n']:010d}.jsonl")

    def _bytes(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0


@dataclass(frozen=True)
class Parsed:
    """A line of the log: its record, the hash it states and the one it has, and its signature."""

    record: dict[str, Any]
    hash: str
    found: str
    signature: bytes


def parse(line: bytes) -> Parsed | None:
    """Return a line's record; None if it is not one at all."""
    match = LINE.fullmatch(line)
    if match is None:
        return None
    body = match["body"] + b"}"
    try:
        record = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if type(record.get("n")) is not int:
        return None
    found = hashlib.sha256(body).hexdigest()
    return Parsed(record, match["hash"].decode(), found, bytes.fromhex(match["signature"].decode()))


def signed(found: str) -> bytes:
    """Return what the signature of a record with this hash is over."""
    return f"promptfed audit record {found}".encode()


def older_files(home: Path) -> list[Path]:
    """Return the files that were full, oldest first."""
    return sorted(home.glob("audit.[0-9]*.jsonl"))


def read_head(home: Path) -> Mark:
    """Return the last record as audit.head names it; one before the first if there is no such file."""
    path = home / HEAD
    if not path.exists():
        return Mark(0, GENESIS)
    try:
        content = unsealed(path.read_text(encoding="utf-8"))
        return Mark(int(content["n"]), str(content["hash"]))
    except (AlteredError, ValueError, KeyError, TypeError) as error:
        raise Refused(DAMAGED) from error


def _append(path: Path, line: bytes) -> int:
    """Add a line, or nothing at all; return the size of the file."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        before, rest = os.fstat(file).st_size, line
        try:
            while rest:
                rest = rest[os.write(file, rest) :]
            os.fsync(file)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(file, before)
            raise
        return before + len(line)
    finally:
        os.close(file)


def _shortened(value: object) -> object:
    """Return a part of a head as it is, or its digest if it is long: certificates would fill the log."""
    text = json.dumps(value)
    return value if len(text) <= LONGEST else f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _now() -> float:
    return round(time.time(), 3)
