"""Build the embedded fashion-shops file from the four official Fashion-MNIST files.

    python tools/build_fashion_shops.py /usr/share/datasets/fashion-mnist

Of every class the first 600 training and the first 200 test photographs are dealt to the four shops in turn, so no
photograph is in two shops and every run gives the same array.
"""

import argparse
import io
import lzma
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from promptfed.data.archives import read_idx
from promptfed.data.dataset import Images
from promptfed.data.shops import CLASSES, SHOPS, TEST, TRAIN

OUT = Path(__file__).parents[1] / "src/promptfed/data/embedded/fashion_shops.npy.xz"


def build(source: Path) -> Images:
    """Return the grey photographs [shop, k, class, 28, 28]: for each shop its training, then its test ones."""
    splits = [deal(*read_split(source, stem), each) for stem, each in (("train", TRAIN), ("t10k", TEST))]
    return np.concatenate(splits, axis=1)


def read_split(source: Path, stem: str) -> tuple[Images, NDArray[np.uint8]]:
    """Return the images and labels of "train" or "t10k" in the folder `source`."""
    return read_idx(source / f"{stem}-images-idx3-ubyte.gz"), read_idx(source / f"{stem}-labels-idx1-ubyte.gz")


def deal(images: Images, labels: NDArray[np.uint8], each: int) -> Images:
    """Deal the first photographs of every class to the shops in turn: [shop, each, class, 28, 28]."""
    picks = [np.flatnonzero(labels == label)[: each * len(SHOPS)] for label in range(len(CLASSES))]
    chosen = np.stack(picks, axis=1).reshape(each, len(SHOPS), len(CLASSES))
    return images[chosen.transpose(1, 0, 2)]


def pack(grey: Images) -> bytes:
    """Return the array as an .npy file, compressed with LZMA."""
    buffer = io.BytesIO()
    np.save(buffer, grey)
    return lzma.compress(buffer.getvalue(), preset=9 | lzma.PRESET_EXTREME)


def main() -> None:
    """Read the arguments and write the file."""
    parser = argparse.ArgumentParser(description="Build the embedded fashion-shops file from Fashion-MNIST.")
    parser.add_argument("source", type=Path, help="the folder with the four idx .gz files")
    parser.add_argument("out", type=Path, nargs="?", default=OUT, help=f"the file to write (default: {OUT})")
    given = parser.parse_args()
    packed = pack(build(given.source))
    given.out.write_bytes(packed)
    print(f"{given.out}: {len(packed):,} bytes")


if __name__ == "__main__":
    main()
