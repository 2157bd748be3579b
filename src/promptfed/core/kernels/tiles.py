"""How the matrix products of `conv_kernels.py` are cut, by their sizes."""

from dataclasses import dataclass

from torch import Tensor

FEW = 16  # channels: fewer do not fill a side of a product on tensor cores
WIDEST = 64  # an image's row that is a part of a tile


@dataclass(frozen=True)
class Cut:
    """How a matrix product is cut: rows and numbers that a program does at a time, and how many threads do it."""

    rows: int
    numbers: int
    warps: int = 4
    stages: int = 2


def forward(weight: Tensor, pool: int) -> Cut:
    """Return the tile of the convolution itself."""
    if weight.shape[2] < FEW:
        return Cut(64 if pool > 1 else 128, 16)
    return Cut(32 if pool > 1 else 128, 32, stages=3)


def weights(weight: Tensor) -> tuple[Cut, int]:
    """Return the tile of the weights' gradient, and how many pixels of a client a program adds up."""
    return Cut(32, 32 if weight.shape[2] < FEW else 128, stages=3), 1024


def along_rows(weight: Tensor, size: tuple[int, int]) -> bool:
    """Say whether the gradient of images of this size is better taken with all columns of a filter at a time."""
    return weight.shape[2] < FEW and size[1] <= WIDEST


def rows(weight: Tensor) -> Cut:
    """Return the tile of the images' gradient, if it is taken so."""
    return Cut(128, 32, stages=3)


def images(weight: Tensor) -> Cut:
    """Return the tile of the images' gradient otherwise."""
    return Cut(128, 32, stages=3)
