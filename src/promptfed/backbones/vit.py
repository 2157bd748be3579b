"""A tiny vision transformer trained from scratch, with room for prompt tokens between class token and patches."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from promptfed import ops
from promptfed.backbones.init import affine
from promptfed.errors import PromptFedError
from promptfed.method import Draw, Rng
from promptfed.options import Count
from promptfed.tree import Tree


@dataclass(frozen=True)
class TinyViT:
    """The pFedPT paper's ViT: patch 4, width 128, 8 blocks of 8 heads, MLP ratio 2; 1,076,106 weights in all."""

    name: ClassVar[str] = "vit-tiny"
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
    def token_width(self) -> int:
        """Return the width of a prompt token."""
        return self.width

    def init(self, rng: Rng) -> Tree:
        """Return fresh weights; the class token and the positions start at zero."""
        generator = rng("backbone", shared=True)
        tokens = (self.shape[1] // self.patch) * (self.shape[2] // self.patch)
        weights: Tree = {"cls": torch.zeros(1, self.width), "position": torch.zeros(tokens + 1, self.width)}
        weights |= affine("patch", (self.width, self.shape[0] * self.patch**2), generator)
        inner = self.width * self.mlp_ratio
        for block in range(self.depth):
            weights |= self._norm(f"block{block}.norm1")
            weights |= affine(f"block{block}.qkv", (3 * self.width, self.width), generator)
            weights |= affine(f"block{block}.out", (self.width, self.width), generator)
            weights |= self._norm(f"block{block}.norm2")
            weights |= affine(f"block{block}.mlp1", (inner, self.width), generator)
            weights |= affine(f"block{block}.mlp2", (self.width, inner), generator)
        return weights | self._norm("norm") | affine("head", (self.classes, self.width), generator)

    def _norm(self, name: str) -> Tree:
        return {f"{name}.weight": torch.ones(self.width), f"{name}.bias": torch.zeros(self.width)}

    def draws(self) -> dict[str, Draw]:
        """Return nothing: there is no dropout."""
        return {}

    def features(self, weights: Tree, x: Tensor, *, tokens: Tensor | None = None, noise: Tree | None = None) -> Tensor:
        """Return the class token after the last block [..., B, width].

        Prompt `tokens` [..., K, width] stand between the class token and the patches and carry no position.
        """
        z = self._embed(weights, x, tokens)
        for block in range(self.depth):
            part = {
                name.split(".", 1)[1]: value for name, value in weights.items() if name.startswith(f"block{block}.")
            }
            z = z + self._attend(part, ops.layer_norm(z, part["norm1.weight"], part["norm1.bias"]))
            hidden = ops.linear(
                ops.layer_norm(z, part["norm2.weight"], part["norm2.bias"]), part["mlp1.weight"], part["mlp1.bias"]
            )
            z = z + ops.linear(F.gelu(hidden), part["mlp2.weight"], part["mlp2.bias"])
        return ops.layer_norm(z[..., 0, :], weights["norm.weight"], weights["norm.bias"])

    def _embed(self, weights: Tree, x: Tensor, tokens: Tensor | None) -> Tensor:
        """Return [class token, prompt tokens, patches] as one sequence [..., B, T, width]."""
        p = self.patch
        rows = x.unflatten(-2, (-1, p)).unflatten(-1, (-1, p))  # [..., B, 3, h, p, w, p]
        patches = rows.movedim((-4, -2), (-5, -4)).flatten(-3).flatten(-3, -2)  # [..., B, h*w, 3*p*p]
        z = ops.linear(patches, weights["patch.weight"], weights["patch.bias"])
        position = ops.spread(weights["position"], 2, z)
        first = ops.spread(weights["cls"], 2, z) + position[..., :1, :]
        sequence = [first.expand(*z.shape[:-2], 1, -1)]
        if tokens is not None:
            sequence.append(ops.spread(tokens, 2, z).expand(*z.shape[:-2], -1, -1))
        return torch.cat([*sequence, z + position[..., 1:, :]], -2)

    def _attend(self, part: Tree, z: Tensor) -> Tensor:
        qkv = ops.linear(z, part["qkv.weight"], part["qkv.bias"]).unflatten(-1, (3, self.heads, -1))
        query, key, value = qkv.movedim((-3, -2), (0, -3)).contiguous().unbind(0)  # each [..., heads, T, d]
        mixed = ops.attention(query, key, value).movedim(-3, -2).flatten(-2)
        return ops.linear(mixed, part["out.weight"], part["out.bias"])

    def __call__(self, weights: Tree, x: Tensor, *, tokens: Tensor | None = None, noise: Tree | None = None) -> Tensor:
        """Return the logits [..., B, classes]."""
        return ops.linear(
            self.features(weights, x, tokens=tokens, noise=noise), weights["head.weight"], weights["head.bias"]
        )
