"""CLIP-FC: a linear map behind CLIP's frozen image tower, averaged; a baseline of FedAPT.

The class names are those of zero-shot CLIP.
Symbol -> name: W, b -> adapter.weight, adapter.bias.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from promptfed.core import Batch, Data, Method, Rng, Task, Traits, Tree, dual, local, ops, tree
from promptfed.core.options import Count, NonNegative, Positive, Whole
from promptfed.core.prompts.text import init_map, match


@dataclass(frozen=True)
class CLIPFC(Method):
    """Average a linear map of the features of CLIP's frozen image tower."""

    name: ClassVar[str] = "clip-fc"
    backbone: ClassVar[str] = "clip"
    traits = Traits(reads="features", open=True)
    presets: ClassVar = {"office": {"lr": 0.001, "batch": 32}, "domainnet": {"lr": 0.01, "batch": 256}}

    lr: Positive = 0.01
    epochs: Whole = 1
    batch: Count = 256
    momentum: NonNegative = 0.9
    weight_decay: NonNegative = 1e-5

    # -- what is learned, and where it lives ------------------------------------
    def init_server(self, task: Task, rng: Rng) -> Tree:
        """Return W [D, D] and b [D]."""
        width = dual(task).zero_shot.shape[-1]
        return init_map("adapter", (width, width), rng("adapter"))

    # -- one round, in the order it happens -------------------------------------
    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        """Move W and b by SGD and send them."""
        batches = data.batches(size=self.batch, epochs=self.epochs)
        rates = local.Rates(lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        return tree.pick(local.sgd(self.loss, task, batches, start=down, params=down, **rates), down), personal

    def weight(self, facts: Tree) -> Tensor:
        """Let every client count once."""
        return torch.ones_like(facts["size"])

    # -- what is minimised, and what is used ------------------------------------
    def loss(self, task: Task, start: Tree, params: Tree, batch: Batch) -> Tensor:
        """Return the cross-entropy over all classes."""
        return ops.cross_entropy(self.predict(task, params, batch), batch["y"], batch["mask"])

    def predict(self, task: Task, params: Tree, batch: Batch) -> Tensor:
        """Return the scaled cosines of W f + b and zero-shot class names."""
        mapped = ops.linear(batch["x"], params["adapter.weight"], params["adapter.bias"])
        return match(mapped, dual(task).zero_shot, dual(task).scale)
