"""FedRoD: on bridging generic and personalized federated learning for image classification (Chen, Chao. ICLR 2022).

Two heads on one body. The generic one is averaged with the body and trained by a balanced loss, as if every client saw
all classes equally often; the private one stays home and learns what is left: the client's own classes.
Paper symbol -> name: θ -> all weights but the heads', ψ -> head.*, φ_m -> private.*, N_{m,c} -> batch["counts"].
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from promptfed.core import Batch, Count, Data, Method, NonNegative, Positive, Rng, Task, Tree, Whole, local, ops, tree


@dataclass(frozen=True)
class FedRoD(Method):
    """Average a body with a balanced head, add a private head that sees the client's own classes."""

    name: ClassVar[str] = "fedrod"
    quick: ClassVar = {"data": {"name": "fashion-shops", "limit": 20}}

    lr: Positive = 0.01
    epochs: Whole = 5
    batch: Count = 64
    momentum: NonNegative = 0.9
    weight_decay: NonNegative = 1e-3
    clip: NonNegative = 0.0  # of a client's gradient; 0: none

    # -- what is learned, and where it lives ------------------------------------
    def init_server(self, task: Task, rng: Rng) -> Tree:
        """Return θ⁰ and ψ⁰."""
        return task.backbone.init(rng)

    def init_client(self, task: Task, data: Data, rng: Rng) -> Tree:
        """Return φ_m, the same on every client at first."""
        return {name.replace("head.", "private."): value for name, value in task.backbone.head(rng).items()}

    # -- one round, in the order it happens -------------------------------------
    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        """Move θ, ψ and φ_m in the same steps; send θ and ψ, keep φ_m."""
        batches = data.batches(size=self.batch, epochs=self.epochs)
        rates = local.Rates(lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay, clip=self.clip)
        tuned = local.sgd(self.loss, task, batches, start=down, params=down | personal, **rates)
        return tree.pick(tuned, down), tree.pick(tuned, personal)

    # -- what is minimised, and what is used ------------------------------------
    def loss(self, task: Task, start: Tree, params: Tree, batch: Batch) -> Tensor:
        """Return the balanced loss of (θ, ψ) plus the plain loss of φ_m; no weight has a part in both."""
        features = task.backbone.features(params, batch["x"], noise=batch)
        generic = ops.linear(features, params["head.weight"], params["head.bias"])
        # balanced softmax: p_c ∝ N_{m,c} exp(logit_c); the smallest float stands for a class the client has not
        counts = batch["counts"].clamp(min=torch.finfo(torch.float32).tiny)
        balanced = ops.cross_entropy(generic + counts.log().unsqueeze(-2), batch["y"], batch["mask"])
        own = ops.linear(features.detach(), params["private.weight"], params["private.bias"])
        return balanced + ops.cross_entropy(generic.detach() + own, batch["y"], batch["mask"])

    def predict(self, task: Task, params: Tree, batch: Batch) -> Tensor:
        """Return the sum of both heads' logits; the server's model has the generic head alone."""
        features = task.backbone.features(params, batch["x"])
        generic = ops.linear(features, params["head.weight"], params["head.bias"])
        if "private.weight" not in params:
            return generic
        return generic + ops.linear(features, params["private.weight"], params["private.bias"])
