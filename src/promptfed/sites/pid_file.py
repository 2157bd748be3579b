"""Files that name a running process: it locks them while it lives, so a stale number is harmless."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


def acquire(file: IO[str], *, shared: bool = False) -> None:
    """Lock an open file and write this process's number into it; BlockingIOError if it is locked and not shared."""
    fcntl.flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX | fcntl.LOCK_NB)
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()


@contextmanager
def watching(path: Path) -> Iterator[None]:
    """Hold the file together with any other watcher, so that `running` finds one of them."""
    with path.open("a+") as file:
        acquire(file, shared=True)
        yield


def running(path: Path) -> int | None:
    """Return the process that holds the file, if any."""
    if not path.exists():
        return None
    with path.open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(file.read() or 0) or None
    return None
