"""Weights & Biases, by its documented API: wandb.init, run.log, run.summary and run.finish."""

import os
from importlib import import_module
from typing import Any

from promptfed.results.tracking.numbers import Numbers
from promptfed.results.tracking.tracker import TrackedRun

# All that wandb would otherwise send of its own accord: output, code, the machine, its name and its packages.
SILENT = {
    "console": "off",
    "disable_code": True,
    "disable_git": True,
    "disable_job_creation": True,
    "host": "",  # or every run has the name of its machine
    "save_code": False,
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}


class WandbRun:
    """A run of Weights & Biases. Its steps only rise, and a resumed one begins after its last.

    Offline there is no one to ask how far a run is, so tracked.json says it once the run is closed. Of one that was
    killed, wandb loses what it has not yet written: all rounds are sent again, to a new run.
    """

    def __init__(self, run: TrackedRun) -> None:
        wandb: Any = import_module("wandb")
        lost = run.kept.get("offline") and not run.kept.get("round")
        known = {"id": run.kept["id"], "resume": "allow"} if "id" in run.kept and not lost else {}
        self._run = wandb.init(
            project=run.kept.get("project") or os.environ.get("WANDB_PROJECT") or "promptfed",
            name=run.name,
            dir=str(run.folder),
            config=dict(run.settings),
            allow_val_change=True,  # a resumed run may have more rounds
            settings=wandb.Settings(**SILENT),
            **known,
        )
        self.keep: dict[str, Any] = {"id": self._run.id, "project": self._run.project}
        self._offline = bool(self._run.offline)
        if self._offline:
            self.keep |= {"offline": True, "round": 0}
        kept = int(run.kept.get("round", 0))
        self.last = kept if self._offline else max(0, self._run.step - 1)  # it has the step it would log next

    def log(self, step: int, values: Numbers) -> None:
        """Add the numbers of a round."""
        self._run.log(values, step=step)

    def finish(self, step: int, values: Numbers) -> None:
        """Put the numbers of the end into the summary, and end the run."""
        self._run.summary.update(values)
        self._end(0)

    def close(self) -> None:
        """End the run as one that was stopped."""
        self._end(1)

    def _end(self, code: int) -> None:
        self._run.finish(exit_code=code)
        if self._offline:
            self.keep = self.keep | {"round": self.last}


def open_run(run: TrackedRun) -> WandbRun:
    """Start a run of Weights & Biases, or go on in it."""
    return WandbRun(run)
