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
    "save_code": False,
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}


class WandbRun:
    """A run of Weights & Biases. Its steps only rise, and a resumed one begins after its last."""

    def __init__(self, run: TrackedRun) -> None:
        wandb: Any = import_module("wandb")
        known = {"id": run.kept["id"], "resume": "allow"} if "id" in run.kept else {}
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
        self.last = max(0, self._run.step - 1)  # the step it would log next is one more than the last

    def log(self, step: int, values: Numbers) -> None:
        """Add the numbers of a round."""
        self._run.log(values, step=step)

    def finish(self, step: int, values: Numbers) -> None:
        """Put the numbers of the end into the summary, and end the run."""
        self._run.summary.update(values)
        self._run.finish()

    def close(self) -> None:
        """End the run as one that was stopped."""
        self._run.finish(exit_code=1)


def open_run(run: TrackedRun) -> WandbRun:
    """Start a run of Weights & Biases, or go on in it."""
    return WandbRun(run)
