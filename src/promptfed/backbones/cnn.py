"""Small convolutional networks trained from scratch: the ones federated-learning papers compare on."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from promptfed.backbones.init import affine
from promptfed.core import ops
from promptfed.core.errors import PromptFedError
from promptfed.core.options import Count, Share
from promptfed.core.protocols import Draw, Rng, Tokens
from promptfed.core.tree import Tree


@dataclass(frozen=True)
class ConvNet:
    """Convolutions with ReLU and 2×2 pooling, then dense layers with ReLU, then a linear head."""

    shape: tuple[int, int, int]
    classes: int
    channels: tuple[Count, ...] = (32, 64)
    kernel: Count = 5
    hidden: tuple[Count, ...] = (512,)
    pool_after: tuple[Count, ...] = (1, 2)  # the convolutions, counted from 1, that a pooling follows
    dropout: tuple[Share, ...] = ()  # before the first dense layer, before the second, …

    def __post_init__(self) -> None:
        if not self.channels:
            raise PromptFedError("backbone.channels is empty; give the channels of at least one convolution.")
        if min(self._map_size()) < 1:
            size = "×".join(str(side) for side in self.shape[1:])
            raise PromptFedError(f"Images of {size} pixels are too small for this backbone; choose a larger data.size.")

    @property
    def token_width(self) -> int:
        """Refuse: a convolutional network has no tokens."""
        raise PromptFedError("Prompt tokens need a transformer; set backbone.name=vit.")

    @property
    def layers(self) -> int:
        """Refuse: a convolutional network has no tokens."""
        return self.token_width

    fingerprint: ClassVar[str] = ""
    statistics: ClassVar[None] = None  # it is trained from scratch, so the data set's own will do

    def to(self, device: torch.device) -> "ConvNet":
        """Return it as it is: there are no frozen weights."""
        return self

    def _map_size(self) -> tuple[int, int]:
        height, width = self.shape[1:]
        for number in range(1, len(self.channels) + 1):
            height, width = height - self.kernel + 1, width - self.kernel + 1
            if number in self.pool_after:
                height, width = height // 2, width // 2
        return height, width

    def _dense(self) -> tuple[int, ...]:
        """Return the widths from the flattened map to the last hidden layer."""
        return (self.channels[-1] * math.prod(self._map_size()), *self.hidden)

    def init(self, rng: Rng) -> Tree:
        """Return fresh weights, uniform in ±1/sqrt(fan in) as in PyTorch's own layers."""
        weights: Tree = {}
        generator = rng("backbone", shared=True)
        inputs = self.shape[0]
        for number, outputs in enumerate(self.channels, 1):
            weights |= affine(f"conv{number}", (outputs, inputs, self.kernel, self.kernel), generator)
            inputs = outputs
        widths = self._dense()
        for number in range(1, len(widths)):
            weights |= affine(f"fc{number}", (widths[number], widths[number - 1]), generator)
        return weights | affine("head", (self.classes, widths[-1]), generator)

    def head(self, rng: Rng) -> Tree:
        """Return a fresh classifier."""
        return affine("head", (self.classes, self._dense()[-1]), rng("head", shared=True))

    def draws(self) -> dict[str, Draw]:
        """Return the randomness of dropout."""
        widths = self._dense()
        return {f"dropout{number}": Draw((widths[number - 1],)) for number in range(1, len(self.dropout) + 1)}

    def features(self, weights: Tree, x: Tensor, *, tokens: Tokens | None = None, noise: Tree | None = None) -> Tensor:
        """Return the last hidden layer [..., B, D]; there is no place for `tokens`."""
        for number in range(1, len(self.channels) + 1):
            pool = 2 if number in self.pool_after else 1
            x = ops.conv_relu(x, weights[f"conv{number}.weight"], weights[f"conv{number}.bias"], pool)
        x = self._drop(x, 1, noise).flatten(len(x.shape) - 3)
        for number in range(1, len(self.hidden) + 1):
            x = torch.relu(ops.linear(x, weights[f"fc{number}.weight"], weights[f"fc{number}.bias"]))
            x = self._drop(x, number + 1, noise)
        return x

    def _drop(self, x: Tensor, number: int, noise: Tree | None) -> Tensor:
        if noise is None or number > len(self.dropout):
            return x
        return ops.dropout(x, noise[f"dropout{number}"], self.dropout[number - 1])

    def __call__(self, weights: Tree, x: Tensor, *, tokens: Tokens | None = None, noise: Tree | None = None) -> Tensor:
        """Return the logits [..., B, classes]."""
        features = self.features(weights, x, tokens=tokens, noise=noise)
        return ops.linear(features, weights["head.weight"], weights["head.bias"])


@dataclass(frozen=True)
class CNN(ConvNet):
    """The network of the pFedPT authors' code (and of PFLlib): conv 32 and 64, 5×5, dense 512."""

    name: ClassVar[str] = "cnn"


@dataclass(frozen=True)
class PaperCNN(ConvNet):
    """The network the pFedPT paper describes: two convolutions 64, 5×5, dense 394 and 192."""

    name: ClassVar[str] = "cnn-paper"
    channels: tuple[Count, ...] = (64, 64)
    hidden: tuple[Count, ...] = (394, 192)


@dataclass(frozen=True)
class PflCNN(ConvNet):
    """The network of pfl-research's CIFAR-10 benchmark: conv 32 and 64, 3×3, one pooling, dense 128, dropout."""

    name: ClassVar[str] = "cnn-pfl"
    kernel: Count = 3
    hidden: tuple[Count, ...] = (128,)
    pool_after: tuple[Count, ...] = (2,)
    dropout: tuple[Share, ...] = (0.25, 0.5)
