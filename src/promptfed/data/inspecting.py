"""A look at a data set before a run: how many images of which class each site has, and what is wrong with them."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from promptfed.core import options, progress
from promptfed.core.errors import PromptFedError
from promptfed.data.dataset import Dataset
from promptfed.data.datasets import NamedDataset, find_dataset
from promptfed.data.facts import own_photos
from promptfed.data.own_photos import OwnPhotos
from promptfed.data.photos import Album, Photo
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
    patients: int = 0  # whose images these are; 0: it is not known
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # what else a list says of every image

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
    if (own := own_photos(found)) is not None:
        return _inspect_album(own, own.album())
    return _inspect_arrays(_forgiving(found).load())


def _forgiving(found: NamedDataset) -> NamedDataset:
    """Return the data set with unreadable files left out, if it has that option."""
    kind = type(found)
    return kind(**{**vars(found), "skip_corrupt": True}) if "skip_corrupt" in options.hints(kind) else found


def _inspect_arrays(data: Dataset) -> DatasetInspection:
    """Look at images that are read already."""
    looks, patients = tuple(_looks(data)), 0 if data.patients is None else len(set(data.patients.tolist()))
    return DatasetInspection(data.name, data.classes, data.domain_names, looks, {}, patients, data.columns)


def _looks(data: Dataset) -> Iterator[Look]:
    val = np.zeros(len(data), np.bool_) if data.val is None else data.val
    with progress.bar(f"inspecting {data.name}", len(data)) as advance:
        for row, pixels in enumerate(data.images):
            split = "test" if data.test[row] else "val" if val[row] else "train"
            site, label = data.domain_names[data.domains[row]], data.classes[data.labels[row]]
            yield Look(site, label, split, f"image {row}", data.sides, _digest(pixels.tobytes(), data.sides))
            advance(1, None)


def _inspect_album(own: OwnPhotos, album: Album) -> DatasetInspection:
    """Look at listed images; where the list has no test images, the split is the one that a run would make."""
    seen = list(zip(album.photos, _opened(album), strict=True))
    good = [photo for photo, look in seen if not isinstance(look, str)]
    if not good:
        first = next((look for _, look in seen if isinstance(look, str)), "there are none")
        raise PromptFedError(f"None of the {len(seen)} images of {album.root} can be read: {first.rstrip('.')}.")
    data = album.dataset(np.zeros((len(good), 1, 1, 3), np.uint8), [not isinstance(look, str) for _, look in seen])
    if not any(photo.test for photo in album.photos):
        test = stratified(data.labels, data.domains, own.test_fraction, own.seed, data.patients).tolist()
        good = [replace(photo, test=chosen) for photo, chosen in zip(good, test, strict=True)]
    looks = (look for _, look in seen if not isinstance(look, str))
    images = tuple(
        Look(photo.domain or album.name, photo.label, _split(photo), photo.shown, *look)
        for photo, look in zip(good, looks, strict=True)
    )
    return DatasetInspection(
        album.name,
        album.classes,
        tuple(site or album.name for site in album.domains),
        images,
        {photo.shown: look for photo, look in seen if isinstance(look, str)},
        len({photo.patient for photo in good if photo.patient}),
        data.columns,
    )


def _split(photo: Photo) -> str:
    return "test" if photo.test else "val" if photo.val else "train"


def _opened(album: Album) -> Iterator[tuple[tuple[int, int], str] | str]:
    """Yield the sides and the digest of every photograph in order, or why it cannot be read."""
    count, look_at = len(album.photos), partial(_open, album)
    with album.around(), ThreadPoolExecutor() as pool, progress.bar(f"inspecting {album.name}", count) as advance:
        for look in pool.map(look_at, album.photos):
            advance(1, None)
            yield look


def _open(album: Album, photo: Photo) -> tuple[tuple[int, int], str] | str:
    try:
        image = album.read(photo)
    except Exception as problem:  # damaged files make Pillow raise nearly anything
        return str(problem).replace("\n", " ") or type(problem).__name__
    sides = (image.height, image.width)
    return sides, _digest(image.tobytes(), sides)


def _digest(pixels: bytes, sides: tuple[int, int]) -> str:
    return hashlib.sha256(f"{sides}".encode() + pixels).hexdigest()
