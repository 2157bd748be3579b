"""Frozen weights: how many, and a digest that is the same on every device, for a run resumes on those it began with."""

import hashlib
from collections.abc import Collection
from typing import Any

import torch

from promptfed.backbones.clip import LoadedCLIP
from promptfed.backbones.diffusion import LoadedDiffusion
from promptfed.backbones.pretrained import LoadedViT
from promptfed.backbones.resnet import LoadedResNet
from promptfed.core.tree import Tree

HASHED_NUMBERS = 1 << 27  # of a larger model, every so many numbers stand for all


def digest_weights(backbone: Any) -> str:
    """Return a digest of the backbone's frozen weights; empty if it has none."""
    weights = _frozen(backbone)
    if not weights:
        return ""
    every = max(1, -(-sum(value.numel() for value in weights.values()) // HASHED_NUMBERS))
    content = hashlib.sha256(str(every).encode())
    for name, value in weights.items():
        content.update(f"{name}|{tuple(value.shape)}".encode())
        # rounded as a GPU uses them, so that the device does not matter
        some = value.detach().reshape(-1)[::every].to(torch.bfloat16 if value.is_floating_point() else torch.int64)
        content.update(some.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return content.hexdigest()


def count_frozen(backbone: Any, trained: Collection[str] = ()) -> int:
    """Return how many weights of the backbone stay frozen if those of some names are trained."""
    return sum(value.numel() for name, value in _frozen(backbone).items() if name not in trained)


def _frozen(backbone: Any) -> Tree:
    """Return the weights as they were read."""
    if isinstance(backbone, LoadedCLIP):
        return _frozen(backbone.image) | {f"text.{name}": value for name, value in backbone.spelled.items()}
    if isinstance(backbone, LoadedDiffusion):
        modules = (backbone.parts.unet, backbone.parts.vae, backbone.parts.text, backbone.parts.vision)
        return {
            f"{number}.{name}": value
            for number, module in enumerate(modules)
            if module is not None
            for name, value in module.state_dict().items()
        }
    if isinstance(backbone, (LoadedViT, LoadedResNet)):
        return backbone.pretrained
    return {}
