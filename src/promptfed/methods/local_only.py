"""Local: no federation. Every client trains its own model, from the same start, and nothing travels.

The baseline each federated method must beat to be worth its traffic.
"""

from dataclasses import dataclass
from typing import ClassVar

from promptfed.core import Count, Data, Method, NonNegative, Positive, Rng, Task, Tree, Whole, local, tree


@dataclass(frozen=True)
class Local(Method):
    """Train one model per client on its own images alone."""

    name: ClassVar[str] = "local"
    quick: ClassVar = {"data": {"name": "fashion-shops", "limit": 20}}

    lr: Positive = 0.005
    epochs: Whole = 5
    batch: Count = 16
    momentum: NonNegative = 0.0
    weight_decay: NonNegative = 0.0
    clip: NonNegative = 0.0  # of a client's gradient; 0: none
    drop_last: bool = False

    # -- what is learned, and where it lives ------------------------------------
    def init_client(self, task: Task, data: Data, rng: Rng) -> Tree:
        """Return the whole model, the same on every client at first."""
        return task.backbone.init(rng)

    # -- one round, in the order it happens -------------------------------------
    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        """Train on; send nothing."""
        batches = data.batches(size=self.batch, epochs=self.epochs, drop_last=self.drop_last)
        rates = local.Rates(lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay, clip=self.clip)
        return {}, tree.pick(local.sgd(self.loss, task, batches, start=down, params=personal, **rates), personal)
