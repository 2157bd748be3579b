"""A tiny vision transformer trained from scratch, with room for prompt tokens between class token and patches."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from promptfed.backbones import transformer
from promptfed.backbones.init import affine
from promptfed.backbones.transformer import Arch
from promptfed.core import ops
from promptfed.core.errors import PromptFedError
from promptfed.core.options import Count
from promptfed.core.protocols import Draw, Rng, Tokens
from promptfed.core.tree import Tree


@dataclass(frozen=True)
class TinyViT:
    """The pFedPT paper's ViT: patch 4, width 128, 8 blocks of 8 heads, MLP ratio 2; 1,076,106 weights in all."""

    name: ClassVar[str] = "vit-tiny"
    fingerprint: ClassVar[str] = ""
    statistics: ClassVar[None] = None  # it is trained from scratch, so the data set's own will do
    shape: tuple[int, int, int]
    classes: int
    patch: Count = 4
    width: Count = 128
    depth: Count = 8
    heads: Count = 8
    mlp_ratio: Count = 2

    def __post_init__(self) -> None:
        if self.shape[1] % self.patch or self.shape[2] % self.patch:
            size = "×".join(str(side) for side in self.shape[1:])
            raise PromptFedError(f"backbone.patch={self.patch} does not divide the images' {size} pixels.")
        if self.width % self.heads:
            raise PromptFedError(f"backbone.heads={self.heads} does not divide backbone.width={self.width}.")

    @property
    def arch(self) -> Arch:
        """Return its architecture."""
        grid = self.shape[1] // self.patch, self.shape[2] // self.patch
        return Arch(self.width, self.depth, self.heads, self.patch, self.width * self.mlp_ratio, grid)

    @property
    def token_width(self) -> int:
        """Return the width of a prompt token."""
        return self.width

    @property
    def layers(self) -> int:
        """Return how many layers take prompt tokens."""
        return self.depth

    def to(self, device: torch.device) -> "TinyViT":
        """Return it as it is: there are no frozen weights."""
        return self

    def init(self, rng: Rng) -> Tree:
        """Return fresh weights; the class token and the positions start at zero."""
        return transformer.fresh(self.arch, generator := rng("backbone", shared=True)) | self._head(generator)

    def head(self, rng: Rng) -> Tree:
        """Return a fresh classifier."""
        return self._head(rng("head", shared=True))

    def _head(self, generator: torch.Generator) -> Tree:
        return affine("head", (self.classes, self.width), generator)

    def draws(self) -> dict[str, Draw]:
        """Return nothing: there is no dropout."""
        return {}

    def features(self, weights: Tree, x: Tensor, *, tokens: Tokens | None = None, noise: Tree | None = None) -> Tensor:
        """Return the class token after the last block [..., B, width]."""
        if not transformer.shapes(self.arch).keys() <= weights.keys():
            raise PromptFedError("vit-tiny has no pretrained weights to freeze; set backbone.name=vit.")
        # not thrifty, so that its results on a CPU keep every bit
        return transformer.features(self.arch, weights, x, tokens, thrifty=False)

    def __call__(self, weights: Tree, x: Tensor, *, tokens: Tokens | None = None, noise: Tree | None = None) -> Tensor:
        """Return the logits [..., B, classes]."""
        return ops.linear(
            self.features(weights, x, tokens=tokens, noise=noise), weights["head.weight"], weights["head.bias"]
        )
