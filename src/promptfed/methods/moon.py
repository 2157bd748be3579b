"""MOON: model-contrastive federated learning (Li, He, Song. CVPR 2021).

FedAvg whose clients draw their features towards those of the received model and away from those of their own last one.
Paper symbol -> name: w^t -> start, w_i^{t−1} -> last.*, μ -> mu, τ -> temperature, z, z_glob, z_prev -> here, received,
before. The features are the network's own, what its classifier sees; the paper adds a projection head.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from promptfed.core import Batch, Data, Method, Rng, Task, Traits, Tree, local, ops, tree
from promptfed.core.options import Count, NonNegative, Positive, Whole


@dataclass(frozen=True)
class Moon(Method):
    """Average models whose features contrast the received model with the client's last one."""

    name: ClassVar[str] = "moon"
    quick: ClassVar = {"data": {"name": "fashion-shops", "limit": 20}}

    mu: NonNegative = 1.0
    temperature: Positive = 1.0
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

    def init_client(self, task: Task, data: Data, rng: Rng) -> Tree:
        """Return room for the body of the client's last model, and that there is none yet."""
        body = tree.drop(task.backbone.init(rng), task.backbone.head(rng))
        return {f"last.{name}": value for name, value in body.items()} | {"trained": torch.zeros(())}

    # -- one round, in the order it happens -------------------------------------
    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        """Algorithm 1, PartyLocalTraining: w ← w − η ∇ℓ, then keep what is sent for the next time."""
        trained = personal["trained"]
        last = {  # a client that has never trained has no other model than the received one
            name: torch.where(ops.spread(trained, 0, value) > 0, value, down[name.removeprefix("last.")])
            for name, value in tree.drop(personal, ["trained"]).items()
        }
        batches = data.batches(size=self.batch, epochs=self.epochs, drop_last=self.drop_last)
        up = tree.pick(
            local.sgd(self.contrastive, task, batches, start=down, params=down, hold=last, **self._rates()),
            down,
        )
        return up, {name: up[name.removeprefix("last.")] for name in last} | {"trained": torch.ones_like(trained)}

    # -- what is minimised, and what is used ------------------------------------
    def contrastive(self, task: Task, start: Tree, params: Tree, batch: Batch) -> Tensor:
        """Eq. 4: ℓ = ℓ_sup + μ ℓ_con."""
        last = {name.removeprefix("last."): value for name, value in params.items() if name.startswith("last.")}
        here = task.backbone.features(params, batch["x"], noise=batch)
        with torch.no_grad():
            received = task.backbone.features(start, batch["x"])
            before = task.backbone.features(last, batch["x"])
        # Eq. 3: ℓ_con = −log exp(sim(z, z_glob)/τ) / (exp(sim(z, z_glob)/τ) + exp(sim(z, z_prev)/τ))
        similar = [F.cosine_similarity(here, other, dim=-1) for other in (received, before)]
        pair = torch.stack(similar, -1) / self.temperature
        contrast = ops.cross_entropy(pair, torch.zeros_like(batch["y"]), batch["mask"])
        logits = ops.linear(here, params["head.weight"], params["head.bias"])
        return ops.cross_entropy(logits, batch["y"], batch["mask"]) + self.mu * contrast

    def adapt(self, task: Task, down: Tree, personal: Tree, data: Data) -> Tree:
        """Return w after `tune_epochs` epochs of the plain loss on TRAINING images of the client."""
        batches = data.batches("tune", size=self.batch, epochs=self.tune_epochs, drop_last=self.drop_last)
        return down | tree.pick(local.sgd(self.loss, task, batches, start=down, params=down, **self._rates()), down)

    def _rates(self) -> local.Rates:
        return local.Rates(lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay, clip=self.clip)
