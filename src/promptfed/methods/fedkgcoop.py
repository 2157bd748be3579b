"""FedKgCoOp: knowledge-guided context optimisation (Yao et al. CVPR 2023), averaged over clients.

A context before the class names of a frozen CLIP is tuned as in PromptFL, and held near what CLIP says by itself: the
text features it makes must stay close to those of a sentence. A baseline of FedTPG and of the FLiP benchmark.
Symbol -> name: p -> context, T⁰ -> the features of `template`, w -> guide, s -> tokens.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from promptfed.core import Batch, Data, Method, Rng, Task, Traits, Tree, dual, local, ops, tree
from promptfed.core.options import Count, NonNegative, Positive, Whole
from promptfed.core.prompts.text import init_context, match, said


@dataclass(frozen=True)
class FedKgCoOp(Method):
    """Average a context whose text features stay near those of a sentence."""

    name: ClassVar[str] = "fedkgcoop"
    backbone: ClassVar[str] = "clip"
    presets: ClassVar = {
        "flip": {"guide": 1.0, "tokens": 4, "weight_decay": 1e-4, "batch": 16},
        "fedtpg": {"over": "own", "count": "clients", "tokens": 4, "lr": 0.003, "weight_decay": 1e-5, "batch": 200},
    }
    traits = Traits(reads="features", open=True)

    guide: NonNegative = 8.0  # how much the distance to the sentence counts; 0 is PromptFL
    template: str = "a photo of a {}."
    over: Literal["all", "own"] = "all"  # the classes whose distance counts: all, or those the client has
    count: Literal["images", "clients"] = "images"  # what a client counts by in the mean
    tokens: Count = 16
    lr: Positive = 0.002
    epochs: Whole = 1
    batch: Count = 32
    momentum: NonNegative = 0.9
    weight_decay: NonNegative = 5e-4

    # -- what is learned, and where it lives ------------------------------------
    def init_server(self, task: Task, rng: Rng) -> Tree:
        """Return p [s, W]."""
        return {"context": init_context(dual(task).context_width, self.tokens, rng("context"))}

    # -- one round, in the order it happens -------------------------------------
    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        """Move p by SGD and send it."""
        batches = data.batches(size=self.batch, epochs=self.epochs)
        rates = local.Rates(lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        return tree.pick(local.sgd(self.loss, task, batches, start=down, params=down, **rates), down), personal

    def weight(self, facts: Tree) -> Tensor:
        """Count a client by its images, or once."""
        return facts["size"] if self.count == "images" else torch.ones_like(facts["size"])

    # -- what is minimised, and what is used ------------------------------------
    def loss(self, task: Task, start: Tree, params: Tree, batch: Batch) -> Tensor:
        """Return the cross-entropy + w (1 − mean_c cos(T_c(p), T_c⁰))."""
        known = self.prepare(task, params)
        near = (known["text"] * said(task, self.template)).sum(-1)  # [..., classes], of unit vectors
        counted = (batch["counts"] > 0).to(near.dtype) if self.over == "own" else torch.ones_like(near)
        apart = 1 - (near * counted).sum(-1) / counted.sum(-1).clamp(min=1)
        entropy = ops.cross_entropy(self.predict(task, known, batch), batch["y"], batch["mask"])
        return entropy + self.guide * apart

    def prepare(self, task: Task, params: Tree) -> Tree:
        """Run the text tower once."""
        return params | {"text": dual(task).text(params["context"], per_class=False)}

    def predict(self, task: Task, params: Tree, batch: Batch) -> Tensor:
        """Return the scaled cosines of images and class names."""
        known = params if "text" in params else self.prepare(task, params)
        return match(batch["x"], known["text"], dual(task).scale)
