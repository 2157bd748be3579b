"""MLflow, by its documented client: MlflowClient. The tracking server is the one of MLFLOW_TRACKING_URI."""

import os
import re
import time
from importlib import import_module
from typing import Any

from promptfed.results.tracking.numbers import Numbers
from promptfed.results.tracking.tracker import TrackedRun

ODD = re.compile(r"[^\w. /-]")  # what a name must not contain
MOST_PARAMETERS = 100  # in one request
LONGEST_VALUE = 500  # older servers take no more


class MlflowRun:
    """A run of MLflow. It keeps every value that it is given, so a round is sent once."""

    def __init__(self, run: TrackedRun) -> None:
        self._entities: Any = import_module("mlflow.entities")
        self._client = import_module("mlflow").MlflowClient()
        known = run.kept.get("run_id")
        self._id = str(known) if known else self._create(run)
        self.keep: dict[str, Any] = {"run_id": self._id}
        history = self._client.get_metric_history(self._id, "seconds") if known else []  # every round has seconds
        self.last = max((one.step for one in history), default=0)
        if known:
            self._client.update_run(self._id, status="RUNNING")

    def log(self, step: int, values: Numbers) -> None:
        """Add the numbers of a round in one request."""
        now = int(1000 * time.time())
        metrics = [self._entities.Metric(ODD.sub("_", name), value, now, step) for name, value in values.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def finish(self, step: int, values: Numbers) -> None:
        """Add the numbers of the end, and end the run."""
        if values:
            self.log(step, values)
        self._client.set_terminated(self._id, status="FINISHED")

    def close(self) -> None:
        """End the run as one that was stopped."""
        self._client.set_terminated(self._id, status="KILLED")

    def _create(self, run: TrackedRun) -> str:
        """Create the run with its recipe, and return its id; a value that MLflow has cannot be changed later."""
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "promptfed"
        found = self._client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else self._client.create_experiment(name)
        created = str(self._client.create_run(experiment, run_name=run.name).info.run_id)
        parameters = [
            self._entities.Param(ODD.sub("_", key), str(value)[:LONGEST_VALUE]) for key, value in run.settings.items()
        ]
        for first in range(0, len(parameters), MOST_PARAMETERS):
            self._client.log_batch(created, params=parameters[first : first + MOST_PARAMETERS])
        return created


def open_run(run: TrackedRun) -> MlflowRun:
    """Create a run of MLflow, or go on in it."""
    return MlflowRun(run)
