"""SingleSet-VPT: visual prompt tuning (VPT-shallow, Jia et al. ECCV 2022) on every client alone, a baseline of pFedPG.

Prompt tokens and a classifier per client on a frozen backbone; nothing travels. What FedVPT gains over it is what
sharing prompts is worth.
Paper symbol -> name: P_n -> prompt, K -> tokens, H_n -> head.*, γ -> lr.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from promptfed.core import Batch, Count, Data, Method, NonNegative, Positive, Rng, Task, Tree, Whole, local, ops, tree
from promptfed.core.prompts.tokens import init_prompt


@dataclass(frozen=True)
class SingleSetVPT(Method):
    """Train prompt tokens and a head per client on its own images alone."""

    name: ClassVar[str] = "singleset-vpt"
    backbone: ClassVar[str] = "vit"
    quick: ClassVar = {
        "rounds": 5,
        "data": {"name": "fashion-shops", "limit": 5},
        "partition": {"name": "domain"},
        "evaluate": {"every": 5},
    }

    tokens: Count = 10
    lr: Positive = 0.25
    epochs: Whole = 5
    batch: Count = 64
    momentum: NonNegative = 0.9
    weight_decay: NonNegative = 1e-3

    # -- what is learned, and where it lives ------------------------------------
    def init_client(self, task: Task, data: Data, rng: Rng) -> Tree:
        """Return P_n [K, D] and H_n, the same on every client at first."""
        prompt = init_prompt(task.backbone.token_width, self.tokens, rng("prompt", shared=True))
        return {"prompt": prompt} | task.backbone.head(rng)

    # -- one round, in the order it happens -------------------------------------
    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        """Train P_n and H_n on; send nothing."""
        batches = data.batches(size=self.batch, epochs=self.epochs)
        rates = local.Rates(lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        return {}, tree.pick(local.sgd(self.loss, task, batches, start=down, params=personal, **rates), personal)

    # -- what is minimised, and what is used ------------------------------------
    def loss(self, task: Task, start: Tree, params: Tree, batch: Batch) -> Tensor:
        """Return the cross-entropy of H_n on the class token of [c, P_n, patches]."""
        logits = task.backbone(params, batch["x"], tokens=params["prompt"], noise=batch)
        return ops.cross_entropy(logits, batch["y"], batch["mask"])

    def predict(self, task: Task, params: Tree, batch: Batch) -> Tensor:
        """Return the logits of the prompted backbone."""
        return task.backbone(params, batch["x"], tokens=params["prompt"])
