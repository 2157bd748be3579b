"""FedVPT: visual prompt tuning (VPT-shallow, Jia et al. ECCV 2022) averaged over clients, a baseline of pFedPG.

The pretrained backbone is frozen; the prompt tokens at its input are averaged, every client keeps its own classifier.
Paper symbol -> name: P -> prompt, K -> tokens, H_n -> head.*, γ -> lr, |D_n| -> facts["size"].
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from promptfed.core import Batch, Count, Data, Method, NonNegative, Positive, Rng, Task, Tree, Whole, local, ops, tree
from promptfed.core.prompts.tokens import init_prompt


@dataclass(frozen=True)
class FedVPT(Method):
    """Average the prompt tokens at the input of a frozen transformer, keep the head."""

    name: ClassVar[str] = "fedvpt"
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
    def init_server(self, task: Task, rng: Rng) -> Tree:
        """Return P [K, D]."""
        return {"prompt": init_prompt(task.backbone.token_width, self.tokens, rng("prompt", shared=True))}

    def init_client(self, task: Task, data: Data, rng: Rng) -> Tree:
        """Return H_n, the same on every client at first."""
        return task.backbone.head(rng)

    # -- one round, in the order it happens -------------------------------------
    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        """Move P and H_n together by SGD, momentum from zero; send P, keep H_n."""
        batches = data.batches(size=self.batch, epochs=self.epochs)
        rates = local.Rates(lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        tuned = local.sgd(self.loss, task, batches, start=down, params=down | personal, **rates)
        return tree.pick(tuned, down), tree.pick(tuned, personal)

    # -- what is minimised, and what is used ------------------------------------
    def loss(self, task: Task, start: Tree, params: Tree, batch: Batch) -> Tensor:
        """Return the cross-entropy of H_n on the class token of [c, P, patches]; only P and H_n are in `params`."""
        logits = task.backbone(params, batch["x"], tokens=params["prompt"], noise=batch)
        return ops.cross_entropy(logits, batch["y"], batch["mask"])

    def predict(self, task: Task, params: Tree, batch: Batch) -> Tensor:
        """Return the logits of the prompted backbone."""
        return task.backbone(params, batch["x"], tokens=params["prompt"])

    def deploy(self, task: Task, server: Tree) -> Tree:
        """Return nothing: prompts without a head classify nothing."""
        return {}
