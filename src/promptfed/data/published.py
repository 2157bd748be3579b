"""Published sets of photographs in folders of classes, as their authors lay them out; most are among CoOp's eleven."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from promptfed.core.errors import PromptFedError
from promptfed.core.options import Count, Share, Whole
from promptfed.data.by_hand import folder_with, folders_of
from promptfed.data.dataset import Dataset
from promptfed.data.folder import scan
from promptfed.data.patients import copies_of, together
from promptfed.data.photos import Album, Photo, read_album
from promptfed.data.split import fewer, stratified

# folder -> class, where the folder's name says too little; the words are CoOp's
CALTECH = {
    "Faces": "face",
    "Leopards": "leopard",
    "Motorbikes": "motorbike",
    "airplanes": "airplane",
    "water_lilly": "water lily",
}
NOT_CALTECH = ("BACKGROUND_Google", "Faces_easy")  # no class, and the faces of Faces once more
EUROSAT = {
    "AnnualCrop": "annual crop land",
    "Forest": "forest",
    "HerbaceousVegetation": "herbaceous vegetation land",
    "Highway": "highway or road",
    "Industrial": "industrial buildings",
    "Pasture": "pasture land",
    "PermanentCrop": "permanent crop land",
    "Residential": "residential buildings",
    "River": "river",
    "SeaLake": "sea or lake",
}
CAMERAS = ("amazon", "dslr", "webcam")
SORTS = ("label", "domain")  # of a photograph


@dataclass(frozen=True)
class Published:
    """What every such set takes."""

    name: ClassVar[str]
    size: Count = 224
    limit: Whole = 0  # training images per class and domain; 0: all
    skip_corrupt: bool = False

    @classmethod
    def find(cls, root: Path) -> list[Photo]:
        """Return the photographs below `root`, class by class in the official order; a foreign layout is refused."""
        raise NotImplementedError

    def load(self) -> Dataset:
        """Decode the photographs."""
        return fewer(self._decoded(), self.limit)

    def _decoded(self) -> Dataset:
        (root,) = folders_of(self.name)
        photos = self.find(root)
        classes, domains = (tuple(dict.fromkeys(getattr(photo, kind) for photo in photos)) for kind in SORTS)
        album = Album(self.name, root, photos, classes, domains)
        return read_album(album, self.size, self.skip_corrupt, f"data/{self.name}/parsed/all")


@dataclass(frozen=True)
class Undivided(Published):
    """What sets without official test images take besides."""

    test_fraction: Share = 0.3
    seed: Whole = 0

    def load(self) -> Dataset:
        """Decode the photographs, and set test images of each class and domain aside; no copy of them trains."""
        data = self._decoded()
        test = stratified(data.labels, data.domains, self.test_fraction, self.seed)
        apart = together(test, copies_of(data.images))  # one that trains makes all of its copies train
        return fewer(replace(data, test=apart.astype(np.bool_)), self.limit)


@dataclass(frozen=True)
class Caltech101(Undivided):
    """Caltech-101: 8,242 photographs of 100 kinds of things."""

    name: ClassVar[str] = "caltech101"

    @classmethod
    def find(cls, root: Path) -> list[Photo]:
        """Return the photographs of accordion/*.jpg, airplanes/*.jpg and so on."""
        photos = scan(_holding(cls.name, root, "accordion", "airplanes"))
        kept = [photo for photo in photos if photo.label not in NOT_CALTECH]
        return _told(cls.name, kept, lambda folder: CALTECH.get(folder, _spaced(folder)))


@dataclass(frozen=True)
class EuroSAT(Undivided):
    """EuroSAT: 27,000 pictures from a satellite of ten uses of land, 64 × 64 as they come."""

    name: ClassVar[str] = "eurosat"
    size: Count = 64

    @classmethod
    def find(cls, root: Path) -> list[Photo]:
        """Return the pictures of AnnualCrop/*.jpg, Forest/*.jpg and so on."""
        return _told(cls.name, scan(_holding(cls.name, root, *EUROSAT)), lambda folder: EUROSAT.get(folder, folder))


@dataclass(frozen=True)
class Office31(Undivided):
    """Office-31: 4,110 photographs of 31 kinds of office things from three cameras (amazon, dslr, webcam)."""

    name: ClassVar[str] = "office31"
    test_fraction: Share = 0.2

    @classmethod
    def find(cls, root: Path) -> list[Photo]:
        """Return the photographs of amazon/images/mug/*.jpg and so on; images/ may be missing."""
        top, photos = _holding(cls.name, root, *CAMERAS), []
        for camera in CAMERAS:
            inner = top / camera / "images"
            photos += _told(camera, scan(inner if inner.is_dir() else top / camera), _spaced)
        return photos


@dataclass(frozen=True)
class OxfordPets(Published):
    """Oxford-IIIT Pets: 7,349 photographs of 37 breeds of cats and dogs, with the official test list."""

    name: ClassVar[str] = "oxford-pets"

    @classmethod
    def find(cls, root: Path) -> list[Photo]:
        """Return the photographs images/*.jpg that annotations/trainval.txt and test.txt list, breed by breed."""
        top, rows = _holding(cls.name, root, "images", "annotations"), []
        for line, test in _listed(top / "annotations", "trainval.txt", "Abyssinian_100 1 1 1"):
            stem, number, *_ = [*line.split(), ""]
            if not number.isdecimal():
                raise PromptFedError(f'{top / "annotations"} lists "{line}" without a breed\'s number.')
            breed = _spaced(stem.rpartition("_")[0]).lower()
            rows.append((int(number), Photo(top / "images" / f"{stem}.jpg", test, cls.name, breed)))
        return [photo for _, photo in sorted(rows, key=lambda row: row[0])]


@dataclass(frozen=True)
class Food101(Published):
    """Food-101: 101,000 photographs of 101 dishes, with the official lists or divided into train/ and test/."""

    name: ClassVar[str] = "food101"

    @classmethod
    def find(cls, root: Path) -> list[Photo]:
        """Return images/*/*.jpg as meta/train.txt and test.txt list them, or train/*/*.jpg and test/*/*.jpg."""
        top = folder_with(root, ("images", "meta"))
        if top is None:
            return _halves(cls.name, root, _spaced)
        lines = _listed(top / "meta", "train.txt", "apple_pie/1005649")
        images = [(top / "images" / f"{line}.jpg", test) for line, test in lines]
        return [Photo(path, test, cls.name, _spaced(path.parent.name)) for path, test in images]


@dataclass(frozen=True)
class StanfordCars(Published):
    """Stanford Cars: 16,185 photographs of 196 makes, models and years of cars, in the official train/ and test/."""

    name: ClassVar[str] = "stanford-cars"

    @classmethod
    def find(cls, root: Path) -> list[Photo]:
        """Return the photographs of "train/Audi S4 Sedan 2007/*.jpg" and so on; the year comes first in a name."""
        return _halves(cls.name, root, lambda folder: " ".join(folder.split()[-1:] + folder.split()[:-1]))


ALL: tuple[type[Published], ...] = (Caltech101, EuroSAT, Food101, Office31, OxfordPets, StanfordCars)


def _spaced(folder: str) -> str:
    return folder.replace("_", " ")


def _told(domain: str, photos: list[Photo], tell: Callable[[str], str]) -> list[Photo]:
    """Return the photographs with their domain, and their classes in readable words."""
    return [replace(photo, domain=domain, label=tell(photo.label)) for photo in photos]


def _halves(name: str, root: Path, tell: Callable[[str], str]) -> list[Photo]:
    """Return the photographs in train/ and test/; a folder of the latter that the former lacks is no class."""
    top = _holding(name, root, "train", "test")
    train = scan(top / "train")
    trained = {photo.label for photo in train}
    test = [replace(photo, test=True) for photo in scan(top / "test") if photo.label in trained]
    return _told(name, train + test, tell)


def _holding(name: str, root: Path, *wanted: str) -> Path:
    """Return the folder, `root` or one below it, that holds folders of these names, or say that there is none."""
    if (found := folder_with(root, wanted)) is None:
        shown = f"{wanted[0]}/ and {wanted[1]}/" + (" and so on" if len(wanted) > 2 else "")
        raise PromptFedError(f"{root} holds no {name}: there is no folder with {shown} in it.")
    return found


def _listed(folder: Path, train: str, such_as: str) -> list[tuple[str, bool]]:
    """Return the lines of the lists `train` and test.txt in a folder, and whether they are for testing."""
    found = []
    for file in (train, "test.txt"):
        try:
            lines = [line.strip() for line in (folder / file).read_text(encoding="utf-8").splitlines() if line.strip()]
        except (OSError, ValueError) as problem:
            raise PromptFedError(f"{folder / file} cannot be read as a list such as {such_as}: {problem}.") from problem
        if not lines:
            raise PromptFedError(f"{folder / file} lists nothing; expected lines such as {such_as}.")
        found += [(line, file == "test.txt") for line in lines]
    return found
