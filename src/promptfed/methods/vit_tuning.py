"""ViT-tuning: a linear classifier on the features of a frozen image tower, averaged; a baseline of FedAPT.

The tower is CLIP's.
Symbol -> name: H -> head.*.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from promptfed.core import Count, Data, Method, NonNegative, Positive, Rng, Task, Traits, Tree, Whole, local, tree


@dataclass(frozen=True)
class ViTTuning(Method):
    """Average a linear head on the features of a frozen backbone."""

    name: ClassVar[str] = "vit-tuning"
    backbone: ClassVar[str] = "clip"
    traits = Traits(reads="features")
    presets: ClassVar = {"office": {"lr": 0.001, "batch": 32}, "domainnet": {"lr": 0.01, "batch": 256}}

    lr: Positive = 0.01
    epochs: Whole = 1
    batch: Count = 256
    momentum: NonNegative = 0.9
    weight_decay: NonNegative = 1e-5

    # -- what is learned, and where it lives ------------------------------------
    def init_server(self, task: Task, rng: Rng) -> Tree:
        """Return H [classes, D] with a bias."""
        return task.backbone.head(rng)

    # -- one round, in the order it happens -------------------------------------
    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        """Move H by SGD and send it."""
        batches = data.batches(size=self.batch, epochs=self.epochs)
        rates = local.Rates(lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        return tree.pick(local.sgd(self.loss, task, batches, start=down, params=down, **rates), down), personal

    def weight(self, facts: Tree) -> Tensor:
        """Let every client count once."""
        return torch.ones_like(facts["size"])
