"""Encoders with random weights, large and small, and how much of their work a step asks for."""

import math
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from promptfed.backbones.clip import CLIP
from promptfed.backbones.clip_checkpoint import ClipArch
from promptfed.backbones.pretrained import ViT
from promptfed.backbones.text import TextArch
from promptfed.backbones.transformer import Arch
from promptfed.core.tree import Tree


@dataclass(frozen=True)
class Encoder:
    """The shapes of CLIP's towers, and of a vision transformer beside it: width, heads and patch."""

    clip: ClipArch
    vit: tuple[int, int, int]
    side: int  # of an image, in pixels


def image_tower(width: int, heads: int, patch: int, features: int) -> Arch:
    """Return twelve blocks as CLIP has them."""
    plain = Arch(width, 12, heads, patch, 4 * width, (1, 1), projection=features)
    return replace(plain, eps=1e-5, quick_gelu=True, pre_norm=True, patch_bias=False)


def text_tower(width: int, heads: int, words: int) -> TextArch:
    """Return twelve blocks as CLIP has them, with as many features as they are wide."""
    return TextArch(width, 12, heads, 4 * width, words, 77, width)


ENCODERS = {
    "b16": Encoder(ClipArch(image_tower(768, 12, 16, 512), text_tower(512, 8, 49408)), (384, 6, 14), 224),
    "small": Encoder(ClipArch(image_tower(384, 6, 16, 384), text_tower(384, 6, 49408)), (384, 6, 14), 224),
    "tiny": Encoder(ClipArch(image_tower(32, 2, 8, 32), text_tower(32, 2, 1000)), (32, 2, 8), 32),
}


@cache
def network(encoder: str, kind: str, names: tuple[str, ...], device: torch.device) -> Any:
    """Return CLIP or a vision transformer with random weights."""
    form = ENCODERS[encoder]
    shape = (3, form.side, form.side)
    if kind == "clip":
        return CLIP.random(shape, names, form.clip).to(device)
    width, heads, patch = form.vit
    made = ViT.random(shape, len(names), width=width, depth=12, heads=heads, patch=patch, layer_scale=True)
    return made.to(device)


def grid_of(backbone: Any) -> tuple[int, int]:
    """Return the rows and columns of patches."""
    arch = backbone.arch
    found: tuple[int, int] = (arch.image if isinstance(arch, ClipArch) else arch).grid
    return found


class Watched:
    """A backbone that counts the tokens and the images that go through its towers."""

    def __init__(self, backbone: Any, pixels: bool) -> None:
        self.backbone, self.pixels = backbone, pixels
        self.text_tokens, self.images = 0, 0.0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.backbone, name)
        return partial(self._looked, found) if self.pixels and name in ("features", "patches", "grown") else found

    def __call__(self, weights: Tree, x: Tensor, **others: Any) -> Any:
        """Return the logits."""
        return self._looked(self.backbone, weights, x, **others) if self.pixels else self.backbone(weights, x, **others)

    def _looked(self, look: Any, weights: Tree, x: Tensor, **others: Any) -> Any:
        found = look(weights, x, **others)
        blocks = (others.get("upto", 0) or self.backbone.layers) / self.backbone.layers
        self.images += math.prod(x.shape[:-3]) * blocks * (1 if found.requires_grad else 0.5)
        return found

    def text(self, context: Tensor | str, *, per_class: bool, **others: Any) -> Tensor:
        """Return the unit features; those that nothing is learned from are made once in a round, and do not count."""
        found: Tensor = self.backbone.text(context, per_class=per_class, **others)
        if found.requires_grad:
            before = 1 + (self.backbone.words(context) if isinstance(context, str) else context).shape[-2]
            ends = [group.words["ending"].shape[:2] for group in self.backbone.groups]
            tokens = sum(count * (length + before * per_class) for count, length in ends) + before * (not per_class)
            self.text_tokens += tokens * math.prod(found.shape[:-2])
        return found
