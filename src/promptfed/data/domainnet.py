"""DomainNet (Peng et al. 2019): everyday things drawn, painted and photographed in six domains."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np

from promptfed.core.errors import PromptFedError
from promptfed.core.options import Count, Range, Whole
from promptfed.data.by_hand import folders_of
from promptfed.data.dataset import Dataset
from promptfed.data.fedbn import Lists, class_name, listed
from promptfed.data.photos import Album, first, read_album

DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
TEN = ("bird", "feather", "headphones", "ice cream", "teapot", "tiger", "whale", "windmill", "wine glass", "zebra")

Half = Annotated[float, Range(above=0, most=0.5)]  # with more, training and validation images would overlap
Numbered = dict[str, int]  # the listed paths with their class numbers, in order


@dataclass(frozen=True)
class DomainNet:
    """DomainNet: 345 kinds of things, or ten of them, drawn, painted and photographed in six domains."""

    name: ClassVar[str] = "domainnet"
    classes: Literal["all", "ten"] = "ten"  # ten: those of FedBN
    size: Count = 224
    truncate: bool = True  # as FedBN: equally few training images per domain
    share: Half = 0.05  # of the shortest training list, once for training and once for validation, if truncated
    validate: bool = True  # if not truncated, keep the last fifth of every training list; false: train on all of it
    shuffle: bool = True  # the official lists are in order of class: their first images are all of one class
    seed: Whole = 0  # of the shuffled order
    limit: Whole = 0  # training images per class and domain; 0: all
    skip_corrupt: bool = False

    def load(self) -> Dataset:
        """Decode the listed images."""
        if self.truncate and not self.validate:
            raise PromptFedError("data.validate=false is for whole training lists; set data.truncate=false with it.")
        (root,) = folders_of(self.name)
        found = read_lists(root)
        names = class_names(root, found)
        chosen = names if self.classes == "all" else TEN
        wanted, lists = set(chosen), {}
        for domain, (train, test) in found.items():
            own = [path for path in train if class_name(path) in wanted]
            if self.shuffle:
                order = np.random.default_rng([self.seed, DOMAINS.index(domain)]).permutation(len(own))
                own = [own[place] for place in order]
            lists[domain] = Lists(own, [path for path in test if class_name(path) in wanted])
        photos = listed(root, lists, (self.share, self.share) if self.truncate else None)
        if not self.validate:
            photos = [replace(photo, val=False) for photo in photos]
        album = Album(self.name, root, first(photos, self.limit), chosen, DOMAINS)
        return read_album(album, self.size, self.skip_corrupt, f"data/{self.name}/parsed/{self._variant()}")

    def _variant(self) -> str:
        """Return the options that choose images, in one word."""
        share = self.share if self.truncate else "whole" if self.validate else "all"
        return f"{self.classes}-{share}-{self.seed if self.shuffle else 'listed'}-{self.limit}"


def read_lists(root: Path) -> dict[str, tuple[Numbered, Numbered]]:
    """Read the official training and test list of every domain, in `root` or in one folder below it."""
    return {
        domain: (_read_list(root, f"{domain}_train.txt"), _read_list(root, f"{domain}_test.txt")) for domain in DOMAINS
    }


def check(root: Path) -> None:
    """Refuse a folder whose lists are missing or not the official kind."""
    class_names(root, read_lists(root))


def class_names(root: Path, found: Mapping[str, tuple[Numbered, Numbered]]) -> tuple[str, ...]:
    """Return the names of classes 0, 1, …, which all lists must number alike."""
    named: dict[int, str] = {}
    for path, number in (pair for lists in found.values() for one in lists for pair in one.items()):
        if named.setdefault(number, class_name(path)) != class_name(path):
            raise PromptFedError(
                f'The lists in {root} call class {number} both "{named[number]}" and "{class_name(path)}".'
            )
    if sorted(named) != list(range(len(named))) or len(set(named.values())) != len(named):
        raise PromptFedError(f"The lists in {root} do not number their classes 0, 1, … with one name each.")
    return tuple(named[number] for number in range(len(named)))


def _read_list(root: Path, file: str) -> Numbered:
    """Read one list of lines such as "clipart/bird/clipart_030_000001.jpg 29"."""
    found = [*root.glob(file), *sorted(root.glob(f"*/{file}"))]
    if not found:
        raise PromptFedError(f"{root} lacks {file}, one of the official lists of domainnet.")
    try:
        pairs = [line.rsplit(maxsplit=1) for line in found[0].read_text(encoding="utf-8").splitlines() if line.strip()]
        return {path: int(number) for path, number in pairs}
    except (OSError, ValueError) as problem:
        raise PromptFedError(
            f'{found[0]} is not a list of lines "domain/class/file.jpg NUMBER": {problem}.'
        ) from problem
