"""TensorBoard: event files in the run folder, where `tensorboard --logdir runs` finds them."""

import time
from importlib import import_module
from pathlib import Path
from typing import Any

from promptfed.results.folder import names
from promptfed.results.tracking.numbers import Numbers
from promptfed.results.tracking.tracker import TrackedRun


class EventFile:
    """An event file open for writing; TensorBoard reads all files of a folder as one run."""

    def __init__(self, run: TrackedRun) -> None:
        folder = run.folder / names.TENSORBOARD
        self.keep: dict[str, Any] = {"folder": names.TENSORBOARD}
        self.last = _last_step(folder)
        self._proto = import_module("tensorboard.compat.proto")
        for part in ("event_pb2", "summary_pb2"):
            import_module(f"tensorboard.compat.proto.{part}")
        self._writer = import_module("tensorboard.summary.writer.event_file_writer").EventFileWriter(str(folder))
        if not self.last:
            self._add(0, [_hyperparameters(run)])

    def log(self, step: int, values: Numbers) -> None:
        """Add the numbers of a round, on disk at once: a run may be killed at any time."""
        value = self._proto.summary_pb2.Summary.Value
        self._add(
            step, [self._proto.summary_pb2.Summary(value=[value(tag=k, simple_value=v) for k, v in values.items()])]
        )

    def finish(self, step: int, values: Numbers) -> None:
        """Add the numbers of the end."""
        if values:
            self.log(step, values)
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()

    def _add(self, step: int, summaries: list[Any]) -> None:
        for summary in summaries:
            self._writer.add_event(self._proto.event_pb2.Event(wall_time=time.time(), step=step, summary=summary))
        self._writer.flush()


def open_run(run: TrackedRun) -> EventFile:
    """Open an event file in the run's folder."""
    return EventFile(run)


def _last_step(folder: Path) -> int:
    """Return the last step in the folder's event files."""
    if not folder.is_dir():
        return 0
    module = import_module("tensorboard.backend.event_processing.event_accumulator")
    events = module.EventAccumulator(str(folder), size_guidance={module.SCALARS: 1}).Reload()
    return max((events.Scalars(tag)[-1].step for tag in events.Tags()[module.SCALARS]), default=0)


def _hyperparameters(run: TrackedRun) -> Any:
    """Return the recipe for TensorBoard's table of hyper-parameters."""
    plain = {key: value if isinstance(value, bool | int | float) else str(value) for key, value in run.settings.items()}
    return import_module("tensorboard.plugins.hparams.summary_v2").hparams_pb(plain, trial_id=run.name)
