"""One rounds.jsonl, followed: only what was appended is read, and all of it again where it was cut back."""

import os
import stat
from pathlib import Path
from typing import BinaryIO, NamedTuple

from promptfed.core.errors import PromptFedError
from promptfed.results.folder.parts import parse_round
from promptfed.results.folder.values import Round

MOST_ROUNDS = 10**9


class Point(NamedTuple):
    """What is kept of a round: little, since hundreds of runs may be watched."""

    number: int
    last: int  # the highest number of a client that took part
    mean: float | None
    worst: float | None
    best: float | None
    trained: float | None
    deployed: float | None
    sent: int  # bytes, both ways
    seconds: float


class Tail:
    """The rounds in a file so far.

    Resuming a run replaces the file by a shorter one, which may have grown past the old one before we look. So besides
    the file's identity and size, the last line read must still be where it was.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.points: dict[int, Point] = {}
        self.fault = ""  # what is wrong with the file, as a sentence
        self._seen: tuple[int, int, int] | None = None  # the file as it was: identity, size, time
        self._clear()

    def refresh(self) -> bool:
        """Read what is new, and return whether there may be a difference."""
        try:
            about = self.path.stat()
            if not stat.S_ISREG(about.st_mode):
                raise FileNotFoundError
            seen = (about.st_ino, about.st_size, about.st_mtime_ns)
            if seen == self._seen:
                return False
            with self.path.open("rb") as file:
                self._read(file)
            self._seen = seen
        except (FileNotFoundError, NotADirectoryError):
            changed = self._seen is not None
            self._seen = None
            self._clear()
            return changed
        except OSError as error:
            fault = f'"{self.path}" cannot be read: {error.strerror}.'
            changed, self.fault = self.fault != fault, fault
            self._seen = None
            return changed
        return True

    def _clear(self) -> None:
        self.points.clear()
        self._file, self._offset, self._lines, self._last = 0, 0, 0, b""
        self.fault = ""

    def _read(self, file: BinaryIO) -> None:
        about = os.fstat(file.fileno())
        file.seek(max(0, self._offset - len(self._last)))
        if about.st_ino != self._file or about.st_size < self._offset or file.read(len(self._last)) != self._last:
            self._clear()
            self._file = about.st_ino
            file.seek(0)
        self.fault = ""
        for line in file:
            if not line.endswith(b"\n"):
                break  # still being written, or torn by a crash: it does not count yet
            try:
                point = _point(parse_round(self.path, self._lines + 1, line[:-1].decode("utf-8")))
            except UnicodeDecodeError:
                self.fault = f'"{self.path}" is damaged: line {self._lines + 1} is not text.'
                break
            except (PromptFedError, ValueError) as error:
                known = isinstance(error, PromptFedError)
                self.fault = str(error) if known else f'"{self.path}", line {self._lines + 1}, is not a round: {error}.'
                break
            self.points[point.number] = point
            self._offset, self._lines, self._last = self._offset + len(line), self._lines + 1, line


def _point(one: Round) -> Point:
    """Return what is kept of a round, or refuse one with impossible numbers."""
    received, deployed = one.received, (one.deployed or {}).get("all")
    shares = (
        received.mean if received else None,
        received.worst if received else None,
        received.best if received else None,
        one.trained.mean if one.trained else None,
        deployed,
    )
    if any(share is not None and not 0 <= share <= 1 for share in shares):
        raise ValueError("an accuracy is not between 0 and 1")
    if not 1 <= one.number < MOST_ROUNDS:
        raise ValueError(f"its number is {one.number}")
    sent = one.traffic.down_bytes + one.traffic.up_bytes
    return Point(one.number, max(one.clients, default=-1), *shares, sent, one.seconds)
