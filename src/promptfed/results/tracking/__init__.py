"""Following a run in TensorBoard, Weights & Biases, Trackio or MLflow.

    numbers.py       what leaves: numbers of a round, of the end, and the recipe
    following.py     all trackers of one run, none of which can stop it
    tracker.py       what a tracker does, and which there are
    tensorboard.py, wandb.py, trackio.py, mlflow.py     one file per tracker

A tracked run belongs to a run folder, and its step is the round. tracked.json has its name, so a resumed run goes on
in it.
"""

from promptfed.results.tracking.following import Following, follow, send
from promptfed.results.tracking.tracker import TRACKERS, check

__all__ = ["TRACKERS", "Following", "check", "follow", "send"]
