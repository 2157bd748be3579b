"""What a tracker does, and which trackers there are."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from promptfed.core.errors import PromptFedError, choice
from promptfed.results.tracking.numbers import Numbers


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is opened with: the run folder, its recipe under dotted keys, and what it kept in tracked.json."""

    folder: Path
    settings: Mapping[str, Any]
    kept: Mapping[str, Any]  # empty the first time

    @property
    def name(self) -> str:
        """Return what the run is called: its folder's name."""
        return self.folder.resolve().name


class Tracker(Protocol):
    """A run that is being tracked."""

    keep: dict[str, Any]  # what opens it again, for tracked.json
    last: int  # the last round it has

    def log(self, step: int, values: Numbers) -> None:
        """Add the numbers of a round."""
        ...

    def finish(self, step: int, values: Numbers) -> None:
        """Add the numbers of the end, and say that the run is finished."""
        ...

    def close(self) -> None:
        """Leave the tracked run, to be continued."""
        ...


class Opener(Protocol):
    """Opens a tracked run, or goes on in it."""

    def __call__(self, run: TrackedRun) -> Tracker:
        """Open it."""
        ...


# What each needs that is not part of PromptFed: the module, and how it is installed.
TRACKERS = {
    "tensorboard": ("tensorboard", '"promptfed[tensorboard]"'),
    "wandb": ("wandb", "wandb"),
    "trackio": ("trackio", "trackio"),
    "mlflow": ("mlflow", "mlflow"),
}


def check(names: tuple[str, ...]) -> None:
    """Refuse a tracker that does not exist or is not installed, before anything is run."""
    for name in names:
        if name not in TRACKERS:
            raise choice("tracker", name, TRACKERS)
        module, package = TRACKERS[name]
        try:
            import_module(module)
        except ImportError as error:
            raise PromptFedError(f"Tracking with {name} needs: pip install {package}.") from error


def opener(name: str) -> Opener:
    """Return what opens a tracker of that name."""
    found: Opener = import_module(f"promptfed.results.tracking.{name}").open_run
    return found
