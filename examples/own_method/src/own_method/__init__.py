"""FedPer: federated learning with personalization layers (Arivazhagan et al. 2019).

The body is shared and averaged; every client keeps a classifier of its own, and both are trained together.
Paper symbol -> name: W_B -> all weights but the head's, W_P -> head.*, e -> epochs, b -> batch, η -> lr.
"""

from dataclasses import dataclass
from typing import ClassVar

from promptfed.core import Count, Data, Method, Positive, Rng, Task, Tree, Whole, local, tree

HEAD = ("head.weight", "head.bias")


@dataclass(frozen=True)
class OwnFedPer(Method):
    """Average the body of the network, keep its head."""

    name: ClassVar[str] = "own-fedper"

    lr: Positive = 0.005
    epochs: Whole = 5
    batch: Count = 16

    # -- what is learned, and where it lives ------------------------------------
    def init_server(self, task: Task, rng: Rng) -> Tree:
        """Return W_B."""
        return tree.drop(task.backbone.init(rng), HEAD)

    def init_client(self, task: Task, data: Data, rng: Rng) -> Tree:
        """Return W_P, the same on every client at first."""
        return tree.pick(task.backbone.init(rng), HEAD)

    # -- one round, in the order it happens -------------------------------------
    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        """Move W_B and W_P together by SGD; send W_B, keep W_P."""
        batches = data.batches(size=self.batch, epochs=self.epochs)
        tuned = local.sgd(self.loss, task, batches, start=down, params=down | personal, lr=self.lr)
        return tree.pick(tuned, down), tree.pick(tuned, personal)

    # -- what is minimised, and what is used ------------------------------------
    def deploy(self, task: Task, server: Tree) -> Tree:
        """Return nothing: a body without a head classifies nothing."""
        return {}
