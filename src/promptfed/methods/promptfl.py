"""PromptFL: let federated participants cooperatively learn prompts instead of models (Guo et al. 2022).

The context before the class names of a frozen CLIP, as in CoOp (Zhou et al. IJCV 2022), is tuned by every client and
averaged. A baseline of FedAPT, which also lends it its training without labels.
Paper symbol -> name: p_g -> context, s -> tokens.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from promptfed.core import Batch, Data, Draw, Method, Rng, Task, Traits, Tree, dual, local, ops, tree
from promptfed.core.options import Count, NonNegative, Positive, Share, Whole
from promptfed.core.prompts.text import init_context, match
from promptfed.methods import _unlabelled as unlabelled
from promptfed.methods._unlabelled import Intra, Mode, Rest


@dataclass(frozen=True)
class PromptFL(Method):
    """Average the context vectors before the class names of a frozen CLIP."""

    name: ClassVar[str] = "promptfl"
    backbone: ClassVar[str] = "clip"
    presets: ClassVar = {
        "office": {"lr": 0.001, "batch": 32},
        "domainnet": {"lr": 0.01, "batch": 256},
        "unsupervised": {"mode": "unsupervised", "csc": False, "lr": 0.01, "batch": 512},
    }

    mode: Mode = "supervised"
    tokens: Count = 16
    csc: bool = True  # class-specific context: every class has its own; false: one for all
    lr: Positive = 0.01
    epochs: Whole = 1
    batch: Count = 256
    momentum: NonNegative = 0.9
    weight_decay: NonNegative = 1e-5
    stage1: Whole = 10  # rounds of learning from pseudo-labels, in unsupervised mode
    threshold: Share = 0.75
    neighbours: Count = 5
    dispersion: NonNegative = 0.5
    rest: Rest = "sum"  # of the batch in eq. 9; mean: λ means the same for batches of every size
    intra: Intra = "kl"

    @property
    def traits(self) -> Traits:
        """Ask for features and, without labels, for augmented views."""
        labelled = self.mode == "supervised"
        return Traits(reads="features", views=0 if labelled else unlabelled.VIEWS, weighs=labelled, open=not self.csc)

    # -- what is learned, and where it lives ------------------------------------
    def init_server(self, task: Task, rng: Rng) -> Tree:
        """Return p_g [classes, s, W] or [s, W]."""
        classes = len(task.classes) if self.csc else 0
        return {"context": init_context(dual(task).context_width, self.tokens, rng("context"), classes)}

    def init_client(self, task: Task, data: Data, rng: Rng) -> Tree:
        """Return a bank of scores, still empty, for learning without labels; else nothing."""
        return {"bank.scores": torch.zeros(data.capacity, len(task.classes))} if self.mode == "unsupervised" else {}

    def draws(self, task: Task) -> dict[str, Draw]:
        """Return which view of each image is seen."""
        return task.backbone.draws() | (unlabelled.DRAWS if self.mode == "unsupervised" else {})

    # -- one round, in the order it happens -------------------------------------
    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        """Move p by SGD and send it."""
        batches = data.batches(size=self.batch, epochs=self.epochs)
        rates = local.Rates(lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        if self.mode == "supervised" or data.round < self.stage1:
            objective = self.loss if self.mode == "supervised" else self.self_training
            return tree.pick(local.sgd(objective, task, batches, start=down, params=down, **rates), down), personal
        banks = unlabelled.filled(personal["bank.scores"], data, self.batch, partial(self._logits, task, down))
        tuned = local.sgd(self.comparison, task, batches, start=down, params=down, hold=banks, carry=personal, **rates)
        return tree.pick(tuned, down), tree.pick(tuned, personal)

    def weight(self, facts: Tree) -> Tensor:
        """Let every client count once."""
        return torch.ones_like(facts["size"])

    # -- what is minimised, and what is used ------------------------------------
    def loss(self, task: Task, start: Tree, params: Tree, batch: Batch) -> Tensor:
        """Eq. 2 of FedAPT: the cross-entropy of cos(T(p; class), I(x)) / τ."""
        return ops.cross_entropy(self.predict(task, params, batch), batch["y"], batch["mask"])

    def self_training(self, task: Task, start: Tree, params: Tree, batch: Batch) -> Tensor:
        """Stage 1 without labels: FedAPT's eq. 8."""
        logits = self._logits(task, params, unlabelled.view(batch))
        return unlabelled.pseudo_loss(task, logits, batch, self.threshold)

    def comparison(self, task: Task, start: Tree, params: Tree, batch: Batch) -> tuple[Tensor, Tree]:
        """Stage 2 without labels: FedAPT's eq. 9 and 10."""
        known = self.prepare(task, params)
        answer = partial(self._logits, task, known)
        return unlabelled.compared(answer, known, batch, self.neighbours, self.dispersion, self.rest, self.intra)

    def prepare(self, task: Task, params: Tree) -> Tree:
        """Run the text tower once."""
        return params | {"text": dual(task).text(params["context"], per_class=self.csc)}

    def predict(self, task: Task, params: Tree, batch: Batch) -> Tensor:
        """Return the scaled cosines of images and class names."""
        return self._logits(task, params, batch["x"])

    def _logits(self, task: Task, params: Tree, features: Tensor) -> Tensor:
        known = params if "text" in params else self.prepare(task, params)
        return match(features, known["text"], dual(task).scale)
