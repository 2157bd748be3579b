"""Prompts in pixel space: a frame around the image, or a patch at a fixed or random place, added to the image.

The image is normalised first and never clipped, as in Bahng et al. 2022, whose shapes these are.
"""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from promptfed.core.errors import PromptFedError
from promptfed.core.tree import Tree

Shape = tuple[int, int, int]


def init_frame(shape: Shape, pad: int, generator: torch.Generator) -> Tree:
    """Return a frame of `pad` pixels per side, N(0, 1): 2·C·pad·(H + W − 2·pad) numbers."""
    channels, height, width = shape
    if not 1 <= pad <= min(height, width) // 2:
        limit = min(height, width) // 2
        raise PromptFedError(f"A frame of {pad} pixels per side does not fit {height}×{width} images; 1 to {limit} do.")
    sides = {
        "up": (channels, pad, width),
        "down": (channels, pad, width),
        "left": (channels, height - 2 * pad, pad),
        "right": (channels, height - 2 * pad, pad),
    }
    return {side: torch.randn(size, generator=generator) for side, size in sides.items()}


def frame(parts: Tree) -> Tensor:
    """Return the frame as an image [..., C, H, W], zero inside."""
    up, left, right = parts["up"], parts["left"], parts["right"]
    inside = left.new_zeros(*left.shape[:-1], up.shape[-1] - 2 * left.shape[-1])
    return torch.cat([up, torch.cat([left, inside, right], -1), parts["down"]], -2)


def init_patch(shape: Shape, size: int, generator: torch.Generator) -> Tree:
    """Return a square patch of `size` pixels, N(0, 1): C·size² numbers."""
    channels, height, width = shape
    if not 1 <= size <= min(height, width):
        limit = min(height, width)
        raise PromptFedError(f"A patch of {size} pixels does not fit {height}×{width} images; 1 to {limit} do.")
    return {"patch": torch.randn(channels, size, size, generator=generator)}


def fixed_patch(parts: Tree, shape: Shape) -> Tensor:
    """Return the patch at the top left of an image [..., C, H, W], zero elsewhere."""
    size = parts["patch"].shape[-1]
    return F.pad(parts["patch"], (0, shape[2] - size, 0, shape[1] - size))


def placed_patch(parts: Tree, shape: Shape, where: Tensor) -> Tensor:
    """Return the patch where `where` [..., 2], uniform in [0, 1), says: one of U{0 … H−size−1} × U{0 … W−size−1}.

    Placing by two 0/1 matrices keeps the place out of every tensor shape.
    """
    size = parts["patch"].shape[-1]
    rows = _place(where[..., 0], shape[1], size)
    columns = _place(where[..., 1], shape[2], size)
    return rows @ parts["patch"] @ columns.mT


def _place(where: Tensor, length: int, size: int) -> Tensor:
    """Return the matrix [..., 1, length, size] that puts `size` pixels at the drawn offset."""
    offset = (where * max(length - size, 1)).long()[..., None, None]
    pixel = torch.arange(length, device=where.device)[:, None]
    return (pixel == offset + torch.arange(size, device=where.device)).float().unsqueeze(-3)
