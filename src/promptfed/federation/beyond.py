"""Testing every client's own model on more than the client's own images; `federation.evaluate` names the sets."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from promptfed.core import tree
from promptfed.core.method import Method, Task, renamed, tally
from promptfed.core.protocols import Batch
from promptfed.core.tree import Tree
from promptfed.data.batches import ClientData
from promptfed.federation.evaluate import Score, score
from promptfed.federation.tested_sets import BASE, NEIGHBOUR, NOVEL, OWN_NAMES, SETS

Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class OtherImages:
    """Images on which every client's own model is tested: their rows, and the classes that are named for them."""

    name: str
    task: Task
    rows: tuple[Indices, ...]  # of every client
    first: int = 0  # the label of the first class
    own_names: bool = False  # only classes that the client trains on

    def of(self, data: ClientData) -> ClientData:
        """Return these images for the clients of `data`, their labels counted from the first class."""
        own = replace(data, rows=tuple(self.rows[client] for client in data.clients))
        return own.map(_counted, {"first": torch.tensor(self.first, device=data.pool.x.device)}) if self.first else own

    def evaluate(self, method: Method, task: Task, params: Tree, batch: Batch, clients: Sequence[int]) -> Tree:
        """Return what is counted of a batch. With `own_names` a model may ask which: `batch["named"]` [classes]."""
        if not self.own_names:
            return method.evaluate(task, params, batch)
        named = batch["counts"] > 0
        logits = method.predict(task, params, tree.drop(batch, ["y"]) | {"named": named.to(batch["mask"].dtype)})
        return tally(logits.masked_fill(~named.unsqueeze(-2), torch.finfo(logits.dtype).min), batch)


def _counted(given: Tree, batch: Batch) -> Batch:
    return batch | {"y": batch["y"] - given["first"]}


@dataclass(frozen=True)
class Beyond:
    """What every client's own model is tested on besides: the sets that are wanted, and what is looked at for them."""

    wanted: tuple[str, ...] = ()
    sets: tuple[OtherImages, ...] = ()

    @classmethod
    def of(
        cls, wanted: tuple[str, ...], task: Task, test: Sequence[Indices], others: Sequence[str], novel: Indices
    ) -> "Beyond":
        """Return the tests that are wanted; what can be added up is not looked at again.

        `test` are every client's own test images; `novel` are those of the classes `others`.
        """
        found = []
        if OWN_NAMES in wanted:
            found.append(OtherImages(OWN_NAMES, task, tuple(test), own_names=True))
        if BASE in wanted or NEIGHBOUR in wanted:
            everything = np.unique(np.concatenate([*test]))
            rest = tuple(np.setdiff1d(everything, own, assume_unique=True) for own in test)
            found.append(OtherImages(NEIGHBOUR, task, rest))
        if NOVEL in wanted:
            found.append(OtherImages(NOVEL, renamed(task, others), (novel,) * len(test), len(task.classes)))
        return cls(wanted, tuple(found))

    @property
    def images(self) -> int:
        """Return the number of images that all clients' models are tested on."""
        return sum(len(rows) for one in self.sets for rows in one.rows)

    def scores(self, sums: Tree) -> dict[str, Any]:
        """Return the scores of the sets from sums [C], and the means that base-to-novel tests report.

        hm = 2 · base · novel / (base + novel) of the means over clients, and cm = (own + hm) / 2 (FedMGP's CM).
        """
        counted = {name: (sums[f"{name}.correct"], sums[f"{name}.count"]) for name in SETS if f"{name}.count" in sums}
        if NEIGHBOUR in counted:
            correct, count = counted[NEIGHBOUR]
            counted[BASE] = correct + sums["correct"], count + sums["count"]
        found = {name: score(*(part.tolist() for part in counted[name])) for name in self.wanted}
        own = score(sums["correct"].tolist(), sums["count"].tolist())
        return {"sets": found} | _means(own, found) if found else {}


def _means(own: Score, found: dict[str, Score]) -> dict[str, float]:
    """Return the harmonic mean and the combined one, where base and novel images are tested."""
    mean, base, novel = own["mean"], found.get(BASE, {}).get("mean"), found.get(NOVEL, {}).get("mean")
    if not (isinstance(mean, float) and isinstance(base, float) and isinstance(novel, float)):
        return {}
    hm = 2 * base * novel / (base + novel) if base + novel else 0.0
    return {"hm": hm, "cm": (mean + hm) / 2}
