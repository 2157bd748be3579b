"""pFedMMA: personalized federated fine-tuning with multi-modal adapter for vision-language models (ICLR 2026).

Not a prompt, but the adapter that users weigh prompts against. Beside the later blocks of both towers of a frozen CLIP
stands an adapter: down, through a narrow layer that both towers share, and up again. The narrow layer is averaged, the
way down and up are each client's own.
Symbol -> name: W_d -> down, W_s -> middle, W_u -> up, r -> width, ℓ -> the first of the last `layers`, α -> scale.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Generator, Tensor

from promptfed.core import Batch, Data, Method, Rng, Task, Traits, Tree, adaptable, dual, local, ops, tree
from promptfed.core.options import Count, NonNegative, Positive, Whole
from promptfed.core.prompts.pairs import TEXT, Towers
from promptfed.core.prompts.text import match

OPENING = "a photo of a"
MIDDLE = "middle"


@dataclass(frozen=True)
class PFedMMA(Method):
    """Average what lies between the towers' adapters, keep the adapters."""

    name: ClassVar[str] = "pfedmma"
    backbone: ClassVar[str] = "clip"
    presets: ClassVar = {"paper": {"epochs": 2}}
    quick: ClassVar = {
        "rounds": 5,
        "data": {"name": "fashion-shops", "limit": 20},
        "method": {"scale": 0.1, "lr": 0.01},
        "evaluate": {"every": 5},
    }

    width: Count = 32
    layers: Count = 8  # of a tower have an adapter, the last ones; a tower with fewer has one in each
    scale: NonNegative = 0.001  # of what an adapter adds; 0: zero-shot CLIP
    towers: Towers = "both"  # text: the image tower stays as it is, so its features are computed once
    share: Literal["middle", "all", "none"] = "middle"  # what is averaged
    lr: Positive = 0.001  # at full scale: an adapter's own steps are 1 / scale times as long
    epochs: Whole = 1
    batch: Count = 32
    momentum: NonNegative = 0.9
    weight_decay: NonNegative = 5e-4

    @property
    def traits(self) -> Traits:
        """Ask for features where the image tower stays as it is."""
        return Traits(reads="features" if self.towers == "text" else "pixels", open=True)

    # -- what is learned, and where it lives ------------------------------------
    def init_server(self, task: Task, rng: Rng) -> Tree:
        """Return W_s [r, r] of every layer, with a bias."""
        return {name: value for name, value in self._adapters(task, rng).items() if self._travels(name)}

    def init_client(self, task: Task, data: Data, rng: Rng) -> Tree:
        """Return W_d [r, D] and W_u [D, r] of every layer of each tower, with biases, at first the same everywhere."""
        return {name: value for name, value in self._adapters(task, rng).items() if not self._travels(name)}

    def _travels(self, name: str) -> bool:
        return self.share == "all" or (self.share == "middle" and name.startswith(MIDDLE))

    def _adapters(self, task: Task, rng: Rng) -> Tree:
        """Return all adapters; W_u is not zero, so a model differs from CLIP by little noise from the start."""
        generator, r = rng("adapters", shared=True), self.width
        made: Tree = {}
        for level, blocks in enumerate(self._levels(task)):
            made |= _affine(f"{MIDDLE}{level}", (r, r), generator)
            for block in blocks:
                wide = adaptable(task).matrices[f"{block}.out"][0]
                made |= _affine(f"{block}.side.down", (r, wide), generator)
                made |= _affine(f"{block}.side.up", (wide, r), generator)
        return made

    def _levels(self, task: Task) -> list[tuple[str, ...]]:
        """Return the blocks of each level; towers of different depths are matched from their ends."""
        dual(task)  # refused before a run begins
        every = [name.removesuffix(".out") for name in adaptable(task).matrices if name.endswith(".out")]
        image, text = ([name for name in every if name.startswith(TEXT) == words] for words in (False, True))
        chosen = {"image": (image,), "text": (text,), "both": (image, text)}[self.towers]
        count = min(self.layers, *map(len, chosen))
        return list(zip(*(blocks[-count:] for blocks in chosen), strict=True))

    # -- one round, in the order it happens -------------------------------------
    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        """Move all adapters by SGD, momentum from zero; send W_s, keep W_d and W_u."""
        batches = data.batches(size=self.batch, epochs=self.epochs)
        # The paper's gradient trick gives the adapters 1 / α times their gradients. Under SGD with momentum that is
        # the rate η / α and the decay α λ: v' = α v.
        slow = self.scale or 1.0
        rates = local.Rates(lr=self.lr / slow, momentum=self.momentum, weight_decay=self.weight_decay * slow)
        tuned = local.sgd(self.loss, task, batches, start=down, params=down | personal, **rates)
        return tree.pick(tuned, down), tree.pick(tuned, personal)

    # -- what is minimised, and what is used ------------------------------------
    def loss(self, task: Task, start: Tree, params: Tree, batch: Batch) -> Tensor:
        """Return the cross-entropy over all classes."""
        return ops.cross_entropy(self.predict(task, params, batch), batch["y"], batch["mask"])

    def prepare(self, task: Task, params: Tree) -> Tree:
        """Run the text tower once, with its adapters."""
        if self.towers == "image":
            return params | {"text": dual(task).zero_shot}
        return params | {"text": dual(task).text(OPENING, per_class=False, weights=self.beside(task, params))}

    def predict(self, task: Task, params: Tree, batch: Batch) -> Tensor:
        """Return the scaled cosines of images and class names, both through their adapters."""
        known = params if "text" in params else self.prepare(task, params)
        features = task.backbone.features(self.beside(task, params), batch["x"])
        return match(features, known["text"], dual(task).scale)

    def beside(self, task: Task, params: Tree) -> Tree:
        """Return out = block(z) + α (W_u relu(W_s relu(W_d norm1(z)))) as a backbone adds it: W_s twice, α with W_u."""
        found = {name: self.scale * x if ".side.up." in name else x for name, x in params.items() if ".side." in name}
        for level, blocks in enumerate(self._levels(task)):
            for block in blocks:
                found |= {f"{block}.side.mid.{part}": params[f"{MIDDLE}{level}.{part}"] for part in ("weight", "bias")}
        return found

    def deploy(self, task: Task, server: Tree) -> Tree:
        """Return nothing, unless all is averaged: W_s alone classifies nothing."""
        return server if self.share == "all" else {}


def _affine(name: str, shape: tuple[int, int], generator: Generator) -> Tree:
    """Return a map with Kaiming's normal numbers for its outputs, and no bias yet."""
    weight = math.sqrt(2 / shape[0]) * torch.randn(shape, generator=generator)
    return {f"{name}.weight": weight, f"{name}.bias": torch.zeros(shape[0])}
