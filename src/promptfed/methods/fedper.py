"""FedPer: federated learning with personalization layers (Arivazhagan et al. 2019).

The body is averaged, the head stays home, and both are trained in the same steps.
Paper symbol -> name: W_B -> all weights but the head's, W_P -> head.*, e -> epochs, b -> batch, η -> lr.
"""

from dataclasses import dataclass
from typing import ClassVar

from promptfed.core import Count, Data, Method, NonNegative, Positive, Rng, Task, Tree, Whole, local, tree


@dataclass(frozen=True)
class FedPer(Method):
    """Average the body of the network, keep its head."""

    name: ClassVar[str] = "fedper"
    quick: ClassVar = {"data": {"name": "fashion-shops", "limit": 20}}

    lr: Positive = 0.005
    epochs: Whole = 5
    batch: Count = 16
    momentum: NonNegative = 0.0
    weight_decay: NonNegative = 0.0
    clip: NonNegative = 0.0  # of a client's gradient; 0: none
    drop_last: bool = False

    # -- what is learned, and where it lives ------------------------------------
    def init_server(self, task: Task, rng: Rng) -> Tree:
        """Return W_B⁰."""
        return tree.drop(task.backbone.init(rng), task.backbone.head(rng))

    def init_client(self, task: Task, data: Data, rng: Rng) -> Tree:
        """Return W_P, the same on every client at first."""
        return task.backbone.head(rng)

    # -- one round, in the order it happens -------------------------------------
    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        """Algorithm 1, ClientUpdate: (W_B, W_P) ← (W_B, W_P) − η ∇ℓ; send W_B, keep W_P."""
        batches = data.batches(size=self.batch, epochs=self.epochs, drop_last=self.drop_last)
        rates = local.Rates(lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay, clip=self.clip)
        tuned = local.sgd(self.loss, task, batches, start=down, params=down | personal, **rates)
        return tree.pick(tuned, down), tree.pick(tuned, personal)

    # -- what is minimised, and what is used ------------------------------------
    def deploy(self, task: Task, server: Tree) -> Tree:
        """Return nothing: a body without a head classifies nothing."""
        return {}
