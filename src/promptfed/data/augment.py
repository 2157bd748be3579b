"""Random views of photographs for learning without labels: mirrored, recoloured, greyed, blurred, never cropped."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

GREY = (0.299, 0.587, 0.114)


def augmented(images: Tensor, draw: torch.Generator) -> Tensor:
    """Return a random view of each image [N, 3, H, W] in 0 … 1.

    Mirrored half of the time; in four of five cases brightness, contrast and saturation change by up to 80 % and the
    hue by up to a fifth of the circle; one in five is grey, one in five blurred.
    """

    def uniform(low: float = 0.0, high: float = 1.0) -> Tensor:
        return torch.empty(len(images), 1, 1, 1, device=images.device).uniform_(low, high, generator=draw)

    x = torch.where(uniform() < 0.5, images.flip(-1), images)
    jittered = (x * uniform(0.2, 1.8)).clamp(0, 1)
    jittered = torch.lerp(_grey(jittered).mean((-2, -1), keepdim=True), jittered, uniform(0.2, 1.8)).clamp(0, 1)
    jittered = torch.lerp(_grey(jittered), jittered, uniform(0.2, 1.8)).clamp(0, 1)
    jittered = _turned(jittered, uniform(-0.2, 0.2))
    x = torch.where(uniform() < 0.8, jittered, x)
    x = torch.where(uniform() < 0.2, _grey(x).expand_as(x), x)
    return torch.where(uniform() < 0.2, _blurred(x, uniform(1, 2)), x)


def _grey(images: Tensor) -> Tensor:
    weights = torch.tensor(GREY, device=images.device).view(3, 1, 1)
    return (images * weights).sum(-3, keepdim=True)


def _turned(images: Tensor, turn: Tensor) -> Tensor:
    """Turn the hue by a share of the circle: a rotation about the grey axis."""
    angle = 2 * torch.pi * turn
    cos, sin = angle.cos(), angle.sin()
    same, left, right = (1 + 2 * cos) / 3, (1 - cos) / 3 - sin / 3**0.5, (1 - cos) / 3 + sin / 3**0.5
    red, green, blue = images.split(1, -3)
    parts = [
        same * red + left * green + right * blue,
        right * red + same * green + left * blue,
        left * red + right * green + same * blue,
    ]
    return torch.cat(parts, -3).clamp(0, 1)


def _blurred(images: Tensor, sigma: Tensor) -> Tensor:
    """Blur by a 3×3 Gaussian of each image's own width."""
    side = torch.exp(-0.5 / sigma**2)
    middle = 1 / (1 + 2 * side)
    padded = F.pad(images, (1, 1, 1, 1), mode="reflect")
    rows = middle * (padded[..., 1:-1, :] + side * (padded[..., :-2, :] + padded[..., 2:, :]))
    return middle * (rows[..., 1:-1] + side * (rows[..., :-2] + rows[..., 2:]))
