"""Office-Caltech10 (Gong et al. 2012): ten kinds of things as four cameras see them, with FedBN's lists or FedAPT's."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from promptfed.core.errors import PromptFedError
from promptfed.core.options import Count, Whole
from promptfed.data.by_hand import folders_of
from promptfed.data.dataset import Dataset
from promptfed.data.fedbn import Lists, class_name, listed
from promptfed.data.photos import Album, Photo, first, read_album
from promptfed.data.split import stratified

DOMAINS = ("amazon", "caltech", "dslr", "webcam")
CLASSES = (
    "back pack",
    "bike",
    "calculator",
    "headphones",
    "keyboard",
    "laptop computer",
    "monitor",
    "mouse",
    "mug",
    "projector",
)
LISTS = "fedbn_split.json"
SHARES = (0.5, 0.4)  # FedBN's of the shortest training list, for training and validation: 62 and 50 of 125
FEDAPT = (0.2, 1)  # the share of test images in FedAPT's split, and its seed


@dataclass(frozen=True)
class OfficeCaltech10:
    """Office-Caltech10: 10 kinds of office things from four cameras (amazon, caltech, dslr, webcam)."""

    name: ClassVar[str] = "office-caltech10"
    size: Count = 224
    split: Literal["fedbn", "fedapt"] = "fedbn"  # fedapt: a random fifth of each class and camera is for testing
    truncate: bool = True  # as FedBN: equally few training images per camera; of FedBN's split only
    limit: Whole = 0  # training images per class and camera; 0: all
    skip_corrupt: bool = False

    def load(self) -> Dataset:
        """Decode the listed photographs."""
        (root,) = folders_of(self.name)
        folder, lists = lists_folder(root), read_lists(root)
        if self.split == "fedapt":
            photos = divided(folder, lists)
        else:
            photos = listed(folder, lists, SHARES if self.truncate else None)
        album = Album(self.name, root, first(photos, self.limit), CLASSES, DOMAINS)
        kind = "fedapt" if self.split == "fedapt" else "truncated" if self.truncate else "whole"
        return read_album(album, self.size, self.skip_corrupt, f"data/{self.name}/parsed/{kind}-{self.limit}")


def divided(folder: Path, lists: Mapping[str, Lists]) -> list[Photo]:
    """Return all listed photographs as FedAPT divides them: a fifth of each class in each domain is for testing."""
    # sorted: the draw must not depend on the order of FedBN's lists
    found = [(domain, name) for domain, one in lists.items() for name in sorted((*one.train, *one.test))]
    labels = np.array([CLASSES.index(class_name(name)) for _, name in found])
    domains = np.array([DOMAINS.index(domain) for domain, _ in found])
    tested = stratified(labels, domains, *FEDAPT).tolist()
    return [
        Photo(folder / name, test, domain, class_name(name)) for (domain, name), test in zip(found, tested, strict=True)
    ]


def lists_folder(root: Path) -> Path:
    """Return the folder that holds the lists and the domains: `root`, or the one folder in it that does."""
    found = [*root.glob(LISTS), *sorted(root.glob(f"*/{LISTS}"))]
    if not found:
        raise PromptFedError(f"{root} lacks {LISTS}, the lists of office-caltech10; it needs domain/class/*.jpg too.")
    return found[0].parent


def read_lists(root: Path) -> dict[str, Lists]:
    """Read the training and test lists of the four domains; a foreign layout is refused."""
    path = lists_folder(root) / LISTS
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        lists = {domain: Lists(*(_names(found[domain][part]) for part in ("train", "test"))) for domain in DOMAINS}
    except (KeyError, OSError, TypeError, ValueError) as problem:
        kind = type(problem).__name__
        raise PromptFedError(
            f'{path} is not a table of lists {{"amazon": {{"train": […], "test": […]}}, …}}: {kind}: {problem}.'
        ) from problem
    for name in (name for one in lists.values() for name in (*one.train, *one.test)):
        if class_name(name) not in CLASSES:
            raise PromptFedError(f"{path} lists {name}, which is in none of the ten classes.")
    return lists


def _names(values: object) -> list[str]:
    """Return a list of paths, or refuse what is none."""
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError("a list of paths is missing")
    return values
