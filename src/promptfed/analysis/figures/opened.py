"""A run folder opened for looking: every client's model, and batches of any images as that client would see them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from promptfed.analysis.figures.inspection import Inspection, look
from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.method import Method, Task
from promptfed.core.protocols import Batch
from promptfed.core.tree import Tree
from promptfed.data.batches import Pool
from promptfed.data.dataset import Dataset, Images, Indices
from promptfed.federation.loop import Loop
from promptfed.results.report import read_run
from promptfed.runs.finished import open_run

# The paper's number of clients in its figures, and of images of one colour.
CLIENTS, COLOURS = 10, 100


@dataclass(frozen=True)
class Opened:
    """A run at its last checkpoint."""

    folder: Path
    dataset: Dataset
    loop: Loop
    images: Task  # the task on images; the loop's own may be on features computed once

    @property
    def name(self) -> str:
        """Return the method's name as the recipe has it."""
        return read_run(self.folder).method

    @property
    def titled(self) -> str:
        """Return which run this is, for a caption."""
        return f"{self.name} on {self.dataset.name} after round {self.loop.finished}"

    @property
    def method(self) -> Method:
        """Return the method."""
        return self.loop.method

    def model(self, client: int) -> Tree:
        """Return what the client holds at the start of a round: what it receives and what it has kept."""
        down = self.method.download(self.loop.task, self.loop.server, torch.tensor([client]))
        return tree.row(down, 0) | tree.to(self.loop.store.get(client), self.loop.device)

    def counts(self, clients: Sequence[int]) -> Indices:
        """Return the clients' training images per class [C, classes]."""
        return self.loop.shards.facts(clients)["counts"].long().cpu().numpy()

    def batch(self, client: int, rows: Indices) -> Batch:
        """Return images of the data set as the client sees them, with whatever else a batch of its method has."""
        return self._batch(client, self.loop.shards.pool, rows)

    def blank(self, client: int, images: Images) -> Batch:
        """Return images [N, H, W, 3] of no data set as the client sees them; a frozen backbone reads them first."""
        nobody = np.zeros(len(images), np.int64)
        given = replace(
            self.dataset, images=images, labels=nobody, test=nobody > 0, domains=nobody, val=None, used=None
        )
        pool = Pool(given, self.loop.device)
        if self.method.traits.reads == "features":
            with torch.no_grad():
                features = self.images.backbone.features({}, pool.images(torch.arange(len(images))))
            pool = Pool(given, self.loop.device, features)
        return self._batch(client, pool, np.arange(len(images)))

    def _batch(self, client: int, pool: Pool, rows: Indices) -> Batch:
        data = self.loop.shards.data([client], 0, "test", stacked=False)
        data = replace(data.without_dropout(self.loop.task.backbone), pool=pool, rows=(rows,))
        (batch,) = data.batches("test", size=len(rows), ordered=True)
        return tree.drop(batch, ["y"])

    def logits(self, params: Tree, batch: Batch) -> Tensor:
        """Return a model's answers [B, classes]."""
        with torch.no_grad():
            return self.method.predict(self.loop.task, self.method.prepare(self.loop.task, params), batch)

    def look(self, params: Tree, batch: Batch, *, bare: bool = False) -> Inspection:
        """Return a model's answers with what went on inside it; `bare`: without its prompt."""
        if self.method.traits.reads == "features":
            raise PromptFedError(
                f"Method {self.name} reads features that a frozen backbone computed once; this figure needs a method "
                "that sees pixels."
            )
        return look(self.method, self.loop.task, params, batch, bare=bare)


def reopen(folder: Path, device: str = "auto") -> Opened:
    """Open a finished run at its last checkpoint."""
    read_run(folder)  # it says best what is wrong with a folder that holds no run
    found = open_run(folder, device)
    return Opened(folder, found.plan.dataset, found.loop, found.plan.task)


def chosen(run: Opened, clients: Sequence[int], most: int = CLIENTS) -> list[int]:
    """Return the clients asked for, or the first ones."""
    count = len(run.loop.shards)
    for client in clients:
        if not 0 <= client < count:
            raise PromptFedError(f'There is no client {client} in "{run.folder}"; it has clients 0 to {count - 1}.')
    return list(dict.fromkeys(clients)) or list(range(min(most, count)))


def pure_colours(count: int, height: int, width: int) -> Images:
    """Return images of one colour each [count, height, width, 3], all colours different and the same in every run."""
    codes = np.random.default_rng(0).choice(1 << 24, count, replace=False)
    colours = np.stack([codes >> 16, codes >> 8 & 255, codes & 255], -1).astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(colours[:, None, None], (count, height, width, 3)))
