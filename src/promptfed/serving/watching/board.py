"""All runs below a folder: what there is, what has changed since somebody last looked, and drawings of some of them."""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from promptfed.core.printable import printable
from promptfed.results.report.curves import draw_traces
from promptfed.serving.watching.finding import Finder, held_files
from promptfed.serving.watching.watched import Entry, WatchedRun

SLICE = 0.25  # seconds of reading before what was found is shown
SPARING = 20  # times as long as it took, the search for new runs rests
AT_WORK = ("running", "starting")


@dataclass(frozen=True)
class View:
    """The runs at one moment; a later one has a higher version, if anything has changed."""

    version: int = 0
    order: tuple[str, ...] = ()  # keys, those at work first, the newest first
    ordered: int = 0  # the version in which the order was new
    entries: Mapping[str, tuple[int, Entry]] = field(default_factory=dict)  # and the version in which each was new
    drawn: Mapping[str, int] = field(default_factory=dict)  # a number per run that rises with its curve
    unread: int = 0

    def since(self, version: int) -> dict[str, Any]:
        """Return for JSON what is new since a version."""
        order = {"order": self.order} if self.ordered > version else {}
        fresh = [entry.plain() for when, entry in self.entries.values() if when > version]
        return {**order, "runs": fresh, "unread": self.unread}

    def at_work(self) -> list[str]:
        """Return the runs at work, the oldest first."""
        return [key for key in reversed(self.order) if self.entries[key][1].state in AT_WORK]


class Board:
    """Watches the runs below `root`, or the one that `root` is. One thread at a time may call it; anyone may `view`."""

    def __init__(self, root: Path, sparing: float = SPARING) -> None:
        self.root, self.sparing = root, sparing
        self.view = View()
        self._finder = Finder(root)
        self._runs: dict[Path, WatchedRun] = {}
        self._waiting: deque[WatchedRun] = deque()
        self._next = 0.0  # when to look for new runs

    def refresh(self, seconds: float = SLICE) -> bool:
        """Read for about so long and renew the view; return whether there is more to read."""
        held, now, start = held_files(), time.time(), time.monotonic()
        if not self._waiting:
            if start >= self._next:
                self._find()
                self._next = time.monotonic() + self.sparing * (time.monotonic() - start)
            self._waiting.extend(sorted(self._runs.values(), key=lambda run: -run.born))
        while self._waiting:
            run = self._waiting.popleft()
            if run.folder.is_dir():
                run.refresh(held, now)
            else:
                self._runs.pop(run.folder, None)
            if time.monotonic() - start > seconds:
                break
        self._renew()
        return bool(self._waiting)

    def draw(self, slots: Sequence[str]) -> dict[str, Any]:
        """Draw the curves of runs, each in the colour of its slot, for JSON; empty slots are skipped."""
        runs = {run.key: run for run in self._runs.values()}
        traces = [runs[key].trace(place) for place, key in enumerate(slots) if key in runs]
        known = [trace for trace in traces if trace.mean]
        if not known:
            return {"keys": [], "wide": "", "narrow": "", "caption": ""}
        figure = draw_traces(known)
        keys = [{"kind": key.kind, "series": key.series, "text": key.text} for key in figure.keys]
        return {"keys": keys, "wide": figure.wide, "narrow": figure.narrow, "caption": figure.caption}

    def _find(self) -> None:
        found = set(self._finder.find())
        self._runs = {path: run for path, run in self._runs.items() if path in found}
        for path in found - self._runs.keys():
            name = path.resolve().name if path == self.root else path.relative_to(self.root).as_posix()
            self._runs[path] = WatchedRun(path, name)

    def _renew(self) -> None:
        """Make a new view if anything differs from the last one."""
        old = self.view
        version = old.version + 1
        read = [run for run in self._runs.values() if run.entry is not None]
        read.sort(key=lambda run: (run.entry is None or run.entry.state not in AT_WORK, -run.born, run.name))
        entries = {}
        for run in read:
            known = old.entries.get(run.key)
            assert run.entry is not None
            entries[run.key] = known if known and known[1] == run.entry else (version, run.entry)
        order, drawn = tuple(run.key for run in read), {run.key: run.drawn for run in read}
        unread = len(self._runs) - len(read)
        if version > 1 and (order, drawn, unread, entries) == (old.order, old.drawn, old.unread, old.entries):
            return
        self.view = View(version, order, old.ordered if order == old.order else version, entries, drawn, unread)

    @property
    def title(self) -> str:
        """What the watched folder is called."""
        return printable(self.root.resolve().name or str(self.root))
