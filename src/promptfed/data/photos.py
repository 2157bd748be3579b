"""Listed image files and how they become a data set: decoded on all cores, written to a file as they come, kept."""

import hashlib
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from promptfed.core import memory, progress
from promptfed.core.errors import PromptFedError
from promptfed.core.files import private
from promptfed.data.dataset import Dataset, Images
from promptfed.data.download import home
from promptfed.data.growing import growing
from promptfed.data.parsed import cached

SUFFIXES = (".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff")
BITS, PHOTOMETRIC = 258, 262  # tags of a TIFF
WHITE_IS_ZERO = 0  # the value of the second where 0 is white
OWN = "folders"  # where the decoded copies of a user\'s own photographs are kept
AHEAD = 256  # photographs decoded ahead of the one being stored
NOTED = 4096  # photographs between two points from which decoding goes on
MARKS = "marks"  # the file that says which photographs are good, while they are decoded

log = logging.getLogger("promptfed")


@dataclass(frozen=True)
class Photo:
    """One image file and what is known about it; it is for training unless it is for testing or validation."""

    path: Path
    test: bool
    domain: str
    label: str
    val: bool = False
    more: tuple[tuple[str, str], ...] = ()  # further columns of the list it is in, and their values
    patient: str = ""  # whose image it is, where that is known
    row: int = -1  # in a table that holds many images
    name: str = ""  # what messages call it, where its path says too much or too little

    @property
    def trains(self) -> bool:
        """Whether it is for training."""
        return not (self.test or self.val)

    @property
    def shown(self) -> str:
        """What messages call it."""
        return self.name or str(self.path)


def open_file(photo: Photo) -> Image.Image:
    """Return a photograph that is a file of its own, in its own size."""
    return open_rgb(photo.path)


@dataclass(frozen=True)
class Album:
    """The photographs of a data set in the folder `root`, its classes and domains in order, and how to read them."""

    name: str
    root: Path
    photos: Sequence[Photo]
    classes: tuple[str, ...]
    domains: tuple[str, ...]
    read: Callable[[Photo], Image.Image] = open_file
    around: Callable[[], AbstractContextManager[object]] = nullcontext  # what reading happens in
    recipe: str = ""  # of reading, where the same file may be read in several ways

    def dataset(self, images: Images, chosen: Sequence[bool]) -> Dataset:
        """Return the chosen photographs, whose `images` are given, as a data set."""
        photos = [photo for photo, wanted in zip(self.photos, chosen, strict=True) if wanted]
        val = np.array([photo.val for photo in photos], np.bool_)
        number = {patient: number for number, patient in enumerate(dict.fromkeys(photo.patient for photo in photos))}
        patients = np.array([number[photo.patient] for photo in photos], np.int64)
        further = [key for photo in photos[:1] for key, _ in photo.more]
        label = {name: number for number, name in enumerate(self.classes)}
        domain = {name: number for number, name in enumerate(self.domains)}
        return Dataset(
            name=self.name,
            images=images,
            labels=np.array([label[photo.label] for photo in photos], np.int64),
            test=np.array([photo.test for photo in photos], np.bool_),
            classes=self.classes,
            domains=np.array([domain[photo.domain] for photo in photos], np.int64),
            domain_names=self.domains,
            val=val if val.any() else None,
            patients=patients if any(photo.patient for photo in photos) else None,
            columns={key: tuple(dict(photo.more)[key] for photo in photos) for key in further},
        )


def read_album(album: Album, size: int, skip_corrupt: bool, cache: str) -> Dataset:
    """Return the photographs at `size` × `size`; the decoded copy is kept under `cache` in the data home."""
    place = hashlib.sha256(
        f"{album.root.resolve()}|{size}|{skip_corrupt}{album.recipe}".encode(errors="surrogateescape")
    ).hexdigest()[:16]
    kept, own = home() / cache / place, cache == OWN
    return cached(kept, _key(album), lambda target: _decode_all(album, size, skip_corrupt, target), own=own)


def require_trained(photos: Sequence[Photo], root: Path) -> None:
    """Refuse a class that is tested or validated but never trained."""
    trained = {photo.label for photo in photos if photo.trains}
    for photo in photos:
        if photo.label not in trained:
            where = "" if photo.name else f" of {photo.path.parent}"
            raise PromptFedError(f'Class "{photo.label}"{where} has no training images in {root}.')


def decode(path: Path, size: int | tuple[int, int]) -> Images:
    """Return one photograph, upright, in RGB on white where it is transparent, as uint8 [height, width, 3]."""
    return resize(open_rgb(path), size)


def resize(image: Image.Image, size: int | tuple[int, int]) -> Images:
    """Return an image in RGB as uint8 [height, width, 3]."""
    height, width = (size, size) if isinstance(size, int) else size
    return np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))


def open_rgb(source: Path | BinaryIO) -> Image.Image:
    """Return one photograph in its own size, upright, in RGB on white where it is transparent."""
    special = isinstance(source, Path) and source.exists() and not source.is_file()
    if special:  # opening a pipe would wait for its writer
        raise OSError("it is not a regular file")
    with Image.open(source) as opened:
        return to_rgb(opened)


def to_rgb(opened: Image.Image) -> Image.Image:
    """Return an opened photograph upright, in RGB on white where it is transparent."""
    tags = opened.getexif() if opened.format == "TIFF" else {}
    image: Image.Image = ImageOps.exif_transpose(opened)
    if image.mode.startswith("I"):  # more than 8 bits of grey, which Pillow would clip rather than scale
        bits = 12 if tags.get(BITS) == 12 else 16
        image = Image.fromarray(_eight_bits(np.asarray(image), bits, tags.get(PHOTOMETRIC) == WHITE_IS_ZERO))
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers; save it with 8 or 16 bits")
    if image.mode in ("LA", "PA", "RGBA") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


def _eight_bits(levels: NDArray[Any], bits: int, inverted: bool) -> NDArray[np.uint8]:
    """Return grey levels of so many bits as 8-bit ones, 0 for black; Pillow inverts only images of 8 bits by itself."""
    if levels.min(initial=0) < 0 or levels.max(initial=0) >= 2**bits:
        raise ValueError(f"its pixels are beyond 0 … {2**bits - 1}; save it with 8 or 16 bits")
    scaled: Images = (levels // 2 ** (bits - 8)).astype(np.uint8)
    return 255 - scaled if inverted else scaled


def first(photos: Sequence[Photo], limit: int) -> list[Photo]:
    """Return the first `limit` training photographs per class and domain (0: all), and all others."""
    seen: Counter[tuple[str, str]] = Counter()
    chosen = []
    for photo in photos:
        seen[photo.domain, photo.label] += photo.trains
        if not (photo.trains and limit) or seen[photo.domain, photo.label] <= limit:
            chosen.append(photo)
    return chosen


def _key(album: Album) -> str:
    """Return what changes whenever a photograph is added, removed, renamed, replaced or listed otherwise."""
    content = hashlib.sha256(f"{album.name}|{album.classes}|{album.domains}\n".encode(errors="surrogateescape"))
    for photo in album.photos:
        try:
            stat = photo.path.stat()
        except FileNotFoundError:
            raise PromptFedError(f'There is no file {photo.shown}, which data set "{album.name}" lists.') from None
        known = f"{photo.test}|{photo.val}|{photo.domain}|{photo.label}{photo.more or ''}"
        known += f"|{photo.patient}|{photo.row}" if photo.patient or photo.row >= 0 else ""
        content.update(
            f"{photo.path.as_posix()}|{stat.st_size}|{stat.st_mtime_ns}|{stat.st_ctime_ns}|{known}\n".encode(
                errors="surrogateescape"  # a name need not be UTF-8
            )
        )
    return content.hexdigest()[:32]


def _decode_all(album: Album, size: int, skip_corrupt: bool, target: Path | None) -> Dataset:
    """Decode every photograph into the .npy file `target`, or into memory without one."""
    if target is None:
        decoded = list(_decoded(album, size, skip_corrupt))
        good = [image is not None for image in decoded]
        images = np.array([image for image in decoded if image is not None], np.uint8).reshape(-1, size, size, 3)
        _require_training(album, good)
    else:
        good = _decode_into(target, album, size, skip_corrupt)
        _require_training(album, good)
        images = np.load(target, mmap_mode="c")
    if skipped := good.count(False):
        are = "is corrupt and was" if skipped == 1 else "are corrupt and were"
        log.warning("%d of %d images in %s %s left out", skipped, len(good), album.root, are)
    return album.dataset(images, good)


def _decode_into(target: Path, album: Album, size: int, skip_corrupt: bool) -> list[bool]:
    """Decode into a file, going on with what a process that was stopped has left; return which photographs are good."""
    marks = target.with_name(MARKS)  # a byte for each photograph; on the disk before the images are noted
    with growing(target, (size, size, 3), "|u1") as grown, open(marks, "a+b", opener=private) as file:
        file.seek(0)
        found = np.frombuffer(file.read(), np.uint8)
        known = int(np.searchsorted(np.cumsum(found), grown.rows)) + 1 if grown.rows else 0
        file.truncate(known)
        good = [bool(mark) for mark in found[:known]]
        for image in _decoded(replace(album, photos=album.photos[known:]), size, skip_corrupt):
            good.append(image is not None)
            file.write(bytes([good[-1]]))
            if image is not None:
                grown.append(image[None])
            if len(good) % NOTED == 0:
                file.flush()
                os.fsync(file.fileno())
                grown.note()
        grown.finish()
    marks.unlink()
    return good


def _require_training(album: Album, good: Sequence[bool]) -> None:
    """Refuse a set in which corrupt files were all there was to learn a class from."""
    training = [(photo.label, fine) for photo, fine in zip(album.photos, good, strict=True) if photo.trains]
    if lost := sorted({label for label, _ in training} - {label for label, fine in training if fine}):
        raise PromptFedError(f'Class "{lost[0]}" in {album.root} has no readable training image left.')


def _decoded(album: Album, size: int, skip_corrupt: bool) -> Iterator[Images | None]:
    """Yield every photograph in order, None for a corrupt one that may be left out."""

    def one(photo: Photo) -> Images | None:
        try:
            return resize(album.read(photo), size)
        except (PromptFedError, MemoryError):  # the file is not at fault
            raise
        except Exception as problem:  # damaged files make Pillow raise nearly anything
            if skip_corrupt:
                return None
            raise PromptFedError(
                f"{photo.shown} cannot be read as an image ({problem}); set data.skip_corrupt=true to leave it out."
            ) from problem

    count = len(album.photos)
    memory.require(3 * size**2 * min(count, AHEAD), "data.size")
    with album.around(), ThreadPoolExecutor() as pool, progress.bar(f"decoding {album.name}", count) as advance:
        for start in range(0, count, AHEAD):
            for image in pool.map(one, album.photos[start : start + AHEAD]):
                advance(1, "")
                yield image
