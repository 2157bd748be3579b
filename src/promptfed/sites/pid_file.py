"""Files that name the process at work: it holds them while it lives, so a number left behind misleads nobody."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


def acquire(file: IO[str], *, shared: bool = False) -> None:
    """Hold an open file and write this process into it; BlockingIOError if another holds it, unless all share it."""
    fcntl.flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX | fcntl.LOCK_NB)
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()


@contextmanager
def watching(path: Path) -> Iterator[None]:
    """Hold the file beside anyone else who watches, so that `running` finds one of them."""
    with path.open("a+") as file:
        acquire(file, shared=True)
        yield


def running(path: Path) -> int | None:
    """Return the process that holds the file, if one does."""
    if not path.exists():
        return None
    with path.open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(file.read() or 0) or None
    return None
