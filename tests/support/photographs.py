"""Small photographs on disk: sites of classes, or classes alone."""

from collections.abc import Iterable
from pathlib import Path

from PIL import Image


def put(path: Path, level: int = 0) -> Path:
    """Write one image in a colour of its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 6), (level % 256, 40, level // 256)).save(path)
    return path


def put_sites(root: Path, sites: Iterable[str], classes: Iterable[str] = ("cat", "dog"), each: int = 4) -> Path:
    """Write `each` photographs per class and site, and return `root`; the site "" is no folder of its own."""
    names = [(site, kind, n) for site in sites for kind in classes for n in range(each)]
    for level, (site, kind, n) in enumerate(names):
        put(root / site / kind / f"{n}.png", level)
    return root
