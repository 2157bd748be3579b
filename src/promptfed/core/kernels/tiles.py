"""How the matrix products of `conv_kernels.py` are cut, by their sizes."""

from dataclasses import dataclass

from torch import Tensor

FEW = 16  # channels: fewer do not fill a side of a product on tensor cores
WIDEST = 64  # an image's row that is a part of a tile


@dataclass(frozen=True)
class Tile:
    """How a matrix product is cut: rows and numbers that a program does at a time, and how many threads do it."""

    rows: int
    numbers: int
    warps: int = 4
    stages: int = 2


def forward(weight: Tensor, pool: int) -> Tile:
    """Return the tile of the convolution itself."""
    if weight.shape[2] < FEW:
        return Tile(64 if pool > 1 else 128, 16)
    return Tile(32 if pool > 1 else 128, 32, stages=3)


def weights(weight: Tensor) -> tuple[Tile, int]:
    """Return the tile of the weights' gradient, and how many pixels of a client a program adds up."""
    return Tile(32, 32 if weight.shape[2] < FEW else 128, stages=3), 1024


def along_rows(weight: Tensor, size: tuple[int, int]) -> bool:
    """Say whether the gradient of images of this size is better taken with all columns of a filter at a time."""
    return weight.shape[2] < FEW and size[1] <= WIDEST


def rows(weight: Tensor) -> Tile:
    """Return the tile of the images' gradient, if it is taken so."""
    return Tile(128, 32, stages=3)


def images(weight: Tensor) -> Tile:
    """Return the tile of the images' gradient otherwise."""
    return Tile(128, 32, stages=3)
