"""Runs that go on, are cut back and end, by the code that writes real ones."""

import os
from pathlib import Path
from typing import Any

from promptfed.results.folder.record import Record
from support.fake_runs import one_round, write_run

CLIENTS, FLOATS = 4, 7680


def begun(folder: Path, done: int = 4, rounds: int = 10, **changes: Any) -> Record:
    """Return an unfinished run, open for writing."""
    write_run(folder, rounds=rounds, done=done, clients=CLIENTS, **changes)
    record = Record.reopen(folder)
    record.read(done)
    return record


def grow(record: Record, count: int = 1, level: float = 0.7) -> None:
    """Add rounds."""
    for _ in range(count):
        record.append(one_round(len(record.rounds) + 1, level, CLIENTS, FLOATS))


def age(folder: Path, seconds: float = 10_000) -> None:
    """Let everything in a folder, and the folder, have been written that long ago."""
    for path in (folder, *folder.rglob("*")):
        past = path.stat().st_mtime - seconds
        os.utime(path, (past, past))
