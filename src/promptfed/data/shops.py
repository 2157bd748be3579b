"""fashion-shops: real photographs of clothes (from Fashion-MNIST), shown by four shops in four styles.

The package carries the grey 28 × 28 photographs; the styles are applied on loading, in integer arithmetic only, so
that every machine sees the same bytes.
"""

import io
import lzma
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptfed.core.errors import choice
from promptfed.data.dataset import Dataset, Images, Indices

SHOPS = ("studio", "catalogue", "sketch", "street")
CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
TRAIN, TEST = 150, 50  # photographs per shop and class
EMBEDDED = Path(__file__).parent / "embedded" / "fashion_shops.npy.xz"
SIDE = 32

Ints = NDArray[np.int32]


def load_shops(only: str = "") -> Dataset:
    """Return the embedded set: 4 shops (the domains) × 10 classes × (150 train + 50 test) images of 32 × 32.

    With `only`, the name of a class, there are the images of that class alone: one concept as four shops show it.
    """
    if only and only not in CLASSES:
        raise choice("class", only, CLASSES, "data.only")
    grey = np.load(io.BytesIO(lzma.decompress(EMBEDDED.read_bytes())))  # [shop, k, class, 28, 28]
    shops, each, classes = grey.shape[:3]
    flat = grey.reshape(shops, each * classes, 28, 28)
    index = np.arange(shops * each * classes, dtype=np.int64).reshape(shops, -1)
    images = np.concatenate([style(flat[shop], shop, index[shop]) for shop in range(shops)])
    whole = Dataset(
        name="fashion-shops",
        images=images,
        labels=index.reshape(-1) % classes,
        test=(index % (each * classes) >= TRAIN * classes).reshape(-1),
        classes=CLASSES,
        domains=index.reshape(-1) // (each * classes),
        domain_names=SHOPS,
    )
    return _only(whole, only) if only else whole


def _only(whole: Dataset, name: str) -> Dataset:
    rows = whole.labels == CLASSES.index(name)
    return replace(
        whole,
        images=whole.images[rows],
        labels=np.zeros(rows.sum(), np.int64),
        test=whole.test[rows],
        classes=(name,),
        domains=whole.domains[rows],
    )


def style(grey: Images, shop: int, index: Indices) -> Images:
    """Show grey photographs [N, 28, 28] the way `shop` does: [N, 32, 32, 3]. `index` [N] seeds what is random."""
    frame = np.pad(grey, ((0, 0), (2, 2), (2, 2))).astype(np.int32)
    if SHOPS[shop] == "street":
        return _street(frame, index)
    if SHOPS[shop] == "catalogue":
        return _between(frame, paper=(255, 246, 226), ink=(70, 38, 20))
    if SHOPS[shop] == "sketch":
        return _between(_edges(frame), paper=(236, 240, 244), ink=(24, 32, 72))
    return _between(frame, paper=(0, 0, 0), ink=(255, 255, 255))


def _between(amount: Ints, paper: tuple[int, int, int], ink: tuple[int, int, int]) -> Images:
    """Return paper where `amount` [N, H, W] is 0, ink where it is 255, and what lies between elsewhere."""
    shades = np.arange(256)[:, None]
    table = (np.array(paper) * (255 - shades) + np.array(ink) * shades) // 255
    return table.astype(np.uint8)[amount]


def _edges(frame: Ints) -> Ints:
    """Return how strongly brightness changes at each pixel [N, H, W]: the lines a pencil would draw, 0 … 255."""
    wide = np.pad(frame, ((0, 0), (0, 1), (0, 1)))
    down = np.abs(wide[:, 1:, :-1] - frame)
    across = np.abs(wide[:, :-1, 1:] - frame)
    lines: Ints = np.minimum(np.maximum(down + across - 12, 0) * 3 // 2, 255)
    return lines


def _street(frame: Ints, index: Indices) -> Images:
    """Return the clothes [N, H, W], dyed, in front of a textured wall; dye and wall differ from image to image."""
    dye = 128 + (_hash(index[:, None], np.arange(16, 19)) & 127)  # [N, 3]
    light = 72 + (frame * 184 >> 8)
    cloth = light[..., None] * dye[:, None, None, :] >> 8
    cover = np.minimum(frame * 7, 256)[..., None]
    wall = _wall(index)
    return (wall + ((cloth - wall) * cover >> 8)).astype(np.uint8)


def _wall(index: Indices) -> Ints:
    """Return one wall [N, H, W, 3] per image: blocks four pixels wide between two colours, under a fine grain."""
    y, x = np.mgrid[:SIDE, :SIDE]
    grain = _hash(index[:, None, None], 3000 + y * SIDE + x) & 31
    blocks = _hash(index[:, None, None], 1000 + y[::4, ::4] * SIDE + x[::4, ::4]) & 255
    ends = 16 + _hash(index[:, None], np.arange(6)) % 80
    one, two = ends[:, None, None, :3], ends[:, None, None, 3:]
    colours = two + ((one - two) * blocks[..., None] >> 8)
    wall: Ints = colours.repeat(4, axis=1).repeat(4, axis=2) + grain[..., None] - 16
    return wall


def _hash(*parts: NDArray[Any]) -> Ints:
    """Mix whole numbers, broadcast together, into 24 well-scrambled bits."""
    word = np.zeros((), np.uint32)
    for part in parts:
        word = (word ^ part.astype(np.uint32)) * np.uint32(0x9E3779B1)
        word = (word ^ (word >> np.uint32(15))) * np.uint32(0x85EBCA6B)
    return ((word ^ (word >> np.uint32(13))) >> np.uint32(8)).astype(np.int32)
