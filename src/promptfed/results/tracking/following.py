"""All trackers of one run. A tracker that fails is left out with one sentence; the run goes on."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from promptfed.core.errors import PromptFedError
from promptfed.core.files import unsealed, write_json
from promptfed.results.folder import names
from promptfed.results.folder.parts import parse_recipe, read_summary, read_text
from promptfed.results.folder.record import over_sites
from promptfed.results.tracking.numbers import of_recipe, of_round, of_summary, own_images
from promptfed.results.tracking.tracker import TrackedRun, Tracker, check, opener

Line = Mapping[str, Any]
Report = Callable[[str, Exception], None]


class Following:
    """The trackers of one run that have not failed."""

    def __init__(self, folder: Path, kinds: Sequence[str], failed: Report) -> None:
        path = folder / names.RECIPE
        recipe = parse_recipe(path, read_text(path))
        self.folder, self.failed = folder, failed
        self.own = own_images(recipe) or over_sites(folder)
        self.trackers: dict[str, Tracker] = {}
        for kind in kinds:
            with self._leave_out(kind):
                self.trackers[kind] = opener(kind)(TrackedRun(folder, of_recipe(recipe), _kept(folder).get(kind, {})))
                self._keep(kind)

    def log(self, line: Line) -> None:
        """Send a round to the trackers that do not have it yet."""
        step = int(line["round"])
        for kind, tracker in list(self.trackers.items()):
            if step > tracker.last:
                with self._leave_out(kind):
                    tracker.log(step, of_round(line, self.own))
                    tracker.last = step
                    self._keep(kind)

    def finish(self, summary: Line) -> None:
        """Send the final accuracies to the trackers that do not have them, and say that the run is finished."""
        step = int(summary["accuracy"]["round"])
        for kind, tracker in list(self.trackers.items()):
            with self._leave_out(kind):
                sent = _kept(self.folder).get(kind, {}).get("final") == step
                tracker.finish(step, {} if sent else of_summary(summary))
                tracker.keep = tracker.keep | {"final": step}
                self._keep(kind)
        self.trackers = {}

    def close(self) -> None:
        """Leave the tracked runs, to be continued."""
        for kind, tracker in list(self.trackers.items()):
            with self._leave_out(kind):
                tracker.close()
                self._keep(kind)

    @contextmanager
    def _leave_out(self, kind: str) -> Iterator[None]:
        """Leave a tracker out from now on if it fails: a network or a full disk must not end a run."""
        try:
            yield
        except Exception as error:
            self.trackers.pop(kind, None)
            self.failed(kind, error)

    def _keep(self, kind: str) -> None:
        """Write what opens a tracked run again, if it has changed."""
        known = _kept(self.folder)
        kept = known.get(kind, {}) | self.trackers[kind].keep
        if known.get(kind) != kept:
            write_json(self.folder / names.TRACKED, known | {kind: kept})


@contextmanager
def follow(folder: Path, kinds: tuple[str, ...], failed: Report | None = None) -> Iterator[Following]:
    """Follow the run in `folder` by trackers; what fails is told in one sentence, or handed to `failed`."""
    check(kinds)
    following = Following(folder, kinds, failed or _warn)
    try:
        yield following
    finally:
        following.close()


def send(folder: Path, kinds: tuple[str, ...]) -> int:
    """Send what the run in `folder` has so far; return the number of its rounds. What fails is an error."""

    def fail(kind: str, error: Exception) -> None:
        raise PromptFedError(f"{folder} could not be sent to {kind} ({_cause(error)}).") from error

    lines = _lines(folder / names.ROUNDS)
    with follow(folder, kinds, fail) as following:
        for line in lines:
            following.log(line)
        if (folder / names.SUMMARY).is_file():
            following.finish(read_summary(folder))
    return len(lines)


def _lines(path: Path) -> list[Line]:
    """Return the finished rounds; a line without its end is one being written."""
    lines = []
    for number, text in enumerate(read_text(path).split("\n")[:-1], 1):
        try:
            lines.append(unsealed(text))
        except ValueError as error:
            raise PromptFedError(f'"{path}" is damaged in line {number}: {error}.') from error
    return lines


def _kept(folder: Path) -> dict[str, Any]:
    """Return what trackers have kept; a damaged file counts as none, since it has no say in the run."""
    try:
        found = json.loads((folder / names.TRACKED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _warn(kind: str, error: Exception) -> None:
    sys.stderr.write(
        f"Tracking with {kind} failed ({_cause(error)}); the run goes on without it. "
        f"Send the rest later with promptfed track RUN --to {kind}\n"
    )


def _cause(error: Exception) -> str:
    """Return an error in one line."""
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said[:200]}" if said else type(error).__name__
