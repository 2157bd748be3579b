"""A tiny dual encoder with random weights, and numbers to put into it."""

import torch
from torch import Tensor

from promptfed.backbones.clip import CLIP
from promptfed.backbones.clip_checkpoint import ClipArch
from promptfed.backbones.text import TextArch
from promptfed.backbones.transformer import Arch

SHAPE = (3, 16, 16)
NAMES = ("cat", "red_dog", "a car's 9 trees")
ARCH = ClipArch(
    Arch(16, 2, 2, 4, 24, (4, 4), quick_gelu=True, pre_norm=True, patch_bias=False, projection=10),
    TextArch(12, 3, 2, 24, 300, 77, 10),
)
NET = CLIP.random(SHAPE, NAMES, ARCH)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def assert_close(found: Tensor, wanted: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)
