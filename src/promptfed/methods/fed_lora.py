"""LoRA in a federation: FedIT-LoRA, FFA-LoRA and FedSA-LoRA, the rivals of prompts.

Pairs of low rank stand beside matrices W of frozen towers, W x + s B A x (LoRA, Hu et al. ICLR 2022). The three differ
in what becomes of the halves. FedIT (Zhang et al. ICASSP 2024) averages A and B. FFA (Sun et al. ICLR 2024) leaves A as
it was drawn, the same everywhere, and averages B, so that the mean of products is the product of means. FedSA (Guo et
al. ICLR 2025) averages A, and every client keeps its B.
Symbol -> name: A -> NAME.lora_a, B -> NAME.lora_b, r -> rank, α -> alpha, s -> `scale`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Generator, Tensor

from promptfed.core import Batch, Data, Method, PromptFedError, Rng, Task, Traits, Tree, dual, local, ops, tree
from promptfed.core.options import Count, NonNegative, Positive, Whole
from promptfed.core.prompts.pairs import TEXT, Towers, chosen, init_pairs, scaled_pairs
from promptfed.core.prompts.text import match

A, B = ".lora_a", ".lora_b"
OPENING = "a photo of a"
PARTS = {"qv": "qv", "qkv": "qkv", "attention": (*"qkv", "out"), "all": (*"qkv", "out", "mlp1", "mlp2")}


@dataclass(frozen=True)
class FedITLoRA(Method):
    """Average both halves of every pair."""

    name: ClassVar[str] = "fedit-lora"
    backbone: ClassVar[str] = "clip"
    presets: ClassVar = {
        "equal": {"rank": 1, "parts": "qv", "towers": "image", "last": 3},  # about as large as a prompt
        "fedsa": {
            "rank": 8,
            "alpha": 16.0,
            "scaling": "rank",
            "optimiser": "sgd",
            "lr": 0.02,
            "weight_decay": 0.0,
            "batch": 128,
            "steps": 10,
        },
    }
    quick: ClassVar = {
        "rounds": 5,
        "data": {"name": "fashion-shops", "limit": 20},
        "method": {"lr": 0.005},
        "evaluate": {"every": 5},
    }

    rank: Count = 2
    alpha: Positive = 1.0
    scaling: Literal["root", "rank"] = "root"  # s is α/√r, or α/r
    parts: Literal["qv", "qkv", "attention", "all"] = "qkv"  # the matrices of a block that have a pair
    towers: Towers = "both"  # text: the image tower stays as it is, so its features are computed once
    last: Whole = 0  # so many blocks of a tower, the last ones; 0: all
    head: Literal["text", "shared", "own"] = "text"  # what answers: class names, or an averaged or a client's own head
    optimiser: Literal["adam", "sgd"] = "adam"
    lr: Positive = 2e-4
    epochs: Whole = 1
    steps: Whole = 0  # of a round; 0: as many as its epochs have
    batch: Count = 32
    momentum: NonNegative = 0.0  # of SGD
    weight_decay: NonNegative = 0.01

    @property
    def traits(self) -> Traits:
        """Ask for features where the image tower stays as it is."""
        return Traits(reads="features" if self.towers == "text" else "pixels", open=self.head == "text")

    @property
    def scale(self) -> float:
        """Return s."""
        return self.alpha / (math.sqrt(self.rank) if self.scaling == "root" else self.rank)

    @property
    def sent(self) -> tuple[str, ...]:
        """Return the halves that travel; every client keeps the others."""
        return A, B

    @property
    def fixed(self) -> tuple[str, ...]:
        """Return the halves that stay as they were drawn, the same everywhere."""
        return ()

    # -- what is learned, and where it lives ------------------------------------
    def init_server(self, task: Task, rng: Rng) -> Tree:
        """Return what is averaged, and what is fixed, for a model without a client."""
        head = task.backbone.head(rng) if self.head == "shared" else {}
        return _ending(self.pairs(task, rng("pairs", shared=True)), self.sent + self.fixed) | head

    def init_client(self, task: Task, data: Data, rng: Rng) -> Tree:
        """Return the halves that do not travel, at first the same on every client."""
        pairs = self.pairs(task, rng("pairs", shared=True))
        head = task.backbone.head(rng) if self.head == "own" else {}
        return tree.drop(pairs, _ending(pairs, self.sent)) | head

    def pairs(self, task: Task, generator: Generator) -> Tree:
        """Return A [r, in], drawn, and B [out, r], zero, of every matrix that has a pair."""
        if self.head == "text":
            dual(task)
        elif self.towers == "text":
            raise PromptFedError(
                f"method.head={self.head} sees no texts; set method.towers=image, or method.head=text."
            )
        towers: Towers = self.towers if self.head == "text" else "image"
        matrices = chosen(task, PARTS[self.parts], towers)
        matrices = _last(matrices, self.last) if self.last else matrices
        return init_pairs(matrices, self.rank, generator)

    # -- one round, in the order it happens -------------------------------------
    def download(self, task: Task, server: Tree, clients: Tensor) -> Tree:
        """Return what is averaged; what is fixed is with the clients."""
        return tree.repeat(tree.drop(server, _ending(server, self.fixed)), len(clients))

    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        """Move all that is not fixed by AdamW or SGD, whose state starts from zero; send what was received."""
        fixed = _ending(personal, self.fixed)
        tuned = self.tuned(task, tree.drop(down | personal, fixed), fixed, data)
        return tree.pick(tuned, down), tree.pick(tuned | fixed, personal)

    def tuned(self, task: Task, moving: Tree, held: Tree, data: Data) -> Tree:
        """Return what has moved in a round of local training beside what is held."""
        batches = data.batches(size=self.batch, epochs=self.epochs, steps=self.steps or None)
        if self.optimiser == "sgd":
            rates = local.Rates(lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
            return local.sgd(self.loss, task, batches, start={}, params=moving, hold=held, **rates)
        decay = local.AdamRates(lr=self.lr, weight_decay=self.weight_decay)
        return local.adam(self.loss, task, batches, start={}, params=moving, hold=held, **decay)

    # -- what is minimised, and what is used ------------------------------------
    def loss(self, task: Task, start: Tree, params: Tree, batch: Batch) -> Tensor:
        """Return the cross-entropy over all classes."""
        return ops.cross_entropy(self.predict(task, params, batch), batch["y"], batch["mask"])

    def prepare(self, task: Task, params: Tree) -> Tree:
        """Run the text tower once, if class names are what answers."""
        if self.head != "text":
            return params
        beside = {name: value for name, value in params.items() if name.startswith(TEXT)}
        if not beside:
            return params | {"text": dual(task).zero_shot}
        return params | {"text": dual(task).text(OPENING, per_class=False, weights=self.beside(beside))}

    def predict(self, task: Task, params: Tree, batch: Batch) -> Tensor:
        """Return the scaled cosines of images and class names, or the logits of the head."""
        image = self.beside({name: value for name, value in params.items() if not name.startswith(TEXT)})
        if self.head != "text":
            return task.backbone(image, batch["x"])
        known = params if "text" in params else self.prepare(task, params)
        return match(task.backbone.features(image, batch["x"]), known["text"], dual(task).scale)

    def beside(self, params: Tree) -> Tree:
        """Return what stands beside the matrices as a backbone adds it: s goes with B."""
        return scaled_pairs(params, self.scale)

    def deploy(self, task: Task, server: Tree) -> Tree:
        """Return what is averaged and what is fixed, or nothing where clients keep a half or a head."""
        return server if {A, B} == {*self.sent, *self.fixed} and self.head != "own" else {}


@dataclass(frozen=True)
class FFALoRA(FedITLoRA):
    """Leave A as it was drawn and average B: the mean of the products B A is the product of the mean."""

    name: ClassVar[str] = "ffa-lora"

    @property
    def sent(self) -> tuple[str, ...]:
        """Return B."""
        return (B,)

    @property
    def fixed(self) -> tuple[str, ...]:
        """Return A; it is drawn by the run's seed, so it need not travel."""
        return (A,)


@dataclass(frozen=True)
class FedSALoRA(FedITLoRA):
    """Average one half, A, and keep the other."""

    name: ClassVar[str] = "fedsa-lora"

    share: Literal["a", "b"] = "a"  # b: average B and keep A

    @property
    def sent(self) -> tuple[str, ...]:
        """Return the half that is averaged."""
        return (A,) if self.share == "a" else (B,)


def _ending(params: Tree, halves: tuple[str, ...]) -> Tree:
    return {name: value for name, value in params.items() if name.endswith(halves)}


def _last(matrices: Mapping[str, tuple[int, int]], count: int) -> dict[str, tuple[int, int]]:
    """Return the matrices of the last blocks of each tower."""
    place = {name: int(name.removeprefix(TEXT).removeprefix("block").partition(".")[0]) for name in matrices}
    final = {
        tower: max((place[name] for name in matrices if name.startswith(TEXT) == tower), default=0) for tower in (0, 1)
    }
    return {name: shape for name, shape in matrices.items() if place[name] > final[name.startswith(TEXT)] - count}
