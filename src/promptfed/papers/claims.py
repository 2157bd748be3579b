"""Which process does which run of a table that several work on, on one machine or on many with a shared folder.

    OUT/claims/RUN.0.json, RUN.1.json, …    who took a run; the last one counts, and is touched while it works
    OUT/claims/RUN.failed.json              what went wrong with it

A claim is a file that only one process can create. A process that has been silent for two minutes has died: the next
one creates the claim after it. Clocks of machines may differ, so silence is measured by the folder's own clock.
"""

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from glob import escape
from pathlib import Path
from typing import Any

from promptfed.core.files import write_json

FOLDER = "claims"
BEAT, SILENT = 10.0, 120.0  # seconds between two signs of life, and without one until a process counts as dead


@dataclass(frozen=True)
class TableWorker:
    """A process that works on a table: where it is, and which task of a cluster it is, if of one."""

    host: str
    pid: int
    task: str = ""

    @classmethod
    def here(cls) -> "TableWorker":
        """Return this process."""
        array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID", "")
        return cls(
            socket.gethostname(), os.getpid(), f"{array}_{task}" if array else os.environ.get("SLURM_JOB_ID", "")
        )

    def __str__(self) -> str:
        """Return where it is, in words."""
        return f"{self.host}, process {self.pid}" + (f", Slurm {self.task}" if self.task else "")


@dataclass(frozen=True)
class Claim:
    """One claim: its file, who made it, and how long ago it was last touched."""

    path: Path
    worker: TableWorker | None  # None: it is being written, or damaged
    silent: float

    @property
    def generation(self) -> int:
        """Return how many others came before it."""
        return int(self.path.name.split(".")[-2])


class Claims:
    """The claims on the runs below `out`."""

    def __init__(self, out: Path, beat: float = BEAT, silent: float = SILENT) -> None:
        self.out, self.beat, self.silent, self.worker = out, beat, silent, TableWorker.here()
        self.folder = out / FOLDER
        self.folder.mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def taken(self, run: Path) -> Iterator[bool]:
        """Yield whether this process may work on a run; if so, the claim is kept alive, and removed at the end."""
        path = self._take(run)
        if path is None:
            yield False
            return
        over = threading.Event()
        thread = threading.Thread(target=self._keep, args=(path, over), daemon=True)
        thread.start()
        try:
            yield True
        finally:
            over.set()
            thread.join()
            self._release(run)

    def _take(self, run: Path) -> Path | None:
        last = self.last(run)
        if last is not None and not self._dead(last):
            return None
        path = self.folder / f"{self._name(run)}.{0 if last is None else last.generation + 1}.json"
        try:
            with path.open("x", encoding="utf-8") as file:  # of several processes, one creates it
                json.dump(asdict(self.worker), file)
        except FileExistsError:
            return None
        return path

    def working(self, run: Path) -> bool:
        """Return whether some process works on a run."""
        last = self.last(run)
        return last is not None and not self._dead(last)

    def anyone(self) -> bool:
        """Return whether some process works on any run."""
        names = {path.name.rsplit(".", 2)[0] for path in self.folder.glob("*.[0-9]*.json")}
        return any(self.working(self.out / name) for name in names)

    def _dead(self, claim: Claim) -> bool:
        """Return whether nobody works under a claim: it has been silent, or its task of the cluster began anew."""
        again = bool(self.worker.task) and claim.worker is not None and claim.worker.task == self.worker.task
        return claim.silent > self.silent or (again and claim.worker != self.worker)

    def _keep(self, path: Path, over: threading.Event) -> None:
        """Touch a claim until it is over. If another process has taken it, end this one at once: it writes there."""
        while not over.wait(self.beat):
            later = path.with_name(f"{path.name.rsplit('.', 2)[0]}.{int(path.name.split('.')[-2]) + 1}.json")
            try:
                os.utime(path)
            except FileNotFoundError:
                later = path
            except OSError:  # the file server may be away for a moment
                continue
            if later.exists() or not path.exists():
                sys.stderr.write(
                    f"{path.stem} was silent for too long, and another process works on it; this one ends.\n"
                )
                sys.stderr.flush()
                os._exit(1)

    def _release(self, run: Path) -> None:
        for path in self.folder.glob(f"{escape(self._name(run))}.[0-9]*.json"):
            path.unlink(missing_ok=True)

    def last(self, run: Path) -> Claim | None:
        """Return the claim on a run that counts, or None."""
        name = self._name(run)
        found = {int(path.name.split(".")[-2]): path for path in self.folder.glob(f"{escape(name)}.[0-9]*.json")}
        if not found:
            return None
        path = found[max(found)]
        try:
            return Claim(path, _read(path), max(0.0, self._now() - path.stat().st_mtime))
        except FileNotFoundError:  # released meanwhile
            return None

    def _now(self) -> float:
        """Return the time by the clock of the file server, which is that of the claims."""
        probe = self.folder / f".now-{self.worker.host}-{self.worker.pid}"
        try:
            probe.touch()
            return probe.stat().st_mtime
        except OSError:
            return time.time()

    def close(self) -> None:
        """Remove what this process leaves behind."""
        (self.folder / f".now-{self.worker.host}-{self.worker.pid}").unlink(missing_ok=True)

    # -- what went wrong ----------------------------------------------------------------------------------------------

    def fail(self, run: Path, problem: str) -> None:
        """Note what went wrong with a run, so that no other process tries it again."""
        write_json(self.folder / f"{self._name(run)}.failed.json", {"problem": problem})

    def problem(self, run: Path) -> str:
        """Return what went wrong with a run; nothing if it has not failed."""
        try:
            found: dict[str, Any] = json.loads((self.folder / f"{self._name(run)}.failed.json").read_text("utf-8"))
            return str(found["problem"])
        except (OSError, ValueError, KeyError):
            return ""

    def forgive(self) -> None:
        """Forget all failures, unless others are at work: a new command tries them again."""
        for path in () if self.anyone() else self.folder.glob("*.failed.json"):
            path.unlink(missing_ok=True)

    def _name(self, run: Path) -> str:
        return (
            str(run.relative_to(self.out)).replace(os.sep, "~").replace(".", "_")
        )  # its last dots are the claim's own


def _read(path: Path) -> TableWorker | None:
    try:
        return TableWorker(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError):
        return None
