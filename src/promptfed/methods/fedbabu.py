"""FedBABU: toward enhanced representation for federated image classification (Oh, Kim, Yun. ICLR 2022).

During federated training the head stays as it was drawn, the same everywhere, and only the body learns. At the end
every client fine-tunes what it received.
Paper symbol -> name: θ_ext -> all weights but the head's, θ_cls -> head.*, τ -> epochs, F -> tune_epochs, α -> lr.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from promptfed.core import Batches, Count, Data, Method, NonNegative, Positive, Rng, Task, Tree, Whole, local, tree

HEAD = ("head.weight", "head.bias")


@dataclass(frozen=True)
class FedBABU(Method):
    """Average the body under a fixed random head, fine-tune before the test."""

    name: ClassVar[str] = "fedbabu"
    quick: ClassVar = {"data": {"name": "fashion-shops", "limit": 20}}

    lr: Positive = 0.01
    epochs: Whole = 5
    batch: Count = 64
    momentum: NonNegative = 0.9
    weight_decay: NonNegative = 1e-3
    clip: NonNegative = 0.0  # of a client's gradient; 0: none
    tune: Literal["head", "body", "all"] = "head"
    tune_epochs: Whole = 5
    drop_last: bool = False

    # -- what is learned, and where it lives ------------------------------------
    def init_server(self, task: Task, rng: Rng) -> Tree:
        """Return θ_ext and θ_cls; the latter is what everyone starts from; no client sends it back."""
        return task.backbone.init(rng)

    # -- one round, in the order it happens -------------------------------------
    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        """θ_ext ← θ_ext − α ∇ℓ(θ_ext, θ_cls) with θ_cls frozen; send θ_ext alone."""
        batches = data.batches(size=self.batch, epochs=self.epochs, drop_last=self.drop_last)
        return self._train(task, down, batches, tree.drop(down, HEAD)), personal

    # -- what a client deploys --------------------------------------------------
    def adapt(self, task: Task, down: Tree, personal: Tree, data: Data) -> Tree:
        """Fine-tune the head, the body or all on TRAINING images of the client."""
        parts = {"head": tree.pick(down, HEAD), "body": tree.drop(down, HEAD), "all": down}
        batches = data.batches("tune", size=self.batch, epochs=self.tune_epochs, drop_last=self.drop_last)
        return down | self._train(task, down, batches, parts[self.tune])

    def _train(self, task: Task, down: Tree, batches: Batches, part: Tree) -> Tree:
        """Return one part of the model after SGD, the rest held."""
        rates = local.Rates(lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay, clip=self.clip)
        return tree.pick(local.sgd(self.loss, task, batches, start=down, params=part, hold=down, **rates), part)
