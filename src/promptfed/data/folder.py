"""A user's own photographs in folders: class/*.jpg or domain/class/*.jpg, optionally in train/ and test/ (or val/)."""

import hashlib
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from promptfed import progress
from promptfed.data.dataset import Dataset, Images
from promptfed.data.download import home
from promptfed.data.parsed import kept
from promptfed.errors import PromptFedError

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
AHEAD = 256  # photographs decoded ahead of the one being stored

log = logging.getLogger("promptfed")


@dataclass(frozen=True)
class Photo:
    """One image file and what its place says about it."""

    path: Path
    test: bool
    domain: str
    label: str


def read_folder(root: Path, size: int, skip_corrupt: bool) -> Dataset:
    """Return the photographs under `root` at `size` × `size`; `test` is the official split, or all False."""
    photos = scan(root)
    place = hashlib.sha256(f"{root.resolve()}|{size}|{skip_corrupt}".encode()).hexdigest()[:16]
    return kept(home() / "folders" / place, _key(root, photos), lambda: _decode_all(root, photos, size, skip_corrupt))


def scan(root: Path) -> list[Photo]:
    """Return every photograph under `root` in order of path, having checked that the layout makes sense."""
    if not root.is_dir():
        raise PromptFedError(f"There is no folder {root}.")
    if not (tops := _folders(root)):
        raise PromptFedError(f"{root} holds no folders; expected class/*.jpg or domain/class/*.jpg.")
    named = {top.name.lower(): top for top in tops}
    held_out = next((named[name] for name in ("test", "val") if name in named), None)
    if "train" not in named or held_out is None:
        return _scan_split(root, test=False)
    for top in tops:
        if top not in (named["train"], held_out):
            log.warning("%s is left out: %s already has train/ and %s/", top, root, held_out.name)
    photos = _scan_split(named["train"], test=False) + _scan_split(held_out, test=True)
    trained = {photo.label for photo in photos if not photo.test}
    for photo in photos:
        if photo.label not in trained:
            raise PromptFedError(f'Class "{photo.label}" of {photo.path.parent} has no training images in {root}.')
    return photos


def decode(path: Path, size: int) -> Images:
    """Return one photograph, upright, in RGB on white where it is transparent, as uint8 [size, size, 3]."""
    with Image.open(path) as opened:
        image: Image.Image = ImageOps.exif_transpose(opened)
        if image.mode.startswith("I"):  # 16-bit grey, which Pillow would clip rather than scale
            image = Image.fromarray((np.asarray(image) // 256).astype(np.uint8))
        if image.mode in ("LA", "PA", "RGBA") or "transparency" in image.info:
            image = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
        return np.asarray(image.convert("RGB").resize((size, size), Image.Resampling.BICUBIC))


def _folders(parent: Path) -> list[Path]:
    """Return the sub-folders of `parent` in order of name, without hidden ones."""
    found = [path for path in parent.iterdir() if path.is_dir() and not path.name.startswith((".", "__"))]
    return sorted(found, key=lambda path: path.name)


def _images(folder: Path) -> list[Path]:
    """Return the image files of `folder` itself in order of name."""
    found = [path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")]
    return sorted(found, key=lambda path: path.name)


def _scan_split(root: Path, test: bool) -> list[Photo]:
    """Return the photographs of one split, laid out as class/* or as domain/class/*."""
    tops = _folders(root)
    if not any(_folders(top) for top in tops):
        return [photo for top in tops for photo in _scan_class(top, test, domain="")]
    photos = []
    for top in tops:
        if _images(top) or not _folders(top):
            raise PromptFedError(f"{top} mixes two layouts; {root} needs class/*.jpg or domain/class/*.jpg throughout.")
        photos += [photo for folder in _folders(top) for photo in _scan_class(folder, test, domain=top.name)]
    return photos


def _scan_class(folder: Path, test: bool, domain: str) -> list[Photo]:
    """Return the photographs of one class folder, which may not be empty."""
    if not (paths := _images(folder)):
        raise PromptFedError(f"The class folder {folder} holds no images ({', '.join(SUFFIXES)}).")
    return [Photo(path, test, domain, folder.name) for path in paths]


def _key(root: Path, photos: Sequence[Photo]) -> str:
    """Return what changes whenever a photograph is added, removed, renamed or replaced."""
    content = hashlib.sha256()
    for photo in photos:
        stat = photo.path.stat()
        content.update(f"{photo.path.relative_to(root).as_posix()}|{stat.st_size}|{stat.st_mtime_ns}\n".encode())
    return content.hexdigest()[:32]


def _decode_all(root: Path, photos: Sequence[Photo], size: int, skip_corrupt: bool) -> Dataset:
    """Decode every photograph on all cores and number the classes and domains in order of name."""

    def one(photo: Photo) -> Images | None:
        try:
            return decode(photo.path, size)
        except Exception as problem:  # damaged files make Pillow raise nearly anything
            if skip_corrupt:
                return None
            raise PromptFedError(
                f"{photo.path} cannot be read as an image ({problem}); set data.skip_corrupt=true to leave it out."
            ) from problem

    images = np.empty((len(photos), size, size, 3), np.uint8)
    good = np.zeros(len(photos), bool)
    with ThreadPoolExecutor() as pool, progress.bar(f"decoding {root.name}", len(photos)) as advance:
        for start in range(0, len(photos), AHEAD):
            for offset, image in enumerate(pool.map(one, photos[start : start + AHEAD])):
                advance(1, "")
                if image is not None:
                    images[start + offset], good[start + offset] = image, True
    if skipped := int((~good).sum()):
        log.warning("%d of %d images in %s are corrupt and were left out", skipped, len(photos), root)
    return _assemble(root, [photo for photo, fine in zip(photos, good, strict=True) if fine], images[good], photos)


def _assemble(root: Path, photos: Sequence[Photo], images: Images, all_photos: Sequence[Photo]) -> Dataset:
    """Return the data set of the readable `photos`; every class among `all_photos` must have one for training."""
    classes = sorted({photo.label for photo in all_photos})
    domains = sorted({photo.domain for photo in all_photos})
    if lost := sorted(set(classes) - {photo.label for photo in photos if not photo.test}):
        raise PromptFedError(f'Class "{lost[0]}" in {root} has no readable training image left.')
    return Dataset(
        name=root.resolve().name,
        images=images,
        labels=np.array([classes.index(photo.label) for photo in photos], np.int64),
        test=np.array([photo.test for photo in photos], bool),
        classes=tuple(classes),
        domains=np.array([domains.index(photo.domain) for photo in photos], np.int64),
        domain_names=tuple(domain or root.resolve().name for domain in domains),
    )
