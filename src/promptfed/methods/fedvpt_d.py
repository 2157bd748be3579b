"""FedVPT-D: deep visual prompts (VPT-deep, Jia et al. ECCV 2022) averaged over clients, a baseline of pFedPG.

As FedVPT, but every layer of the frozen transformer has prompt tokens of its own, which take the place of what the
layer before made of its own.
Paper symbol -> name: P_0 … P_{N−1} -> prompt, tokens per layer -> tokens, H_n -> head.*, γ -> lr.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from promptfed.core import Batch, Count, Data, Method, NonNegative, Positive, Rng, Task, Tree, Whole, local, ops, tree
from promptfed.core.prompts.tokens import init_prompt


@dataclass(frozen=True)
class FedVPTDeep(Method):
    """Average prompt tokens at every layer of a frozen transformer, keep the head.

    The pFedPG paper counts 9.22e3 numbers per round. Ten tokens in each of 12 layers are 92,160, one in each is 9,216;
    so `tokens=1` has the printed cost, and 10 is what VPT does.
    """

    name: ClassVar[str] = "fedvpt-d"
    backbone: ClassVar[str] = "vit"
    quick: ClassVar = {
        "rounds": 5,
        "data": {"name": "fashion-shops", "limit": 5},
        "partition": {"name": "domain"},
        "evaluate": {"every": 5},
    }

    tokens: Count = 10  # per layer
    lr: Positive = 0.25
    epochs: Whole = 5
    batch: Count = 64
    momentum: NonNegative = 0.9
    weight_decay: NonNegative = 1e-3

    # -- what is learned, and where it lives ------------------------------------
    def init_server(self, task: Task, rng: Rng) -> Tree:
        """Return P_0 … P_{N−1} as one tensor [N, K, D]."""
        width, layers = task.backbone.token_width, task.backbone.layers
        return {"prompt": init_prompt(width, self.tokens, rng("prompt", shared=True), layers)}

    def init_client(self, task: Task, data: Data, rng: Rng) -> Tree:
        """Return H_n, the same on every client at first."""
        return task.backbone.head(rng)

    # -- one round, in the order it happens -------------------------------------
    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        """Move all P_i and H_n together by SGD, momentum from zero; send the prompts, keep H_n."""
        batches = data.batches(size=self.batch, epochs=self.epochs)
        rates = local.Rates(lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        tuned = local.sgd(self.loss, task, batches, start=down, params=down | personal, **rates)
        return tree.pick(tuned, down), tree.pick(tuned, personal)

    # -- what is minimised, and what is used ------------------------------------
    def loss(self, task: Task, start: Tree, params: Tree, batch: Batch) -> Tensor:
        """Return the cross-entropy with [c_i, _, E_i] = L_i([c_{i−1}, P_{i−1}, E_{i−1}]) in every layer."""
        logits = task.backbone(params, batch["x"], tokens=params["prompt"].unbind(-3), noise=batch)
        return ops.cross_entropy(logits, batch["y"], batch["mask"])

    def predict(self, task: Task, params: Tree, batch: Batch) -> Tensor:
        """Return the logits of the prompted backbone."""
        return task.backbone(params, batch["x"], tokens=params["prompt"].unbind(-3))

    def deploy(self, task: Task, server: Tree) -> Tree:
        """Return nothing: prompts without a head classify nothing."""
        return {}
