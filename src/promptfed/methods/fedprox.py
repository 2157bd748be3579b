"""FedProx: federated optimization in heterogeneous networks (Li et al. MLSys 2020).

FedAvg whose clients stay near the model they received.
Paper symbol -> name: w^t -> start, μ -> mu, h_k -> proximal.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from promptfed.core import Batch, Data, Method, Rng, Task, Traits, Tree, local, tree
from promptfed.core.options import Count, NonNegative, Positive, Whole


@dataclass(frozen=True)
class FedProx(Method):
    """Average models that a proximal term holds near the one they started from."""

    name: ClassVar[str] = "fedprox"
    quick: ClassVar = {"data": {"name": "fashion-shops", "limit": 20}}

    mu: NonNegative = 1e-4
    lr: Positive = 0.005
    epochs: Whole = 5
    batch: Count = 16
    momentum: NonNegative = 0.0
    weight_decay: NonNegative = 0.0
    clip: NonNegative = 0.0  # of a client's gradient; 0: none
    drop_last: bool = False
    tune_epochs: Whole = 0  # of the final model on each client's own images, before the test

    @property
    def traits(self) -> Traits:
        """Say that there may be no fine-tuning."""
        return Traits(adapts=self.tune_epochs > 0, testing=("tune_epochs",), adapting=("tune_epochs",))

    # -- what is learned, and where it lives ------------------------------------
    def init_server(self, task: Task, rng: Rng) -> Tree:
        """Return w⁰, the whole model."""
        return task.backbone.init(rng)

    # -- one round, in the order it happens -------------------------------------
    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        """Algorithm 2, line 5: w ← w − η ∇h_k(w; w^t) for every batch of E epochs."""
        batches = data.batches(size=self.batch, epochs=self.epochs, drop_last=self.drop_last)
        tuned = local.sgd(self.proximal, task, batches, start=down, params=down, **self._rates())
        return tree.pick(tuned, down), personal

    # -- what is minimised, and what is used ------------------------------------
    def proximal(self, task: Task, start: Tree, params: Tree, batch: Batch) -> Tensor:
        """Eq. 2: h_k(w; w^t) = F_k(w) + μ/2 ‖w − w^t‖²."""
        value = self.loss(task, start, params, batch)
        for name, received in start.items():
            value = value + self.mu / 2 * (params[name] - received).square().flatten(value.dim()).sum(-1)
        return value

    def adapt(self, task: Task, down: Tree, personal: Tree, data: Data) -> Tree:
        """Return w after `tune_epochs` epochs of the plain loss on TRAINING images of the client."""
        batches = data.batches("tune", size=self.batch, epochs=self.tune_epochs, drop_last=self.drop_last)
        return down | tree.pick(local.sgd(self.loss, task, batches, start=down, params=down, **self._rates()), down)

    def _rates(self) -> local.Rates:
        return local.Rates(lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay, clip=self.clip)
