"""Tiny things whose every number can be worked out by hand: networks, images of one colour, features, batches."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from promptfed.core import keys, ops
from promptfed.core.errors import PromptFedError
from promptfed.core.method import Task
from promptfed.core.protocols import Backbone, Batch, Draw, Rng, Tokens
from promptfed.core.tree import Tree
from promptfed.data.batches import Pool, Shards
from promptfed.data.dataset import Dataset, Indices

VOCABULARY = ("no", "yes", "maybe", "never")  # the words of TinyDual, an axis each
WHITE, BLACK = 255, 0  # with `dataset`'s normalisation a white image is all ones, a black one all zeros


@dataclass(frozen=True)
class Linear:
    """logits = W x + b over all pixels of a 2×2 image; W and b start at `scale` times normal numbers, so at zero."""

    shape: tuple[int, int, int] = (3, 2, 2)
    classes: int = 2
    scale: float = 0.0
    fingerprint: ClassVar[str] = ""
    statistics: ClassVar[None] = None

    @property
    def token_width(self) -> int:
        raise PromptFedError("There are no tokens here.")

    @property
    def layers(self) -> int:
        raise PromptFedError("There are no tokens here.")

    def to(self, device: torch.device) -> "Linear":
        return self

    def init(self, rng: Rng) -> Tree:
        return self._affine(rng("backbone", shared=True))

    def head(self, rng: Rng) -> Tree:
        return self._affine(rng("head", shared=True))

    def _affine(self, generator: torch.Generator) -> Tree:
        pixels = self.shape[0] * self.shape[1] * self.shape[2]
        weight = torch.randn(self.classes, pixels, generator=generator)
        return {"head.weight": self.scale * weight, "head.bias": torch.zeros(self.classes)}

    def draws(self) -> dict[str, Draw]:
        return {}

    def features(self, weights: Tree, x: Tensor, *, tokens: Tokens | None = None, noise: Tree | None = None) -> Tensor:
        return x.flatten(-3)

    def __call__(self, weights: Tree, x: Tensor, *, tokens: Tokens | None = None, noise: Tree | None = None) -> Tensor:
        return ops.linear(self.features(weights, x), weights["head.weight"], weights["head.bias"])


@dataclass(frozen=True)
class FrozenTokens:
    """A "pretrained transformer" over the four pixels of a 2×2 image, tokens of width 3.

    A class token, at first zero, gains in layer l = 1, 2, … l times the mean of the layer's prompt tokens and of the
    pixels times `scale`, the only weight of the body: 1 unless trained. The head starts at `spread` times normals.
    """

    layers: int = 1
    spread: float = 0.0
    shape: tuple[int, int, int] = (3, 2, 2)
    classes: int = 2
    token_width: ClassVar[int] = 3
    fingerprint: ClassVar[str] = "tokens"
    statistics: ClassVar[tuple[tuple[float, float, float], tuple[float, float, float]]] = ((0, 0, 0), (1, 1, 1))

    def to(self, device: torch.device) -> "FrozenTokens":
        return self

    def init(self, rng: Rng) -> Tree:
        return {"scale": torch.ones(3)} | self.head(rng)

    def head(self, rng: Rng) -> Tree:
        weight = torch.randn(self.classes, 3, generator=rng("head", shared=True))
        return {"head.weight": self.spread * weight, "head.bias": torch.zeros(self.classes)}

    def draws(self) -> dict[str, Draw]:
        return {}

    def features(self, weights: Tree, x: Tensor, *, tokens: Tokens | None = None, noise: Tree | None = None) -> Tensor:
        pixels = x.flatten(-2).mT  # [..., B, 4, 3]
        pixels = pixels * ops.spread(weights.get("scale", torch.ones(3)), 1, pixels)
        per_layer = [tokens] * self.layers if tokens is None or isinstance(tokens, Tensor) else list(tokens)
        cls = torch.zeros_like(pixels[..., 0, :])
        for number, prompt in enumerate(per_layer, 1):
            seen = pixels
            if prompt is not None:
                seen = torch.cat([ops.spread(prompt, 2, pixels).expand(*pixels.shape[:-2], -1, -1), pixels], -2)
            cls = cls + number * seen.mean(-2)
        return cls

    def __call__(self, weights: Tree, x: Tensor, *, tokens: Tokens | None = None, noise: Tree | None = None) -> Tensor:
        features = self.features(weights, x, tokens=tokens, noise=noise)
        return ops.linear(features, weights["head.weight"], weights["head.bias"])


@dataclass(frozen=True)
class TinyDual:
    """A dual encoder over given features of `width` numbers; the word of class c is the c-th axis.

    The text feature of a class is the unit vector along the mean of the context tokens plus the class's word. Words of
    a sentence are axes too, in the order of VOCABULARY, all others nothing; its feature is along their sum.
    """

    classes: int = 2
    width: int = 2
    sharpness: float = 1.0  # logits are so many times the cosines
    names: tuple[str, ...] = ()  # of the classes, as in VOCABULARY; without them class c is word c
    shape: tuple[int, int, int] = (3, 2, 2)
    layers: ClassVar[int] = 0
    fingerprint: ClassVar[str] = "tiny"
    statistics: ClassVar[None] = None

    @property
    def token_width(self) -> int:
        return self.width

    @property
    def context_width(self) -> int:
        return self.width

    @property
    def scale(self) -> Tensor:
        return torch.tensor(self.sharpness)

    @property
    def zero_shot(self) -> Tensor:
        if self.names:
            return torch.cat([self.words(name) for name in self.names])
        return torch.eye(self.classes, self.width)

    def text(self, context: Tensor, *, per_class: bool) -> Tensor:
        mean = context.mean(-2) if per_class else context.mean(-2).unsqueeze(-2)
        return torch.nn.functional.normalize(mean + self.zero_shot, dim=-1)

    def sentences(self, texts: Sequence[str]) -> Tensor:
        return torch.nn.functional.normalize(torch.stack([self.words(text).sum(0) for text in texts]), dim=-1)

    def words(self, said: str) -> Tensor:
        axes = dict(zip(VOCABULARY, torch.eye(self.width), strict=False))
        return torch.stack([axes.get(word, torch.zeros(self.width)) for word in said.strip(".").split()])

    def named(self, names: Sequence[str]) -> "TinyDual":
        return replace(self, classes=len(names), names=tuple(names))

    def to(self, device: torch.device) -> "TinyDual":
        return self

    def init(self, rng: Rng) -> Tree:
        return self.head(rng)

    def head(self, rng: Rng) -> Tree:
        return {"head.weight": torch.zeros(self.classes, self.width), "head.bias": torch.zeros(self.classes)}

    def draws(self) -> dict[str, Draw]:
        return {}

    def features(self, weights: Tree, x: Tensor, *, tokens: Tokens | None = None, noise: Tree | None = None) -> Tensor:
        return x

    def __call__(self, weights: Tree, x: Tensor, *, tokens: Tokens | None = None, noise: Tree | None = None) -> Tensor:
        return ops.linear(x, weights["head.weight"], weights["head.bias"])


@dataclass
class Listed:
    """Batches that are simply given."""

    batches: Sequence[Batch]
    ragged: bool = False
    lengths: tuple[int, ...] = ()
    tensors: Tree = field(default_factory=dict)
    key: Hashable = None

    def __post_init__(self) -> None:
        self.steps = len(self.batches)

    def at(self, tensors: Tree, step: Tensor) -> Batch:
        return self.batches[int(step)]

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.batches)


def rng(who: int | str = "server", seed: int = 0) -> Rng:
    """Return the initial randomness of a client or the server."""

    def draw(purpose: str, shared: bool = False) -> torch.Generator:
        return keys.generator(seed, purpose, "shared" if shared else who)

    return draw


def task(backbone: Backbone | None = None, clients: int = 2) -> Task:
    """Return a task of two classes."""
    return Task(backbone or Linear(), ("no", "yes"), clients)


def dataset(
    colours: Sequence[int], labels: Sequence[int], side: int = 2, classes: int = 2, domains: Sequence[int] | None = None
) -> Dataset:
    """Return images of one colour each, black 0 and white 1 after normalisation."""
    where = np.array(domains if domains is not None else [0] * len(labels), np.int64)
    return Dataset(
        name="toy",
        images=np.array(colours, np.uint8).repeat(side * side * 3).reshape(-1, side, side, 3),
        labels=np.array(labels, np.int64),
        test=np.zeros(len(labels), np.bool_),
        classes=tuple(f"class {number}" for number in range(classes)),
        domains=where,
        domain_names=tuple(f"place {number}" for number in range(int(where.max()) + 1)),
        mean=(0.0, 0.0, 0.0),
        std=(1.0, 1.0, 1.0),
    )


def shares(sizes: Sequence[int]) -> list[Indices]:
    """Deal consecutive images: sizes 2, 3 -> [0, 1], [2, 3, 4]."""
    return [part.astype(np.int64) for part in np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])]


def shards(
    data: Dataset,
    train: Sequence[int],
    test: Sequence[Indices] = (),
    seed: int = 0,
    draws: Mapping[str, Draw] | None = None,
) -> Shards:
    """Deal the images to clients in order, `train` of them each."""
    return Shards(Pool(data, torch.device("cpu")), shares(train), test or shares(train), seed, draws or {})


def numbered(sizes: Sequence[int], seed: int = 0, draws: Mapping[str, Draw] | None = None) -> Shards:
    """Return clients whose images are told apart by their colour; the labels alternate."""
    count = sum(sizes)
    return shards(dataset(range(count), [number % 2 for number in range(count)]), sizes, seed=seed, draws=draws)


def graded(sizes: Sequence[int], side: int = 2, draws: Mapping[str, Draw] | None = None) -> Shards:
    """Return clients whose images go from black to white; the labels alternate."""
    count = sum(sizes)
    colours = [WHITE * number // (count - 1) for number in range(count)]
    return shards(dataset(colours, [number % 2 for number in range(count)], side), sizes, draws=draws)


def featured(
    features: Tensor,
    labels: Sequence[int],
    sizes: Sequence[int],
    *,
    domains: Sequence[int] | None = None,
    views: Tensor | None = None,
    draws: Mapping[str, Draw] | None = None,
) -> Shards:
    """Deal features [N, D], and those of augmented views [N, V, D], to clients in order, `sizes` of them each."""
    images = dataset([BLACK] * len(labels), labels, classes=max(labels) + 1, domains=domains)
    pool = Pool(images, torch.device("cpu"), features, {} if views is None else {"views": views})
    return Shards(pool, shares(sizes), shares(sizes), 0, draws or {})
