"""Which run folders there are, and in which a process is at work."""

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from promptfed.results.folder import names

BEGUN = {names.CHECKPOINT, names.SUMMARY}  # beside its recipe, a run has one of these before its first round
SETTLING = 2.0  # seconds in which a folder may change again without its time of change showing it
LOCKS = Path("/proc/locks")
_HELD = re.compile(r"FLOCK\s+\S+\s+WRITE\s+\S+\s+\S+:(\d+) ")


class Finder:
    """Finds the run folders below a folder; a folder that has not changed is not listed again."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._known: dict[Path, tuple[int, bool, tuple[Path, ...]]] = {}  # when changed, whether a run, what is below

    def find(self) -> list[Path]:
        """Return the run folders there are now. What lies inside one is not looked at, nor are links or hidden ones."""
        seen: dict[Path, tuple[int, bool, tuple[Path, ...]]] = {}
        found = list(self._below(self.root, seen))
        self._known = seen
        return found

    def _below(self, root: Path, seen: dict[Path, tuple[int, bool, tuple[Path, ...]]]) -> Iterator[Path]:
        waiting = [root]
        while waiting:
            folder = waiting.pop()
            try:
                changed = folder.stat().st_mtime_ns
                known = self._known.get(folder)
                if known is None or known[0] != changed:
                    settled = time.time() - changed / 1e9 > SETTLING
                    known = (changed if settled else -1, *_listed(folder))
            except OSError:  # it was deleted just now, or is not ours to read
                continue
            seen[folder] = known
            if known[1]:
                yield folder
            else:
                waiting += known[2]


def _listed(folder: Path) -> tuple[bool, tuple[Path, ...]]:
    """Return whether a folder is a run's, and the folders in it."""
    with os.scandir(folder) as entries:
        inside = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
    run = names.ROUNDS in inside or (names.RECIPE in inside and bool(BEGUN & inside.keys()))
    return run, tuple(folder / name for name, is_folder in inside.items() if is_folder and name[0] != ".")


def held_files() -> frozenset[int] | None:
    """Return the inodes of all files that a process on this machine has locked; None where the system does not tell.

    To ask for a lock would be surer, but could keep a run that begins at this moment from getting it.
    """
    try:
        return frozenset(int(found) for found in _HELD.findall(LOCKS.read_text(encoding="ascii")))
    except (OSError, ValueError):
        return None  # not Linux
