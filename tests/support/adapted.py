"""Networks with room beside their matrices: one matrix to work out by hand, CLIP's shapes alone, and images."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from promptfed.backbones import companions, text, transformer
from promptfed.backbones.text import TextArch
from promptfed.backbones.transformer import Arch
from promptfed.core import ops
from promptfed.core.protocols import Rng, Tokens
from promptfed.core.tree import Tree
from promptfed.data.batches import Shards
from support.toy_clip import SHAPE, normal
from support.toys import TinyDual, featured

ONE = "block0.out"
A, B = f"{ONE}.lora_a", f"{ONE}.lora_b"


@dataclass(frozen=True)
class Bent(TinyDual):
    """Features are W x + B A x; W, at first the unit matrix, is all that FedAvg trains."""

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        return {f"block0.{part}": (self.width, self.width) for part in ("q", "k", "v", "out")}

    def init(self, rng: Rng) -> Tree:
        return {f"{ONE}.weight": torch.eye(self.width)}

    def features(self, weights: Tree, x: Tensor, *, tokens: Tokens | None = None, noise: Tree | None = None) -> Tensor:
        matrix = weights.get(f"{ONE}.weight", torch.eye(self.width))
        out = ops.linear(x, matrix, matrix.new_zeros(matrix.shape[:-1]))
        return out + ops.low_rank(x, weights[A], weights[B]) if A in weights else out

    def __call__(self, weights: Tree, x: Tensor, *, tokens: Tokens | None = None, noise: Tree | None = None) -> Tensor:
        return self.scale * F.normalize(self.features(weights, x), dim=-1) @ self.zero_shot.mT


@dataclass(frozen=True)
class Wide(TinyDual):
    """The shapes of CLIP's ViT-B/16."""

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        image = companions.matrices(transformer.shapes(Arch(768, 12, 12, 16, 3072, (14, 14), pre_norm=True)))
        words = companions.matrices(text.shapes(TextArch(512, 12, 8, 2048, 49408, 77, 512)))
        return image | {f"text.{name}": shape for name, shape in words.items()}


def photographs(sizes: list[int]) -> Shards:
    """Return images of the toy CLIP, dealt to clients."""
    count = sum(sizes)
    return featured(normal(count, *SHAPE), [n % 3 for n in range(count)], sizes)
