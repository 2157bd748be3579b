"""FedRep: exploiting shared representations for personalized federated learning (Collins et al. ICML 2021).

The body is averaged, the head stays home; a client first fits its head to the body it received, then the body to its
head.
Paper symbol -> name: φ -> all weights but the head's, h_i -> head.*, α -> lr (of φ) and head_lr (of h_i),
τ -> head_epochs.
"""

from dataclasses import dataclass
from typing import ClassVar

from promptfed.core import Count, Data, Method, NonNegative, Positive, Rng, Task, Tree, Whole, local, tree


@dataclass(frozen=True)
class FedRep(Method):
    """Train the head on the received body, then the body under the new head; average the body."""

    name: ClassVar[str] = "fedrep"
    quick: ClassVar = {"data": {"name": "fashion-shops", "limit": 20}}

    lr: Positive = 0.01
    epochs: Whole = 5
    head_lr: Positive = 0.01
    head_epochs: Whole = 5
    batch: Count = 64
    momentum: NonNegative = 0.9
    weight_decay: NonNegative = 1e-3
    clip: NonNegative = 0.0  # of a client's gradient; 0: none
    drop_last: bool = False

    # -- what is learned, and where it lives ------------------------------------
    def init_server(self, task: Task, rng: Rng) -> Tree:
        """Return φ⁰."""
        return tree.drop(task.backbone.init(rng), task.backbone.head(rng))

    def init_client(self, task: Task, data: Data, rng: Rng) -> Tree:
        """Return h_i, the same on every client at first."""
        return task.backbone.head(rng)

    # -- one round, in the order it happens -------------------------------------
    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        """Algorithm 1, the client's updates: first h_i with φ frozen, then φ with h_i frozen."""
        # h_i ← h_i − α ∇_h f_i(h_i, φ)
        batches = data.batches("head", size=self.batch, epochs=self.head_epochs, drop_last=self.drop_last)
        rates = local.Rates(lr=self.head_lr, momentum=self.momentum, weight_decay=self.weight_decay, clip=self.clip)
        head = tree.pick(local.sgd(self.loss, task, batches, start=down, params=personal, hold=down, **rates), personal)
        # φ ← φ − α ∇_φ f_i(h_i, φ)
        batches = data.batches("body", size=self.batch, epochs=self.epochs, drop_last=self.drop_last)
        rates = local.Rates(lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay, clip=self.clip)
        body = tree.pick(local.sgd(self.loss, task, batches, start=down, params=down, hold=head, **rates), down)
        return body, head

    # -- what is minimised, and what is used ------------------------------------
    def deploy(self, task: Task, server: Tree) -> Tree:
        """Return nothing: a body without a head classifies nothing."""
        return {}
