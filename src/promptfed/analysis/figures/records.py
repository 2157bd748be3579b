"""Figures drawn from a run folder's records alone, without a model: prompt drift and labels per client."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from promptfed.analysis.figures import plotting
from promptfed.analysis.figures.drawing import Drawing
from promptfed.core.errors import PromptFedError
from promptfed.results.folder.reader import RunFolder, read_run
from promptfed.results.report.groups import group_runs

DRIFT = "prompt_drift"


def named(folders: Sequence[Path]) -> dict[str, RunFolder]:
    """Return runs by what sets them apart: the method and its settings, the seed, and if need be the folder."""
    paths = list({folder.resolve(): folder for folder in folders}.values())
    groups = group_runs([read_run(path) for path in paths])
    runs = [
        (f"{group.label}, seed {run.seed}" if len(group.runs) > 1 else group.label, run)
        for group in groups
        for run in group.runs
    ]
    names = [name for name, _ in runs]
    return {name if names.count(name) == 1 else f"{name} [{run.path}]": run for name, run in runs}


def drift(folders: Sequence[Path], clients: Sequence[int]) -> Drawing:
    """Figure 7 of pFedPT: how far a prompt moves in each round, averaged over the round's clients."""
    if clients:
        raise PromptFedError("A run records the drift of a round, not of each client; leave out --client.")
    found = {name: drifts(run) for name, run in named(folders).items()}
    caption = "The mean absolute change of a prompt in a round, averaged over the clients of the round."
    picture = plotting.lines(found, "round", "prompt drift")
    return Drawing("Prompt drift", caption, {"runs": {name: list(points) for name, points in found.items()}}, picture)


def drifts(run: RunFolder) -> tuple[tuple[int, float], ...]:
    """Return the prompt drift of every round that has one."""
    found = tuple((one.number, one.measures[DRIFT]) for one in run.rounds if DRIFT in one.measures)
    if not found:
        raise PromptFedError(f'Run folder "{run.path}" records no prompt drift; {run.method} has no such prompt.')
    return found


def labels(folders: Sequence[Path], clients: Sequence[int]) -> Drawing:
    """Figure 10 of pFedPT: how many training images of each class every client holds."""
    run = read_run(folders[0])
    partition = run.partition
    if partition is None:
        raise PromptFedError(f'Run folder "{run.path}" has no partition.json, which says who holds what.')
    count = len(partition.clients)
    wrong = [client for client in clients if not 0 <= client < count]
    if wrong:
        raise PromptFedError(f'There is no client {wrong[0]} in "{run.path}"; it has clients 0 to {count - 1}.')
    members = list(dict.fromkeys(clients)) or list(range(count))
    values = np.array([partition.clients[client].counts for client in members], np.int64)
    where = f"{run.dataset}, {run.partition_name}"
    caption = f"Training images per class and client: {where}, {int(values.sum()):,} images."
    numbers = {"clients": members, "classes": list(partition.classes), "counts": values.tolist()}
    panels = {"training images": values.T}
    picture = plotting.heat_maps(panels, list(partition.classes), [str(client) for client in members], "client")
    return Drawing("Labels per client", caption, numbers, picture)
