"""One run as it is watched: what it is, how far, how accurate, and what is wrong with it."""

import hashlib
import os
import shlex
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from promptfed.core.errors import PromptFedError
from promptfed.core.printable import printable
from promptfed.results.folder import names
from promptfed.results.folder.parts import Json, parse_recipe, read_json, read_text
from promptfed.results.folder.reader import committed_rounds, finished_facts, name_in, planned_rounds, whole_in
from promptfed.results.folder.record import over_sites
from promptfed.results.report.curves import Trace
from promptfed.results.report.table import human_bytes, percent
from promptfed.serving.watching.tail import Point, Tail

STATE = f"{names.CHECKPOINT}/{names.STATE}"
RECENT = 10  # rounds whose mean time is taken for that of the next ones
QUIET = 15.0  # seconds without a change after which a run counts as stopped, if its lock has not been seen
SILENT = 60.0  # the same where the system shows no locks
FIRST = 600.0  # the same before the first round, which may take long
Signature = tuple[int, int, int]


@dataclass(frozen=True)
class Entry:
    """What the page shows of a run, as text."""

    key: str  # names the run in requests, whatever its folder is called
    name: str
    about: str
    state: str  # starting, running, stopped, finished or damaged
    note: str = ""  # what is wrong with it, or why it ended
    command: str = ""  # what continues it
    round: int = 0
    rounds: int | None = None
    left: str = ""
    mean: str = ""
    worst: str = ""
    sent: str = ""

    def plain(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


class WatchedRun:
    """A run folder; every `refresh` reads what has changed in it, and nothing else."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, printable(name)
        self.key = hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]
        self.tail = Tail(folder / names.ROUNDS)
        self.drawn = 0  # rises whenever the curve may have changed
        self.recipe: Json = {}
        self.facts: dict[str, Any] | None = None  # of summary.json
        self.entry: Entry | None = None
        self._committed, self._reason = 0, ""
        self._faults: dict[str, str] = {}
        self._seen: dict[str, Signature | None] = {}
        self._was_held = False

    def refresh(self, held: frozenset[int] | None, now: float) -> Entry:
        """Look again; `held` are the inodes of locked files, None if unknown.

        A run that cannot be read has an entry that says so.
        """
        self._read(names.RECIPE, self._read_recipe)
        self._read(names.SUMMARY, self._read_summary)
        working = self.facts is None and self._working(held, now)
        for name, read in ((STATE, self._read_state), (names.FAILED, self._read_failure)):
            if working:
                self._forget(name)
            else:  # before the rounds: a run at work only adds to them
                self._read(name, read)
        if self.tail.refresh():
            self.drawn += 1
        try:
            self.entry = self._described(working)
        except (ValueError, TypeError, ArithmeticError) as error:
            self.entry = Entry(
                self.key, self.name, "", "damaged", f"Its numbers cannot be read ({type(error).__name__})."
            )
        return self.entry

    @property
    def born(self) -> int:
        """When the run began, as far as its recipe tells."""
        seen = self._seen.get(names.RECIPE)
        return seen[2] if seen else 0

    def trace(self, colour: int) -> Trace:
        """Return its curve."""
        points = [self.tail.points[number] for number in sorted(self.tail.points)]

        def over(read: Callable[[Point], float | None]) -> tuple[tuple[float, float], ...]:
            return tuple((one.number, 100 * value) for one in points if (value := read(one)) is not None)

        facts = self.facts or {}
        return Trace(
            label=self.name,
            colour=colour,
            mean=over(lambda one: one.mean),
            worst=over(lambda one: one.worst),
            best=over(lambda one: one.best),
            trained=over(lambda one: one.trained),
            deployed=over(lambda one: one.deployed),
            joined=self._joined(points),
            adapts=facts.get("scores") is not None and facts["scores"] != facts["before"],
        )

    def _joined(self, points: list[Point]) -> int | None:
        late = whole_in(self.recipe, "newcomers")
        first = self._clients() - late
        return next((one.number for one in points if one.last >= first), None) if late else None

    def _clients(self) -> int:
        return whole_in(self.recipe, "clients") or (self.facts["clients"] if self.facts else 0)

    # -- files ---------------------------------------------------------------------------------------------------------

    def _read(self, name: str, read: Callable[[Path], None]) -> None:
        """Read a file if it has changed; what is wrong with it is kept until it changes again."""
        path = self.folder / name
        seen = _signature(path)
        if name in self._seen and seen == self._seen[name]:
            return
        self._seen[name] = seen
        self._faults.pop(name, None)
        try:
            read(path)
        except PromptFedError as error:
            self._faults[name] = str(error)
        except Exception as error:  # a file may hold anything, and the others must still be watched
            self._faults[name] = f'"{path}" cannot be read: {type(error).__name__}.'

    def _forget(self, name: str) -> None:
        """Read a file again when it next counts."""
        self._seen.pop(name, None)
        self._faults.pop(name, None)

    def _read_recipe(self, path: Path) -> None:
        self.recipe = {}
        if not path.is_file():
            raise PromptFedError(f"{names.RECIPE} is missing.")
        self.recipe = parse_recipe(path, read_text(path))

    def _read_summary(self, path: Path) -> None:
        self.facts = None
        raw = read_json(path)
        if raw is not None:
            self._committed = committed_rounds(self.folder, raw)
            self.facts = finished_facts(path, raw, self.recipe)

    def _read_state(self, path: Path) -> None:
        self._committed = committed_rounds(self.folder, None) if self.facts is None else self._committed

    def _read_failure(self, path: Path) -> None:
        self._reason = ""
        self._reason = str((read_json(path) or {}).get("reason", ""))

    # -- state ---------------------------------------------------------------------------------------------------------

    def _working(self, held: frozenset[int] | None, now: float) -> bool:
        """Return whether a process is at work: surely if it holds the lock, else by when something last changed.

        The lock of a process on another machine does not show here; one that showed and went tells that it ended.
        """
        lock = _signature(self.folder / names.LOCK)
        if lock is not None and held is not None and lock[0] in held:
            self._was_held = True
            return True
        if self._was_held:
            return False
        rounds = _signature(self.folder / names.ROUNDS)
        slowest = max((one.seconds for one in self._recent()), default=0.0)
        patience = max(SILENT if held is None else QUIET, 3 * slowest) if rounds else FIRST
        last = rounds[2] if rounds else self.born
        return now - last / 1e9 < patience

    def _recent(self) -> list[Point]:
        return list(self.tail.points.values())[-RECENT:]

    def _described(self, working: bool) -> Entry:
        points = self.tail.points
        reached = max(points, default=0)
        faults = [*self._faults.values(), self.tail.fault]
        if not working and reached < self._committed:
            faults.append(f"Round {self._committed} is finished, but its line in {names.ROUNDS} is missing or torn.")
        fault = next((one for one in faults if one), "")
        planned = self.facts["planned_rounds"] if self.facts else planned_rounds(self.recipe)
        state = "finished" if self.facts else "stopped" if not working else "running" if points else "starting"
        mean, worst = self._scores()
        sent = sum(one.sent for one in points.values())
        note = fault or (self.facts["stopped"] if self.facts else self._reason if state == "stopped" else "")
        return Entry(
            key=self.key,
            name=self.name,
            about=self._about(),
            state="damaged" if fault else state,
            note=printable(note),
            command=self._command() if state == "stopped" and not fault and not self._reason else "",
            round=reached,
            rounds=planned,
            left=self._left(planned, reached) if state == "running" and not fault else "",
            mean=percent(mean) if mean is not None else "",
            worst=percent(worst) if worst is not None else "",
            sent=human_bytes(sent) if points else "",
        )

    def _scores(self) -> tuple[float | None, float | None]:
        """Return the mean and the worst client: of the final models, or as received so far."""
        if self.facts is not None and self.facts["scores"] is not None:
            return self.facts["scores"].mean, self.facts["scores"].worst
        tested = [one for one in self.tail.points.values() if one.mean is not None]
        last = max(tested, key=lambda one: one.number, default=None)
        return (last.mean, last.worst) if last else (None, None)

    def _about(self) -> str:
        if not self.recipe:
            return ""
        clients = self._clients()
        parts = [
            f"{name_in(self.recipe, 'method')} on {name_in(self.recipe, 'data')}",
            name_in(self.recipe, "backbone"),
        ]
        parts += [f"{clients} clients"] if clients else []
        return printable(", ".join([*parts, f"seed {self.recipe.get('seed', 0)}"]))

    def _command(self) -> str:
        """Return what continues a stopped run; one over sites is continued where its kits are."""
        return "" if over_sites(self.folder) else printable(f"promptfed run --resume {shlex.quote(str(self.folder))}")

    def _left(self, planned: int | None, reached: int) -> str:
        recent = [one.seconds for one in self._recent()]
        if not planned or not recent or reached >= planned:
            return ""
        return in_words((planned - reached) * sum(recent) / len(recent))


def in_words(seconds: float) -> str:
    """Return about how long something takes: under a minute, 12 min, 3 h 5 min, 2 days 4 h."""
    minutes = round(seconds / 60)
    if minutes < 1:
        return "under a minute"
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} day{'s' if days > 1 else ''}{f' {hours} h' if hours else ''}"


def _signature(path: Path) -> Signature | None:
    """Return what changes whenever a file does."""
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_ino, about.st_size, about.st_mtime_ns
