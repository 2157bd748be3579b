"""Following runs in TensorBoard, Weights & Biases, Trackio or MLflow."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from promptfed.cli.arguments import Dirs
from promptfed.cli.terminal import say
from promptfed.results.folder import names

Track = Annotated[
    list[str] | None,
    typer.Option(help="Follow the run in tensorboard, wandb, trackio or mlflow; may be repeated.", metavar="TRACKER"),
]


def again(trackers: Sequence[str]) -> str:
    """Return the options that name the same trackers again."""
    return "".join(f" --track {name}" for name in trackers)


def track(
    dirs: Dirs,
    to: Annotated[
        list[str], typer.Option(help="tensorboard, wandb, trackio or mlflow; may be repeated.", metavar="TRACKER")
    ],
) -> None:
    """Send runs to a tracker afterwards, finished or as far as they are.

    What the tracker has already is not sent again. A folder above runs stands for all of them:

        promptfed track runs/demo --to tensorboard
    """
    from promptfed.results import run_folders, tracking

    trackers = tuple(to)
    tracking.check(trackers)
    for folder in run_folders(dirs):
        _send(folder, trackers)


def _send(folder: Path, trackers: tuple[str, ...]) -> None:
    from promptfed.results import read_run, tracking

    read_run(folder)  # says what is wrong with a folder that is not a run's
    rounds = tracking.send(folder, trackers)
    say(f"{folder}: {rounds} rounds are in {' and '.join(trackers)}")
    if "tensorboard" in trackers:
        say(f"Look at them with: tensorboard --logdir {folder / names.TENSORBOARD}")
