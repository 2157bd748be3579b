"""A look at a data set before a run: how many images of which class each site has, and what is wrong with them."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from promptfed.core import options, progress
from promptfed.core.errors import PromptFedError
from promptfed.data.dataset import Dataset
from promptfed.data.datasets import CsvFile, Folder, NamedDataset, find_dataset
from promptfed.data.facts import list_photos
from promptfed.data.photos import Photo, open_rgb
from promptfed.data.split import stratified

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class Look:
    """One image: where it belongs, its name for people, its height and width, and the hash of its pixels."""

    site: str
    label: str
    split: str
    name: str
    sides: tuple[int, int]
    digest: str


@dataclass(frozen=True)
class DatasetInspection:
    """All images of a data set that can be read, and the files that cannot, with the reason."""

    name: str
    classes: tuple[str, ...]
    sites: tuple[str, ...]
    images: tuple[Look, ...]
    broken: Mapping[str, str]

    @property
    def sides(self) -> Counter[tuple[int, int]]:
        """The heights and widths with the number of images that have them."""
        return Counter(image.sides for image in self.images)

    def alike(self, key: str) -> list[tuple[Look, ...]]:
        """Return the groups of equal images that differ in `key`: site, label or split."""
        groups: dict[str, list[Look]] = defaultdict(list)
        for image in self.images:
            groups[image.digest].append(image)
        return [tuple(some) for some in groups.values() if len({getattr(one, key) for one in some}) > 1]


def inspect(name: str, **chosen: object) -> DatasetInspection:
    """Look at every image of a data set; broken files of a user's own photographs are reported, not refused."""
    found = find_dataset(name, chosen)
    photos = list_photos(found)
    if photos is not None and isinstance(found, Folder | CsvFile):
        return _inspect_files(found, photos)
    return _inspect_arrays(_forgiving(found).load())


def _forgiving(found: NamedDataset) -> NamedDataset:
    """Return the data set with unreadable files left out, if it has that option."""
    kind = type(found)
    return kind(**{**vars(found), "skip_corrupt": True}) if "skip_corrupt" in options.hints(kind) else found


def _inspect_arrays(data: Dataset) -> DatasetInspection:
    """Look at images that are read already."""
    return DatasetInspection(data.name, data.classes, data.domain_names, tuple(_looks(data)), {})


def _looks(data: Dataset) -> Iterator[Look]:
    val = np.zeros(len(data), np.bool_) if data.val is None else data.val
    with progress.bar(f"inspecting {data.name}", len(data)) as advance:
        for row, pixels in enumerate(data.images):
            split = "test" if data.test[row] else "val" if val[row] else "train"
            site, label = data.domain_names[data.domains[row]], data.classes[data.labels[row]]
            yield Look(site, label, split, f"image {row}", data.sides, _digest(pixels.tobytes(), data.sides))
            advance(1, None)


def _inspect_files(found: Folder | CsvFile, photos: Sequence[Photo]) -> DatasetInspection:
    """Look at listed files; where the list has no test images, the split is the one that a run would make."""
    root = Path(found.path).expanduser()
    name = root.resolve().name if isinstance(found, Folder) else root.stem
    seen = list(_opened(name, photos))
    good = [photo for photo, look in zip(photos, seen, strict=True) if not isinstance(look, str)]
    broken = {str(photo.path): look for photo, look in zip(photos, seen, strict=True) if isinstance(look, str)}
    if not good:
        raise PromptFedError(f"None of the {len(photos)} images of {root} can be read.")
    classes = tuple(sorted({photo.label for photo in photos}))
    sites = tuple(sorted({photo.domain for photo in photos}))
    if not any(photo.test for photo in photos):
        labels = np.array([classes.index(photo.label) for photo in good])
        domains = np.array([sites.index(photo.domain) for photo in good])
        test = stratified(labels, domains, found.test_fraction, found.seed).tolist()
        good = [replace(photo, test=chosen) for photo, chosen in zip(good, test, strict=True)]
    looks = (look for look in seen if not isinstance(look, str))
    images = [
        Look(photo.domain or name, photo.label, _split(photo), str(photo.path), *look)
        for photo, look in zip(good, looks, strict=True)
    ]
    return DatasetInspection(name, classes, tuple(site or name for site in sites), tuple(images), broken)


def _split(photo: Photo) -> str:
    return "test" if photo.test else "val" if photo.val else "train"


def _opened(name: str, photos: Sequence[Photo]) -> Iterator[tuple[tuple[int, int], str] | str]:
    """Yield the sides and the digest of every photograph in order, or why it cannot be read."""
    with ThreadPoolExecutor() as pool, progress.bar(f"inspecting {name}", len(photos)) as advance:
        for look in pool.map(_open, photos):
            advance(1, None)
            yield look


def _open(photo: Photo) -> tuple[tuple[int, int], str] | str:
    try:
        image = open_rgb(photo.path)
    except Exception as problem:  # damaged files make Pillow raise nearly anything
        return str(problem).replace("\n", " ") or type(problem).__name__
    sides = (image.height, image.width)
    return sides, _digest(image.tobytes(), sides)


def _digest(pixels: bytes, sides: tuple[int, int]) -> str:
    return hashlib.sha256(f"{sides}".encode() + pixels).hexdigest()
