"""Head probe: a linear classifier per client on frozen features; no prompt, and nothing travels.

What the frozen backbone is worth by itself: every prompt has to beat it. The rates are SingleSet-VPT's, so that the
prompt is the only difference.
Symbol -> name: H_n -> head.*, γ -> lr.
"""

from dataclasses import dataclass
from typing import ClassVar

from promptfed.core import Count, Data, Method, NonNegative, Positive, Rng, Task, Traits, Tree, Whole, local, tree


@dataclass(frozen=True)
class HeadProbe(Method):
    """Train a linear head per client on the features of a frozen backbone."""

    name: ClassVar[str] = "head-probe"
    backbone: ClassVar[str] = "vit"
    traits = Traits(reads="features")

    lr: Positive = 0.25
    epochs: Whole = 5
    batch: Count = 64
    momentum: NonNegative = 0.9
    weight_decay: NonNegative = 1e-3

    # -- what is learned, and where it lives ------------------------------------
    def init_client(self, task: Task, data: Data, rng: Rng) -> Tree:
        """Return H_n, the same on every client at first."""
        return task.backbone.head(rng)

    # -- one round, in the order it happens -------------------------------------
    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        """Train H_n on; send nothing."""
        batches = data.batches(size=self.batch, epochs=self.epochs)
        rates = local.Rates(lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        return {}, tree.pick(local.sgd(self.loss, task, batches, start=down, params=personal, **rates), personal)
