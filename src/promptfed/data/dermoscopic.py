"""Dermoscopic-FL (Chen et al. 2021): three kinds of skin lesions at up to four sites, with PRR-FL's lists.

Sites A, B and C (vidir_modern, vidir_molemax and rosendahl) are parts of HAM10000, site D is MSK of the ISIC archive.
"""

import csv
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from promptfed.core.errors import PromptFedError
from promptfed.core.options import Count, Whole
from promptfed.data.by_hand import folders_of
from promptfed.data.dataset import Dataset
from promptfed.data.download import home
from promptfed.data.photos import SUFFIXES, Album, Photo, first, read_album

SITES = {"A": "vidir_modern", "B": "vidir_molemax", "C": "rosendahl", "D": "msk"}
CLASSES = ("nevus", "benign keratosis", "melanoma")  # numbers 0, 1, 2 of the column "label"
SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class DermoscopicFL:
    """Dermoscopic-FL: nevi, benign keratoses and melanomas at three sites of HAM10000, and a fourth, MSK, if added."""

    name: ClassVar[str] = "dermoscopic-fl"
    sites: str = "ABC"  # which sites take part, some of ABCD
    size: Count = 224
    limit: Whole = 0  # training images per class and site; 0: all
    skip_corrupt: bool = False

    def __post_init__(self) -> None:
        if not self.sites or self.sites != "".join(site for site in SITES if site in self.sites):
            raise PromptFedError(f'data.sites must be some of the letters ABCD, in order, not "{self.sites}".')

    def load(self) -> Dataset:
        """Decode the listed images of the chosen sites."""
        roots = folders_of(self.name)
        images, photos = find_images(roots), []
        for site in self.sites:
            for split in SPLITS:
                photos += _photos(find_list(roots, site, split), site, split, images)
        names = tuple(SITES[site] for site in self.sites)
        album = Album(self.name, home() / "data" / self.name, first(photos, self.limit), CLASSES, names)
        cache = f"data/{self.name}/parsed/{self.sites}-{self.limit}"
        return read_album(album, self.size, self.skip_corrupt, cache)


def find_images(roots: Sequence[Path]) -> dict[str, Path]:
    """Return every image below the folders by its id, the file's name without its ending."""
    found: dict[str, Path] = {}
    for root in roots:
        for top, folders, files in os.walk(root):
            folders.sort()
            for file in sorted(files):
                path = Path(top) / file
                if path.suffix.lower() in SUFFIXES:
                    found.setdefault(path.stem, path)
    return found


def find_list(roots: Sequence[Path], site: str, split: str) -> Path:
    """Return the list of one site and split, wherever below the folders it lies."""
    file = f"{split}_client{site}.csv"
    for root in roots:
        if found := sorted(root.rglob(file)):
            return found[0]
    raise PromptFedError(
        f"There is no {file} in {', '.join(map(str, roots))}; "
        "`promptfed data add dermoscopic-fl PATH` takes the folder or zip of the PRR-FL lists."
    )


def check(root: Path) -> None:
    """Refuse a folder with neither lists nor images."""
    if not any(root.rglob("*_client[ABCD].csv")) and not find_images([root]):
        raise PromptFedError(f"{root} holds neither lists such as train_clientA.csv nor images.")


def _photos(path: Path, site: str, split: str, images: dict[str, Path]) -> list[Photo]:
    """Read the columns image_id and label of one list."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = [(row["image_id"], CLASSES[int(row["label"])]) for row in csv.DictReader(file)]
    except (csv.Error, IndexError, KeyError, OSError, TypeError, ValueError) as problem:
        kind = type(problem).__name__
        raise PromptFedError(
            f"{path} is not a list with columns image_id and label (0, 1 or 2): {kind}: {problem}."
        ) from problem
    missing = [name for name, _ in rows if name not in images]
    if missing:
        raise PromptFedError(
            f"{len(missing)} of {len(rows)} images of {path.name} are not here, such as {missing[0]}; add them with "
            f"`promptfed data add dermoscopic-fl PATH`, or leave site {site} out of data.sites."
        )
    return [Photo(images[name], split == "test", SITES[site], label, val=split == "valid") for name, label in rows]
