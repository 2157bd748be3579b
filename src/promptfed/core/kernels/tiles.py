"""How the matrix products of `conv_kernels.py` are cut, by their sizes: each as it was fastest on an H200."""

from dataclasses import dataclass

from torch import Tensor

FEW = 16  # channels: fewer do not fill a side of a product on tensor cores
WIDEST = 64  # an image's row that is a part of a tile
BUSY = 264  # programs that keep a large GPU busy: two for each of its processors
ALIGNED = 16  # floats of a patch: rows that begin at multiples of that are written four numbers at a time


@dataclass(frozen=True)
class Cut:
    """How a matrix product is cut: rows and numbers that a program does at a time, and how many threads do it."""

    rows: int
    numbers: int
    warps: int = 4
    stages: int = 2


ROWS = Cut(128, 32)  # of the images' gradient, if `along_rows` is true
IMAGES = Cut(128, 32, stages=3)  # of the images' gradient otherwise


def has_few_channels(weight: Tensor) -> bool:
    """Say whether a convolution is of such images as have colours, not of maps."""
    return weight.shape[2] < FEW


def forward(x: Tensor, weight: Tensor, pool: int) -> Cut:
    """Return the tile of the convolution itself."""
    if has_few_channels(weight):
        return Cut(64, 16 if pool > 1 else 32)
    high, wide = ((side - weight.shape[-1] + 1) // pool for side in x.shape[3:])
    return Cut(64, 32) if len(x) * x.shape[1] * high * wide >= 64 * BUSY else Cut(32, 32, stages=3)


def weights(weight: Tensor) -> tuple[Cut, int]:
    """Return the tile of the gradient of weights of few channels, and how many pixels of a client a program adds up."""
    return (Cut(64, 32), 1800) if weight[0, 0].numel() <= 32 else (Cut(32, 128, stages=1), 896)


def along_rows(weight: Tensor, size: tuple[int, int]) -> bool:
    """Say whether the gradient of images of this size is better taken with all columns of a filter at a time."""
    return has_few_channels(weight) and size[1] <= WIDEST
