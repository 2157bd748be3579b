"""Tiny things whose every number can be worked out by hand: a linear network, images of one colour, listed batches."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from promptfed import keys, ops
from promptfed.data.batches import Pool, Shards
from promptfed.data.dataset import Dataset, Indices
from promptfed.errors import PromptFedError
from promptfed.method import Backbone, Batch, Draw, Rng, Task
from promptfed.tree import Tree

WHITE, BLACK = 255, 0  # with `dataset`'s normalisation a white image is all ones, a black one all zeros


@dataclass(frozen=True)
class Linear:
    """logits = W x + b over all pixels of a 2×2 image; W and b start at `scale` times normal numbers, so at zero."""

    shape: tuple[int, int, int] = (3, 2, 2)
    classes: int = 2
    scale: float = 0.0

    @property
    def token_width(self) -> int:
        raise PromptFedError("There are no tokens here.")

    def init(self, rng: Rng) -> Tree:
        generator = rng("backbone", shared=True)
        pixels = self.shape[0] * self.shape[1] * self.shape[2]
        weight = torch.randn(self.classes, pixels, generator=generator)
        return {"head.weight": self.scale * weight, "head.bias": torch.zeros(self.classes)}

    def draws(self) -> dict[str, Draw]:
        return {}

    def features(self, weights: Tree, x: Tensor, *, tokens: Tensor | None = None, noise: Tree | None = None) -> Tensor:
        return x.flatten(-3)

    def __call__(self, weights: Tree, x: Tensor, *, tokens: Tensor | None = None, noise: Tree | None = None) -> Tensor:
        return ops.linear(self.features(weights, x), weights["head.weight"], weights["head.bias"])


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
