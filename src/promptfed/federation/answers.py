"""What the clients' models answer on their own test images, heard while they are tested anyway."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from promptfed.core import tree
from promptfed.core.method import Method, Task, classifies, tally
from promptfed.core.protocols import Batch
from promptfed.core.tree import Tree
from promptfed.results.folder.predictions import Predictions, fits

Part = dict[str, NDArray[Any]]


class Answers:
    """Listens to one evaluation; `rows` are the pool's indices of each client's test images."""

    def __init__(self, rows: Sequence[NDArray[np.int64]], classes: int) -> None:
        self.rows, self.classes = rows, classes
        self._whole = fits(sum(map(len, rows)), classes)
        self.parts: list[Part] = []  # of every batch

    def evaluate(self, method: Method, task: Task, params: Tree, batch: Batch, clients: Sequence[int]) -> Tree:
        """Return what `method.evaluate` returns, and keep the answers if the method gives any."""
        if not classifies(method):
            return method.evaluate(task, params, batch)
        logits = method.predict(task, params, tree.drop(batch, ["y"]))
        self._keep(logits, batch, torch.tensor(clients, device=logits.device))
        if type(method).evaluate is Method.evaluate:
            return tally(logits, batch)
        return method.evaluate(task, params, batch)  # a method around another one may count in its own way

    def _keep(self, logits: Tensor, batch: Batch, clients: Tensor) -> None:
        """Keep the answers for the images of a batch; its padding holds none."""
        there = batch["mask"] > 0
        predicted = logits.argmax(-1)
        shares = logits.float().softmax(-1)
        found = {
            "client": clients.view(-1, 1).expand(-1, there.shape[-1]).reshape(there.shape)[there],
            "index": batch["index"][there],
            "label": batch["y"][there],
            "predicted": predicted[there],
            "confidence": shares.gather(-1, predicted.unsqueeze(-1)).squeeze(-1)[there],
        }
        if self._whole:
            found["probabilities"] = shares[there]
        self.parts.append({name: value.cpu().numpy() for name, value in found.items()})

    def predictions(self) -> Predictions | None:
        """Return all answers in the order of clients and images; None if none was heard."""
        if not self.parts:
            return None
        heard = {name: np.concatenate([part[name] for part in self.parts]) for name in self.parts[0]}
        order = np.lexsort((heard["index"], heard["client"]))
        heard = {name: value[order] for name, value in heard.items()}
        starts = np.cumsum([0, *map(len, self.rows)])[:-1]
        images = np.concatenate([np.asarray(rows, np.int64) for rows in self.rows])
        return Predictions(
            clients=len(self.rows),
            classes=self.classes,
            client=heard["client"].astype(np.int32),
            image=images[starts[heard["client"]] + heard["index"]],
            label=heard["label"].astype(np.int32),
            predicted=heard["predicted"].astype(np.int32),
            confidence=heard["confidence"],
            probabilities=heard.get("probabilities"),
        )
