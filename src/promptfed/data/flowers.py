"""Flowers-102 (Nilsback, Zisserman 2008): photographs of 102 kinds of flowers, or of one kind alone."""

import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from promptfed.core.errors import PromptFedError, choice
from promptfed.core.options import Count, Share, Whole
from promptfed.data.by_hand import folders_of
from promptfed.data.dataset import Dataset
from promptfed.data.photos import SUFFIXES, Album, Photo, read_album
from promptfed.data.split import fewer, stratified

CLASSES = (
    "pink primrose",
    "hard-leaved pocket orchid",
    "canterbury bells",
    "sweet pea",
    "english marigold",
    "tiger lily",
    "moon orchid",
    "bird of paradise",
    "monkshood",
    "globe thistle",
    "snapdragon",
    "colt's foot",
    "king protea",
    "spear thistle",
    "yellow iris",
    "globe-flower",
    "purple coneflower",
    "peruvian lily",
    "balloon flower",
    "giant white arum lily",
    "fire lily",
    "pincushion flower",
    "fritillary",
    "red ginger",
    "grape hyacinth",
    "corn poppy",
    "prince of wales feathers",
    "stemless gentian",
    "artichoke",
    "sweet william",
    "carnation",
    "garden phlox",
    "love in the mist",
    "mexican aster",
    "alpine sea holly",
    "ruby-lipped cattleya",
    "cape flower",
    "great masterwort",
    "siam tulip",
    "lenten rose",
    "barbeton daisy",
    "daffodil",
    "sword lily",
    "poinsettia",
    "bolero deep blue",
    "wallflower",
    "marigold",
    "buttercup",
    "oxeye daisy",
    "common dandelion",
    "petunia",
    "wild pansy",
    "primula",
    "sunflower",
    "pelargonium",
    "bishop of llandaff",
    "gaura",
    "geranium",
    "orange dahlia",
    "pink-yellow dahlia",
    "cautleya spicata",
    "japanese anemone",
    "black-eyed susan",
    "silverbush",
    "californian poppy",
    "osteospermum",
    "spring crocus",
    "bearded iris",
    "windflower",
    "tree poppy",
    "gazania",
    "azalea",
    "water lily",
    "rose",
    "thorn apple",
    "morning glory",
    "passion flower",
    "lotus lotus",
    "toad lily",
    "anthurium",
    "frangipani",
    "clematis",
    "hibiscus",
    "columbine",
    "desert-rose",
    "tree mallow",
    "magnolia",
    "cyclamen",
    "watercress",
    "canna lily",
    "hippeastrum",
    "bee balm",
    "ball moss",
    "foxglove",
    "bougainvillea",
    "camellia",
    "mallow",
    "mexican petunia",
    "bromelia",
    "blanket flower",
    "trumpet creeper",
    "blackberry lily",
)
LABELS, LISTS = "imagelabels.mat", "setid.mat"
TRAIN, VAL, TEST = "trnid", "valid", "tstid"  # the names of the lists in setid.mat


@dataclass(frozen=True)
class Flowers102:
    """Flowers-102: 8,189 photographs of 102 kinds of flowers; `only` names one kind, such as clematis (112 images)."""

    name: ClassVar[str] = "flowers102"
    only: str = ""  # the name of one kind; empty: all of them
    size: Count = 64
    split: Literal["random", "official"] = "random"  # official: 10 training and 10 validation images of each kind
    test_fraction: Share = 0.2  # of a random split
    limit: Whole = 0  # training images per kind; 0: all
    skip_corrupt: bool = False
    seed: Whole = 0

    def __post_init__(self) -> None:
        if self.only and self.only not in CLASSES:
            raise choice("kind of flower", self.only, CLASSES, "data.only")

    def load(self) -> Dataset:
        """Decode the photographs, and set test images aside."""
        (root,) = folders_of(self.name)
        photos = [photo for photo in find_photos(root) if self.only in ("", photo.label)]
        if not photos:
            raise PromptFedError(f'{root} holds no photograph of "{self.only}".')
        if self.split == "official":
            photos = _listed(root, photos)
        kinds = tuple(name for name in CLASSES if name in {photo.label for photo in photos})
        album = Album(self.name, root, photos, kinds, (self.name,))
        cache = f"data/{self.name}/parsed/{self.split}-{self.only or 'all'}"
        data = read_album(album, self.size, self.skip_corrupt, cache)
        if self.split == "random":
            data = replace(data, test=stratified(data.labels, data.domains, self.test_fraction, self.seed))
        return fewer(data, self.limit)


def find_photos(root: Path) -> list[Photo]:
    """Return every photograph of the official files, or of folders named by a kind's number (from 001) or its name."""
    marked = sorted(root.rglob(LABELS))
    if marked:
        labels = read_mat(marked[0]).get("labels")
        files = sorted(marked[0].parent.rglob("image_*.jpg"))
        if labels is None or len(labels) != len(files) or labels.min() < 1 or labels.max() > len(CLASSES):
            raise PromptFedError(f"{marked[0]} does not label the {len(files)} photographs image_*.jpg beside it.")
        return [_photo(path, int(label)) for path, label in zip(files, labels, strict=True)]
    found = []
    for path in sorted(root.rglob("*")):
        hidden = any(part.startswith((".", "__")) for part in path.relative_to(root).parts)
        if not hidden and path.suffix.lower() in SUFFIXES and (number := _number(path.parent.name)):
            found.append(_photo(path, number))
    if not found:
        raise PromptFedError(
            f"{root} holds no Flowers-102: neither {LABELS} nor folders of images such as 082 or clematis."
        )
    return found


def _number(folder: str) -> int:
    """Return the number of the kind that a folder is named by, or 0."""
    if folder.isdecimal() and int(folder) <= len(CLASSES):
        return int(folder)
    return CLASSES.index(folder) + 1 if folder in CLASSES else 0


def _photo(path: Path, number: int) -> Photo:
    return Photo(path, False, Flowers102.name, CLASSES[number - 1])


def _listed(root: Path, photos: list[Photo]) -> list[Photo]:
    """Return the photographs with the official lists' word on which are for testing or validation."""
    found = sorted(root.rglob(LISTS))
    lists = read_mat(found[0]) if found else {}
    if not {TRAIN, VAL, TEST} <= lists.keys():
        raise PromptFedError(f"{root} has no {LISTS} with the official lists; use data.split=random.")
    train, test, val = (set(lists[name].tolist()) for name in (TRAIN, TEST, VAL))
    numbers = [int(re.sub(r"\D", "", photo.path.stem) or 0) for photo in photos]
    for photo, number in zip(photos, numbers, strict=True):
        if number not in train | test | val:
            raise PromptFedError(f"No list of {found[0]} has image {number}, {photo.path}; use data.split=random.")
    return [replace(photo, test=n in test, val=n in val) for photo, n in zip(photos, numbers, strict=True)]


# -- MATLAB files -----------------------------------------------------------------------------------------------------

KINDS = {1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8", 13: "<u8"}
MATRIX, PACKED = 14, 15


def read_mat(path: Path) -> dict[str, NDArray[np.int64]]:
    """Return the arrays of whole numbers in a MATLAB 5 file, flat, by name."""
    arrays = {}
    try:
        for kind, content in _elements(path.read_bytes()[128:]):
            inner = next(_elements(zlib.decompress(content))) if kind == PACKED else (kind, content)
            if inner[0] == MATRIX:
                _, _, (_, name), (form, numbers), *_ = _elements(inner[1])
                arrays[name.decode("ascii")] = np.frombuffer(numbers, KINDS[form]).astype(np.int64)
    except (KeyError, OSError, StopIteration, struct.error, ValueError, zlib.error) as problem:
        raise PromptFedError(f"{path} cannot be read as a MATLAB 5 file: {type(problem).__name__}.") from problem
    return arrays


def _elements(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the type and the bytes of each element; one of up to four bytes lies within its own tag."""
    at = 0
    while at + 8 <= len(content):
        kind, size = struct.unpack_from("<II", content, at)
        if kind >> 16:
            yield kind & 0xFFFF, content[at + 4 : at + 4 + (kind >> 16)]
            at += 8
            continue
        yield kind, content[at + 8 : at + 8 + size]
        at += 8 + (size if kind == PACKED else -(-size // 8) * 8)
