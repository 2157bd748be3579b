"""CelebA (Liu et al. 2015): faces of people known by number: who is on them, or an attribute such as Smiling.

The second makes every person a natural client, as in LEAF (Caldas et al. 2018): a domain is then a person.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from promptfed.core.errors import PromptFedError, choice
from promptfed.core.options import Count, Share, Whole
from promptfed.data.by_hand import folders_of
from promptfed.data.dataset import Dataset
from promptfed.data.photos import Album, Photo, read_album
from promptfed.data.split import fewer, stratified

IDENTITIES, ATTRIBUTES = "identity_CelebA.txt", "list_attr_celeba.txt"
FOLDERS = ("img_align_celeba", "img_celeba", "images", "Celeb", ".")


@dataclass(frozen=True)
class CelebA:
    """CelebA: the faces of one person, or of those with at least `least` images, by person or by an attribute."""

    name: ClassVar[str] = "celeba"
    identity: Whole = 2820  # the person's number; 0: everyone
    least: Count = 20  # images of a person, if everyone is taken
    people: Whole = 0  # so many of them, drawn by the seed; 0: all
    attribute: str = ""  # such as Smiling: what is told apart, and people are domains; empty: who it is
    part: bool = False  # the copy is a part of the set: people have the images that are there
    size: Count = 64
    test_fraction: Share = 0.2
    limit: Whole = 0  # training images per person, and per value of the attribute; 0: all
    skip_corrupt: bool = False
    seed: Whole = 0

    def load(self) -> Dataset:
        """Decode the faces, and set test images of each person aside."""
        (root,) = folders_of(self.name)
        images = self._chosen(root)
        people = tuple(str(who) for who in sorted(set(images.values())))
        photos = [Photo(path, False, self.name, str(who)) for path, who in images.items()]
        classes, domains = (_words(self.attribute), people) if self.attribute else (people, (self.name,))
        if self.attribute:
            has = read_attribute(root, self.attribute)
            photos = [replace(one, domain=one.label, label=classes[_told(has, one.path)]) for one in photos]
        album = Album(self.name, root, photos, classes, domains)
        kind = f"{self.identity}-{self.least}" + ("-people" if self.attribute else "")
        data = read_album(album, self.size, self.skip_corrupt, f"data/{self.name}/parsed/{kind}")
        test = stratified(data.labels, data.domains, self.test_fraction, self.seed)
        return fewer(replace(data, test=test), self.limit)

    def domains(self) -> tuple[str, ...]:
        """Return the names of the domains without reading any image: the people, if it is not they that are told."""
        if not self.attribute:
            return (self.name,)
        (root,) = folders_of(self.name)
        return tuple(str(who) for who in sorted(set(self._chosen(root).values())))

    def _chosen(self, root: Path) -> dict[Path, int]:
        """Return the images of the people that are wanted, and who is on each."""
        everyone = read_identities(root, self.part)
        counts = Counter(everyone.values())
        chosen = {who for who, count in counts.items() if count >= self.least} if not self.identity else {self.identity}
        if not self.identity and self.people:
            if len(chosen) < self.people:
                raise PromptFedError(
                    f"{root} has {len(chosen)} people with {self.least} images, fewer than data.people={self.people}; "
                    "lower data.least."
                )
            drawn = np.random.default_rng(self.seed).permutation(sorted(chosen))
            chosen = set(drawn[: self.people].tolist())
        if not (images := {path: who for path, who in everyone.items() if who in chosen}):
            wanted = f"identity {self.identity}" if self.identity else f"anyone with {self.least} images"
            raise PromptFedError(f"{root} has no images of {wanted}.")
        if missing := [path.name for path in images if not path.is_file()]:
            raise PromptFedError(
                f"{len(missing)} of {len(images)} listed images are not in {next(iter(images)).parent}, such as "
                f"{missing[0]}; data.part=true takes those that are there."
            )
        return images


def read_identities(root: Path, part: bool = False) -> dict[Path, int]:
    """Return who is on each image of the official list, in its order; of a part, on each image that is there."""
    path = _list(root, IDENTITIES, "the list of who is on which image of celeba")
    try:
        rows = [line.split() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        rows = rows[1:] if rows[:1] == [["image", "identity"]] else rows  # some copies name the columns
        listed = {name: int(who) for name, who in rows}
    except (OSError, ValueError) as problem:
        raise PromptFedError(f"{path} is not a list of lines such as 000001.jpg 2880: {problem}.") from problem
    folder, there = _folder(path, listed)
    return {folder / name: who for name, who in listed.items() if name in there or not part}


def read_attribute(root: Path, wanted: str) -> dict[str, bool]:
    """Return which images of the official list have an attribute."""
    path = _list(root, ATTRIBUTES, f"the list of attributes of celeba, for data.attribute={wanted}")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()[1:]  # the first says how many there are
        names = lines[0].split()
        if wanted not in names:
            raise choice("data.attribute", wanted, names, path.name)
        place = names.index(wanted) + 1
        rows = [line.split() for line in lines[1:] if line.strip()]
        return {row[0]: {"1": True, "-1": False}[row[place]] for row in rows}
    except (IndexError, KeyError, OSError, ValueError) as problem:
        raise PromptFedError(
            f"{path} is not the list of attributes: a number, their names, and lines such as 000001.jpg -1 1 1: "
            f"{type(problem).__name__}: {problem}."
        ) from problem


def _words(attribute: str) -> tuple[str, ...]:
    """Return the names of the classes without an attribute and with it."""
    words = attribute.replace("_", " ").lower()
    return f"face, not {words}", f"face, {words}"


def _told(has: Mapping[str, bool], path: Path) -> bool:
    if path.name not in has:
        raise PromptFedError(f"{ATTRIBUTES} does not list {path.name}.")
    return has[path.name]


def _list(root: Path, name: str, what: str) -> Path:
    if not (found := sorted(root.rglob(name))):
        raise PromptFedError(f"{root} lacks {name}, {what}.")
    return found[0]


def _folder(listing: Path, listed: Mapping[str, int]) -> tuple[Path, set[str]]:
    """Return the folder with listed images, beside the list or beside the folder it is in, and which are there."""
    for folder in (top / name for top in (listing.parent, listing.parent.parent) for name in FOLDERS):
        if folder.is_dir() and (there := listed.keys() & {path.name for path in folder.iterdir()}):
            return folder, there
    raise PromptFedError(
        f'The images of {listing} ("{next(iter(listed), "")}" is the first) are not in a folder beside it, such as '
        f"{FOLDERS[0]}."
    )
