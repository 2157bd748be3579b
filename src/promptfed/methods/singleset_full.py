"""SingleSet-Full: fine-tuning of the whole model on every client alone, a baseline of pFedPG.

Local with the rates of fine-tuning a pretrained transformer: momentum, weight decay and larger batches.
"""

from dataclasses import dataclass
from typing import ClassVar

from promptfed.core import Count, Data, Method, NonNegative, Positive, Rng, Task, Tree, Whole, local, tree


@dataclass(frozen=True)
class SingleSetFull(Method):
    """Fine-tune the whole model per client on its own images alone."""

    name: ClassVar[str] = "singleset-full"
    quick: ClassVar = {"data": {"name": "fashion-shops", "limit": 20}}

    lr: Positive = 0.01
    epochs: Whole = 5
    batch: Count = 64
    momentum: NonNegative = 0.9
    weight_decay: NonNegative = 1e-3
    clip: NonNegative = 0.0  # of a client's gradient; 0: none

    # -- what is learned, and where it lives ------------------------------------
    def init_client(self, task: Task, data: Data, rng: Rng) -> Tree:
        """Return the whole model, the same on every client at first."""
        return task.backbone.init(rng)

    # -- one round, in the order it happens -------------------------------------
    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        """Fine-tune on; send nothing."""
        batches = data.batches(size=self.batch, epochs=self.epochs)
        rates = local.Rates(lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay, clip=self.clip)
        return {}, tree.pick(local.sgd(self.loss, task, batches, start=down, params=personal, **rates), personal)
