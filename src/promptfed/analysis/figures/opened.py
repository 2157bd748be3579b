"""A finished run opened for a figure: what its models say of any images, and what goes on inside them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from promptfed.analysis.figures.inspection import Inspection, look
from promptfed.backbones.cached import seen
from promptfed.core.errors import PromptFedError
from promptfed.core.protocols import Batch
from promptfed.core.tree import Tree
from promptfed.data.batches import Pool
from promptfed.data.dataset import Images
from promptfed.results.report import read_run
from promptfed.runs.finished import FinishedRun, open_run

# The paper's number of clients in its figures, and of images of one colour.
CLIENTS, COLOURS = 10, 100


def reopen(folder: Path, device: str = "auto") -> FinishedRun:
    """Open a finished run at its last checkpoint."""
    read_run(folder)  # it says best what is wrong with a folder that holds no run
    return open_run(folder, device)


def blank_batch(run: FinishedRun, client: int, images: Images) -> Batch:
    """Return images [N, H, W, 3] of no data set as the client sees them; a frozen backbone reads them first."""
    nothing = np.zeros(len(images), np.int64)
    given = replace(run.dataset, images=images, labels=nothing, test=nothing > 0, domains=nothing, val=None, used=None)
    pool = Pool(given, run.device)
    if (reads := run.method.traits.reads) != "pixels":
        with torch.no_grad():
            features = seen(run.image_task.backbone, reads, pool.images(torch.arange(len(images))))
        pool = Pool(given, run.device, features)
    return run.batch(client, np.arange(len(images)), pool)


def inspect(run: FinishedRun, params: Tree, batch: Batch, *, bare: bool = False) -> Inspection:
    """Return a model's answers with what went on inside it; `bare`: without its prompt."""
    if run.method.traits.reads != "pixels":
        raise PromptFedError(
            f"Method {run.name} reads features that a frozen backbone computed once; this figure needs a method "
            "that sees pixels."
        )
    return look(run.method, run.task, params, batch, bare=bare)


def chosen(run: FinishedRun, clients: Sequence[int], most: int = CLIENTS) -> list[int]:
    """Return the clients asked for, or the first ones."""
    count = len(run)
    for client in clients:
        if not 0 <= client < count:
            raise PromptFedError(f'There is no client {client} in "{run.folder}"; it has clients 0 to {count - 1}.')
    return list(dict.fromkeys(clients)) or list(range(min(most, count)))


def pure_colours(count: int, height: int, width: int) -> Images:
    """Return images of one colour each [count, height, width, 3], all colours different and the same in every run."""
    codes = np.random.default_rng(0).choice(1 << 24, count, replace=False)
    colours = np.stack([codes >> 16, codes >> 8 & 255, codes & 255], -1).astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(colours[:, None, None], (count, height, width, 3)))
