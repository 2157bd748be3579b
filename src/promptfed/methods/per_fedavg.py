"""Per-FedAvg: personalized federated learning with model-agnostic meta-learning (Fallah et al. NeurIPS 2020).

One model for all, trained so that one gradient step on a client's own data makes it good there.
Paper symbol -> name: w -> server, α -> alpha, β -> lr, D and D' -> the halves of a double batch, τ -> the steps of
`epochs` passes.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from promptfed.core import Batch, Count, Data, Method, NonNegative, Positive, Rng, Task, Tree, Whole, local, tree


@dataclass(frozen=True)
class PerFedAvg(Method):
    """Average models that are trained to be one step away from every client's own."""

    name: ClassVar[str] = "per-fedavg"
    quick: ClassVar = {"data": {"name": "fashion-shops", "limit": 20}}

    lr: Positive = 0.01
    alpha: Positive = 0.01  # of the step to the adapted point, in training and before a test
    order: Literal["first", "second"] = "first"
    epochs: Whole = 5
    batch: Count = 64  # of each half
    momentum: NonNegative = 0.9
    weight_decay: NonNegative = 1e-3
    clip: NonNegative = 0.0  # of a client's gradient; 0: none
    adapt_steps: Whole = 1
    drop_last: bool = False

    # -- what is learned, and where it lives ------------------------------------
    def init_server(self, task: Task, rng: Rng) -> Tree:
        """Return w⁰, the whole model."""
        return task.backbone.init(rng)

    # -- one round, in the order it happens -------------------------------------
    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        """Algorithm 1: w ← w − β ∇F(w) for every double batch, where F(w) = f(w − α ∇f(w; D); D')."""
        batches = data.batches(size=2 * self.batch, epochs=self.epochs, drop_last=self.drop_last)
        rates = local.Rates(lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay, clip=self.clip)
        tuned = local.sgd(self.meta, task, batches, start=down, params=down, **rates)
        return tree.pick(tuned, down), personal

    # -- what is minimised, and what is used ------------------------------------
    def meta(self, task: Task, start: Tree, params: Tree, batch: Batch) -> Tensor:
        """Return F(w), whose gradient is (I − α ∇²f(w; D)) ∇f(w̃; D'), or first-order ∇f(w̃; D').

        A batch is shuffled, so every other image is a fair half. An image left over is in D': its step is FedAvg's.
        """
        value = self.loss(task, start, params, _half(task, batch, 1))
        exact = self.order == "second"
        slopes = torch.autograd.grad(value.sum(), list(params.values()), create_graph=exact, materialize_grads=True)
        if self.clip:
            slopes = tuple(local.clipped(slopes, self.clip, value.dim()))
        if "rate" in batch:  # a schedule multiplies α as it does β
            slopes = tuple(local.scaled(slopes, batch["rate"]))
        # w̃ = w − α ∇f(w; D); without a graph of its own the slope is a constant, and ∂w̃/∂w the identity
        adapted = tree.map(lambda w, slope: w - self.alpha * slope, params, dict(zip(params, slopes, strict=True)))
        return self.loss(task, start, adapted, _half(task, batch, 0))

    def adapt(self, task: Task, down: Tree, personal: Tree, data: Data) -> Tree:
        """Return w after `adapt_steps` steps at rate α on TRAINING images of the client."""
        batches = data.batches("adapt", size=self.batch, steps=self.adapt_steps, drop_last=self.drop_last)
        return local.sgd(self.loss, task, batches, start=down, params=down, lr=self.alpha, clip=self.clip)


def _half(task: Task, batch: Batch, number: int) -> Batch:
    """Return every other example of the batch, from `number` on."""
    after = {"x": 3, "y": 0, "index": 0, "mask": 0}  # how many dimensions follow that of the examples
    after |= {name: len(draw.shape) for name, draw in task.backbone.draws().items() if draw.per == "sample"}
    pairs = {name: batch[name].unflatten(-1 - trailing, (-1, 2)) for name, trailing in after.items()}
    return batch | {name: value.select(-1 - after[name], number) for name, value in pairs.items()}
