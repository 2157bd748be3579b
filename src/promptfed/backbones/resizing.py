"""Images at the size that a pretrained network wants."""

import torch.nn.functional as F  # noqa: N812
from torch import Tensor


def resized(x: Tensor, sides: tuple[int, int]) -> Tensor:
    """Return images x [..., B, 3, H, W] at these sides, by bicubic interpolation; what it shrinks it smooths first."""
    if x.shape[-2:] == sides:
        return x
    shrinks = sides[0] < x.shape[-2] or sides[1] < x.shape[-1]
    folded = F.interpolate(x.flatten(0, -4), sides, mode="bicubic", antialias=shrinks)
    return folded.view(*x.shape[:-2], *sides)
