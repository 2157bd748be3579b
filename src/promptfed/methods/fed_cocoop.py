"""Fed-CoCoOp: conditional prompt learning (CoCoOp, Zhou et al. CVPR 2022) averaged over clients.

A small network adds a vector made from the image to every context vector before the class names. It stands in FedAPT's
code, though not in its tables. The text tower runs for every image, so batches are small and tests long.
Paper symbol -> name: v_m -> context, h_θ -> meta1.*, meta2.*, π -> what it adds, M -> tokens.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from promptfed.core import Batch, Data, Method, Rng, Task, Traits, Tree, dual, local, ops, tree
from promptfed.core.options import Count, NonNegative, Positive, Whole
from promptfed.core.prompts.text import init_context, init_map, match_each

NARROWER = 16  # the hidden layer of h_θ is so much narrower than its input


@dataclass(frozen=True)
class FedCoCoOp(Method):
    """Average the context and the network that shifts it by what is in the image."""

    name: ClassVar[str] = "fed-cocoop"
    backbone: ClassVar[str] = "clip"
    quick: ClassVar = {"evaluate": {"every": 5}}
    traits = Traits(reads="features", open=True)

    tokens: Count = 16
    lr: Positive = 0.002
    epochs: Whole = 1
    batch: Count = 4
    momentum: NonNegative = 0.9
    weight_decay: NonNegative = 5e-4

    # -- what is learned, and where it lives ------------------------------------
    def init_server(self, task: Task, rng: Rng) -> Tree:
        """Return v [M, W], one context for all classes, and h_θ: D -> D / 16 -> W."""
        width, context = dual(task).zero_shot.shape[-1], dual(task).context_width
        hidden, draw = max(width // NARROWER, 1), rng("meta")
        meta = init_map("meta1", (hidden, width), draw) | init_map("meta2", (context, hidden), draw)
        return {"context": init_context(context, self.tokens, rng("context"))} | meta

    # -- one round, in the order it happens -------------------------------------
    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        """Move v and h_θ by SGD and send them."""
        batches = data.batches(size=self.batch, epochs=self.epochs)
        rates = local.Rates(lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        return tree.pick(local.sgd(self.loss, task, batches, start=down, params=down, **rates), down), personal

    def weight(self, facts: Tree) -> Tensor:
        """Let every client count once."""
        return torch.ones_like(facts["size"])

    # -- what is minimised, and what is used ------------------------------------
    def loss(self, task: Task, start: Tree, params: Tree, batch: Batch) -> Tensor:
        """Return the cross-entropy over all classes, each image with text features of its own."""
        text = dual(task).text(self.contexts(params, batch["x"]), per_class=False)
        logits = match_each(batch["x"], text, dual(task).scale)
        return ops.cross_entropy(logits, batch["y"], batch["mask"])

    def predict(self, task: Task, params: Tree, batch: Batch) -> Tensor:
        """Return the scaled cosines; the text tower takes one image after another, since all would fill the memory."""
        contexts = self.contexts(params, batch["x"]).unbind(-3)
        text = torch.stack([dual(task).text(context, per_class=False) for context in contexts], -3)
        return match_each(batch["x"], text, dual(task).scale)

    def contexts(self, params: Tree, features: Tensor) -> Tensor:
        """Return v_m + π for every image [..., B, M, W], π = h_θ(f / |f|)."""
        unit = F.normalize(features, dim=-1)
        hidden = ops.linear(unit, params["meta1.weight"], params["meta1.bias"]).relu()
        shift = ops.linear(hidden, params["meta2.weight"], params["meta2.bias"])
        return params["context"].unsqueeze(-3) + shift.unsqueeze(-2)
