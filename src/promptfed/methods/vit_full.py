"""ViT-full: the whole image tower and a linear classifier, averaged; a baseline of FedAPT.

The tower is CLIP's.
Symbol -> name: H -> head.*, the tower's weights under their own names.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from promptfed.core import Count, Data, Method, NonNegative, Positive, Rng, Task, Tree, Whole, local, tree

MOMENTS, EPS = (0.9, 0.98), 1e-6  # of Adam, as CLIP was trained; a smaller eps lets gradients that are only noise count


@dataclass(frozen=True)
class ViTFull(Method):
    """Average a whole pretrained backbone and its head, every client counting once."""

    name: ClassVar[str] = "vit-full"
    backbone: ClassVar[str] = "clip"
    presets: ClassVar = {
        "office": {"lr": 0.001, "batch": 32},
        "domainnet": {"lr": 0.01, "batch": 256},
        "adam": {"optimiser": "adam", "lr": 1e-5, "weight_decay": 0.01},
    }

    optimiser: Literal["sgd", "adam"] = "sgd"
    lr: Positive = 0.01
    epochs: Whole = 1
    batch: Count = 256
    momentum: NonNegative = 0.9  # of SGD
    weight_decay: NonNegative = 1e-5
    clip: NonNegative = 0.0  # of a client's gradient, by SGD; 0: none

    # -- what is learned, and where it lives ------------------------------------
    def init_server(self, task: Task, rng: Rng) -> Tree:
        """Return the pretrained tower and a fresh H."""
        return task.backbone.init(rng)

    # -- one round, in the order it happens -------------------------------------
    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        """Move everything and send it; the optimiser starts fresh in every round."""
        batches = data.batches(size=self.batch, epochs=self.epochs)
        if self.optimiser == "adam":
            decay = self.weight_decay
            tuned = local.adam(
                self.loss,
                task,
                batches,
                start=down,
                params=down,
                lr=self.lr,
                betas=MOMENTS,
                eps=EPS,
                weight_decay=decay,
            )
            return tree.pick(tuned, down), personal
        rates = local.Rates(lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay, clip=self.clip)
        return tree.pick(local.sgd(self.loss, task, batches, start=down, params=down, **rates), down), personal

    def weight(self, facts: Tree) -> Tensor:
        """Let every client count once."""
        return torch.ones_like(facts["size"])
