"""Logs that processes write to for months: a full one is copied to NAME.1.log and emptied; a few copies are kept."""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path

from promptfed.core.files import private

LARGEST = 2**24  # bytes of a log
COPIES = 4  # that are kept, besides the log itself


def rotate(log: Path, largest: int = LARGEST, copies: int = COPIES) -> bool:
    """Copy a log that is too large and empty it; return whether it was.

    Its writers keep it open and append, so it must stay the same file. A disk without room for the copy loses it: a
    full disk would harm more than the loss of old lines.
    """
    if not log.exists() or log.stat().st_size <= largest:
        return False
    names = [log.with_name(f"{log.stem}.{number}{log.suffix}") for number in range(1, copies + 1)]
    names[-1].unlink(missing_ok=True)
    for newer, older in reversed(list(pairwise(names))):
        if newer.exists():
            newer.replace(older)
    with log.open("r+b") as source:
        try:
            with open(names[0], "wb", opener=private) as target:
                shutil.copyfileobj(source, target)
        except OSError:
            names[0].unlink(missing_ok=True)
        os.ftruncate(source.fileno(), 0)
    return True


def rotating(logs: Iterable[Path]) -> Callable[[], None]:
    """Return a function that rotates those of the logs that are too large; a log that resists stays as it is."""

    def look() -> None:
        for log in logs:
            with contextlib.suppress(OSError):
                rotate(log)

    return look
