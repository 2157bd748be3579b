"""Trackio, by its documented API: trackio.init, run.log and run.finish."""

from importlib import import_module
from inspect import signature
from typing import Any
from uuid import uuid4

from promptfed.results.tracking.numbers import Numbers
from promptfed.results.tracking.tracker import TrackedRun


class TrackioRun:
    """A run of Trackio. It is known by its name, so that has letters of its own.

    It writes twice a second, so a run that was killed may lack rounds that it was given. The step it would take next
    says how far it is; a Trackio that does not tell is believed to have what tracked.json says.
    """

    def __init__(self, run: TrackedRun) -> None:
        trackio: Any = import_module("trackio")
        name = run.kept.get("name") or f"{run.name}-{uuid4().hex[:6]}"
        self.keep: dict[str, Any] = {"name": name, "round": int(run.kept.get("round", 0))}
        known = signature(trackio.init).parameters
        self._run = trackio.init(
            project="promptfed",
            name=name,
            config=dict(run.settings),
            resume="allow",
            **{word: False for word in ("auto_log_gpu", "auto_log_cpu") if word in known},
        )
        self.last = max(0, getattr(self._run, "_next_step", self.keep["round"] + 1) - 1)

    def log(self, step: int, values: Numbers) -> None:
        """Add the numbers of a round."""
        self._run.log(values, step=step)
        self.keep = self.keep | {"round": step}

    def finish(self, step: int, values: Numbers) -> None:
        """Add the numbers of the end beside those of the last round."""
        if values:
            self._run.log(values, step=step)
        self.close()

    def close(self) -> None:
        """End the run; it may be resumed."""
        self._run.finish()


def open_run(run: TrackedRun) -> TrackioRun:
    """Start a run of Trackio, or go on in it."""
    return TrackioRun(run)
