"""FedAvg: communication-efficient learning of deep networks from decentralized data (McMahan et al. AISTATS 2017).

One model for all: every client trains the whole model on its own data, the server averages the results.
Paper symbol -> name: w -> server, E -> epochs, B -> batch, η -> lr, n_k -> facts["size"].
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from promptfed.core import Count, Data, Method, NonNegative, Positive, Rng, Task, Traits, Tree, Whole, local, tree

HEAD = ("head.weight", "head.bias")


@dataclass(frozen=True)
class FedAvg(Method):
    """Average the clients' models, weighted by how many images each has."""

    name: ClassVar[str] = "fedavg"
    quick: ClassVar = {"data": {"name": "fashion-shops", "limit": 20}}

    lr: Positive = 0.005
    epochs: Whole = 5
    batch: Count = 16
    momentum: NonNegative = 0.0
    weight_decay: NonNegative = 0.0
    clip: NonNegative = 0.0  # of a client's gradient; 0: none
    drop_last: bool = False
    tune_epochs: Whole = 0  # of the final model on each client's own images, before the test
    tune: Literal["all", "head", "body"] = "all"  # what of it these epochs move

    @property
    def traits(self) -> Traits:
        """Say that there may be no fine-tuning."""
        tuning = ("tune_epochs", "tune")
        return Traits(adapts=self.tune_epochs > 0, testing=tuning, adapting=tuning)

    # -- what is learned, and where it lives ------------------------------------
    def init_server(self, task: Task, rng: Rng) -> Tree:
        """Return w⁰, the whole model."""
        return task.backbone.init(rng)

    # -- one round, in the order it happens -------------------------------------
    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        """ClientUpdate: w ← w − η ∇ℓ(w; b) for every batch b of E epochs."""
        batches = data.batches(size=self.batch, epochs=self.epochs, drop_last=self.drop_last)
        rates = local.Rates(lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay, clip=self.clip)
        tuned = local.sgd(self.loss, task, batches, start=down, params=down, **rates)
        return tree.pick(tuned, down), personal

    # -- what a client deploys --------------------------------------------------
    def adapt(self, task: Task, down: Tree, personal: Tree, data: Data) -> Tree:
        """Return w after `tune_epochs` more epochs of w, or of a part of it, on TRAINING images of the client."""
        part = {"all": down, "head": tree.pick(down, HEAD), "body": tree.drop(down, HEAD)}[self.tune]
        batches = data.batches("tune", size=self.batch, epochs=self.tune_epochs, drop_last=self.drop_last)
        rates = local.Rates(lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay, clip=self.clip)
        tuned = local.sgd(self.loss, task, batches, start=down, params=part, hold=tree.drop(down, part), **rates)
        return down | tree.pick(tuned, part)
