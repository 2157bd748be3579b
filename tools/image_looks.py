"""Images compared by what they look like, so that one is found again at another size or quality."""

import hashlib
import io
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIMILAR = 3  # bits of 64
Hashes = NDArray[np.uint64]


class Look(NamedTuple):
    """What an image looks like: the difference hash, and the checksum of its 32 × 32 thumbnail."""

    difference: int
    thumbnail: str


def look(content: bytes) -> Look:
    """Return what an image file looks like."""
    with Image.open(io.BytesIO(content)) as image:
        return look_of(image.convert("RGB"))


def look_of(image: Image.Image) -> Look:
    """Return what an image looks like."""
    grey = np.asarray(image.convert("L").resize((9, 8)))
    difference = np.packbits(grey[:, 1:] > grey[:, :-1]).tobytes()
    return Look(int.from_bytes(difference), hashlib.sha256(image.resize((32, 32)).tobytes()).hexdigest())


def near(looks: Iterable[Look], others: Hashes) -> NDArray[np.bool_]:
    """Return which of the images have difference hashes close to one of the others."""
    hashes = np.array([one.difference for one in looks], np.uint64)
    if not len(hashes) or not len(others):
        return np.zeros(len(hashes), np.bool_)
    parts = np.split(hashes, range(256, len(hashes), 256))
    return np.concatenate([np.bitwise_count(part[:, None] ^ others).min(1) <= SIMILAR for part in parts])


def fingerprint(looks: Iterable[Look]) -> str:
    """Return one checksum for the images of a set, whatever their order."""
    return hashlib.sha256("\n".join(sorted(one.thumbnail for one in looks)).encode()).hexdigest()


def looks_in(file: Path) -> list[Look]:
    """Return what the images in a zip look like."""
    with zipfile.ZipFile(file) as content:
        names = [name for name in content.namelist() if name.lower().endswith((".jpg", ".jpeg", ".png"))]
        return [look(content.read(name)) for name in names]
