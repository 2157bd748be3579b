"""A user's own photographs, wherever they are listed: as an album, and as a data set with test images."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from promptfed.core.errors import PromptFedError
from promptfed.data.dataset import Dataset
from promptfed.data.photos import OWN, Album, Photo, read_album
from promptfed.data.split import stratified


class OwnPhotos(Protocol):
    """A data set of a user's own photographs: they can be listed before any of them is read."""

    @property
    def test_fraction(self) -> float:
        """The share of test images, where the list has none."""

    @property
    def seed(self) -> int:
        """What chooses them."""

    def album(self) -> Album:
        """Return the list."""


def own_album(name: str, root: Path, photos: Sequence[Photo]) -> Album:
    """Return a user's photographs, listed in `root`, as an album; classes and domains are in order of name."""
    _check_patients(photos, root)
    classes, domains = ({getattr(photo, kind) for photo in photos} for kind in ("label", "domain"))
    return Album(name, root, photos, tuple(sorted(classes)), tuple(sorted(domains)))


def _check_patients(photos: Sequence[Photo], root: Path) -> None:
    """Refuse splits that a patient is on both sides of."""
    splits: dict[str, set[tuple[bool, bool]]] = defaultdict(set)
    for photo in photos:
        splits[photo.patient].add((photo.test, photo.val))
    splits.pop("", None)
    if torn := sum(len(some) > 1 for some in splits.values()):
        raise PromptFedError(
            f"In {root} {torn} of {len(splits)} patients have images in more than one split, such as training and "
            "testing; put all images of a patient into one."
        )


def read_own(album: Album, size: int, skip_corrupt: bool, test_fraction: float, seed: int) -> Dataset:
    """Return the photographs at `size` × `size`, with test images set aside unless the list names some."""
    data = read_album(album, size, skip_corrupt, OWN)
    if any(photo.test for photo in album.photos) and not data.test.any():
        raise PromptFedError(
            f"No test image of {album.root} can be read; without them training images would be tested on."
        )
    data = replace(data, domain_names=tuple(domain or album.name for domain in album.domains))
    if data.test.any():
        return data
    test = stratified(data.labels, data.domains, test_fraction, seed, data.patients)
    if data.patients is not None and test_fraction and not test.any():
        raise PromptFedError(
            f"No patient of {album.root} can be set aside for testing: with data.test_fraction={test_fraction:g} "
            "a class at a site needs images of two patients, and of more where they have many each; add some, or raise "
            "the fraction."
        )
    return replace(data, test=test)
