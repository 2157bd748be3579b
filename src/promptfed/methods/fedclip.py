"""FedCLIP: fast generalization and personalization for CLIP in federated learning (Lu et al. 2023).

An adapter behind CLIP's frozen image tower weighs the features; every client tunes it and it is averaged. The class
names are those of zero-shot CLIP. A baseline of FedAPT, which also lends it its training without labels.
Symbol -> name: f -> the image feature, W1 and W2 -> adapter1.* and adapter2.*.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from promptfed.core import Batch, Batches, Data, Draw, Method, Rng, Task, Traits, Tree, dual, local, ops, tree
from promptfed.core.options import Count, NonNegative, Positive, Share, Whole
from promptfed.core.prompts.text import init_map, match
from promptfed.methods import _unlabelled as unlabelled
from promptfed.methods._unlabelled import Intra, Mode, Rest

MOMENTS, EPS = (0.9, 0.98), 1e-6  # of Adam


@dataclass(frozen=True)
class FedCLIP(Method):
    """Average an attention adapter over the features of CLIP's frozen image tower."""

    name: ClassVar[str] = "fedclip"
    backbone: ClassVar[str] = "clip"
    presets: ClassVar = {
        "official": {"against": "batch"},
        "fedapt": {"adapter": "sigmoid", "optimiser": "sgd", "lr": 0.01, "weight_decay": 1e-5, "batch": 256},
        "unsupervised": {"mode": "unsupervised", "batch": 512},
    }

    mode: Mode = "supervised"
    adapter: Literal["softmax", "sigmoid"] = "softmax"  # sigmoid: that of FedAPT's code, with a ReLU inside
    against: Literal["classes", "batch"] = "classes"  # what an image's own class name is set against
    optimiser: Literal["adam", "sgd"] = "adam"
    lr: Positive = 5e-5
    epochs: Whole = 1
    batch: Count = 32
    momentum: NonNegative = 0.9  # of SGD
    weight_decay: NonNegative = 0.2
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
        return Traits(reads="features", views=0 if labelled else unlabelled.VIEWS, weighs=labelled, open=True)

    # -- what is learned, and where it lives ------------------------------------
    def init_server(self, task: Task, rng: Rng) -> Tree:
        """Return W1 and W2, both [D, D], with biases."""
        width = dual(task).zero_shot.shape[-1]
        draw = rng("adapter")
        return init_map("adapter1", (width, width), draw) | init_map("adapter2", (width, width), draw)

    def init_client(self, task: Task, data: Data, rng: Rng) -> Tree:
        """Return a bank of scores, still empty, for learning without labels; else nothing."""
        return {"bank.scores": torch.zeros(data.capacity, len(task.classes))} if self.mode == "unsupervised" else {}

    def draws(self, task: Task) -> dict[str, Draw]:
        """Return which view of each image is seen."""
        return task.backbone.draws() | (unlabelled.DRAWS if self.mode == "unsupervised" else {})

    # -- one round, in the order it happens -------------------------------------
    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        """Move the adapter and send it; the optimiser starts fresh in every round."""
        batches = data.batches(size=self.batch, epochs=self.epochs)
        if self.mode == "supervised":
            return tree.pick(self._descend(self.loss, task, down, batches, {}, {}), down), personal
        if data.round < self.stage1:
            return tree.pick(self._descend(self.self_training, task, down, batches, {}, {}), down), personal
        banks = unlabelled.filled(personal["bank.scores"], data, self.batch, partial(self._logits, task, down))
        tuned = self._descend(self.comparison, task, down, batches, banks, personal)
        return tree.pick(tuned, down), tree.pick(tuned, personal)

    def _descend(
        self, objective: local.Objective, task: Task, down: Tree, batches: Batches, hold: Tree, carry: Tree
    ) -> Tree:
        if self.optimiser == "sgd":
            rates = local.Rates(lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
            return local.sgd(objective, task, batches, start=down, params=down, hold=hold, carry=carry, **rates)
        return local.adam(
            objective,
            task,
            batches,
            start=down,
            params=down,
            lr=self.lr,
            betas=MOMENTS,
            eps=EPS,
            weight_decay=self.weight_decay,
            hold=hold,
            carry=carry,
        )

    def weight(self, facts: Tree) -> Tensor:
        """Let every client count once."""
        return torch.ones_like(facts["size"])

    # -- what is minimised, and what is used ------------------------------------
    def loss(self, task: Task, start: Tree, params: Tree, batch: Batch) -> Tensor:
        """Return the cross-entropy over all classes, or the symmetric contrastive loss over the pairs of the batch."""
        if self.against == "classes":
            return ops.cross_entropy(self.predict(task, params, batch), batch["y"], batch["mask"])
        clip, mask = dual(task), batch["mask"]
        names = clip.zero_shot[batch["y"]]  # [..., B, D]: every image comes with its own class name
        pairs = match(self.adapted(params, batch["x"]), names, clip.scale)  # [..., B, B]
        own = torch.arange(pairs.shape[-1], device=pairs.device).expand_as(mask)
        # padding must not take part: the smallest number removes it from a softmax
        absent = (mask == 0).unsqueeze(-2)
        least = torch.finfo(pairs.dtype).min
        images = ops.cross_entropy(pairs.masked_fill(absent, least), own, mask)
        texts = ops.cross_entropy(pairs.mT.masked_fill(absent, least), own, mask)
        return (images + texts) / 2

    def self_training(self, task: Task, start: Tree, params: Tree, batch: Batch) -> Tensor:
        """Stage 1 without labels: FedAPT's eq. 8."""
        logits = self._logits(task, params, unlabelled.view(batch))
        return unlabelled.pseudo_loss(task, logits, batch, self.threshold)

    def comparison(self, task: Task, start: Tree, params: Tree, batch: Batch) -> tuple[Tensor, Tree]:
        """Stage 2 without labels: FedAPT's eq. 9 and 10."""
        answer = partial(self._logits, task, params)
        return unlabelled.compared(answer, params, batch, self.neighbours, self.dispersion, self.rest, self.intra)

    def predict(self, task: Task, params: Tree, batch: Batch) -> Tensor:
        """Return the scaled cosines of adapted features and zero-shot class names."""
        return self._logits(task, params, batch["x"])

    def _logits(self, task: Task, params: Tree, features: Tensor) -> Tensor:
        return match(self.adapted(params, features), dual(task).zero_shot, dual(task).scale)

    # -- the adapter ------------------------------------------------------------
    def adapted(self, params: Tree, features: Tensor) -> Tensor:
        """Return a(f) ⊙ f with a(f) = softmax(W2 tanh(W1 f)), or in FedAPT's code sigmoid(W2 relu(W1 f))."""
        inner = ops.linear(features, params["adapter1.weight"], params["adapter1.bias"])
        inner = inner.tanh() if self.adapter == "softmax" else inner.relu()
        outer = ops.linear(inner, params["adapter2.weight"], params["adapter2.bias"])
        return features * (outer.softmax(-1) if self.adapter == "softmax" else outer.sigmoid())
