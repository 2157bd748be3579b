"""A user's own photographs in folders: class/*.jpg or domain/class/*.jpg, optionally in train/, val/ and test/."""

import logging
import os
from dataclasses import replace
from pathlib import Path

from promptfed.core.errors import PromptFedError
from promptfed.data.photos import SUFFIXES, Photo, require_trained

PHONES = {".heic", ".heif", ".dng"}  # what phones and cameras write and Pillow cannot read

log = logging.getLogger("promptfed")


def scan(root: Path) -> list[Photo]:
    """Return every photograph under `root` in order of path, having checked that the layout makes sense."""
    if not root.is_dir():
        raise PromptFedError(f"There is no folder {root}.")
    if not (tops := _folders(root)):
        raise PromptFedError(f"{root} holds no folders; expected class/*.jpg or domain/class/*.jpg.")
    named = {top.name.lower(): top for top in tops}
    held_out = named.get("test", named.get("val"))
    if "train" not in named or held_out is None:
        return _scan_split(root)
    photos = _scan_split(named["train"])
    photos += [replace(photo, test=True) for photo in _scan_split(held_out)]
    if "test" in named and "val" in named:
        photos += [replace(photo, val=True) for photo in _scan_split(named["val"])]
    for top in tops:
        if top.name.lower() not in ("train", "val", "test"):
            log.warning("%s is left out: %s already has train/ and %s/", top, root, held_out.name)
    require_trained(photos, root)
    return photos


def _folders(parent: Path) -> list[Path]:
    """Return the sub-folders of `parent` in order of name, without hidden ones."""
    with os.scandir(parent) as entries:  # it knows which entries are folders without a look at each
        names = [entry.name for entry in entries if entry.is_dir() and not entry.name.startswith((".", "__"))]
    return [parent / name for name in sorted(names)]


def _images(folder: Path) -> list[Path]:
    """Return the image files of `folder` itself in order of name."""
    found = [path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")]
    return sorted(found, key=lambda path: path.name)


def _scan_split(root: Path) -> list[Photo]:
    """Return the photographs of one split, laid out as class/* or as domain/class/*."""
    tops = _folders(root)
    if not any(_folders(top) for top in tops):
        return [photo for top in tops for photo in _scan_class(top, "", root)]
    photos = []
    for top in tops:
        if not _images(top) and not _folders(top):
            raise PromptFedError(f"{top} holds no photographs and no folders of classes; fill it, or take it away.")
        if _images(top) or not _folders(top):
            raise PromptFedError(f"{top} mixes two layouts; {root} needs class/*.jpg or domain/class/*.jpg throughout.")
        photos += [photo for folder in _folders(top) for photo in _scan_class(folder, top.name, root)]
    return photos


def _scan_class(folder: Path, domain: str, root: Path) -> list[Photo]:
    """Return the photographs of one class folder, which may not be empty."""
    if not (paths := _images(folder)):
        others = {path.suffix.lower() for path in folder.iterdir() if path.suffix}
        advice = "; convert its photographs to JPEG" if others & PHONES else ""
        advice = f"; for DICOM files write dicom:{root}" if ".dcm" in others else advice
        raise PromptFedError(f"The class folder {folder} holds no images ({', '.join(SUFFIXES)}){advice}.")
    return [Photo(path, False, domain, folder.name) for path in paths]
