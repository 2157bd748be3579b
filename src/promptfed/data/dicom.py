"""A user's own medical images: a tree of DICOM files, with classes in folders or in a CSV file, divided by patient.

Names of files and values of tags may identify a patient, so nothing here repeats them: messages call a file by its
place in `list_files`, and patients become numbers.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import ClassVar, Literal

from PIL import Image

from promptfed.core import progress
from promptfed.core.errors import PromptFedError
from promptfed.core.options import Count, Share, Whole
from promptfed.data.csv_file import SPLITS, Row, read_table
from promptfed.data.dataset import Dataset
from promptfed.data.dicom_pixels import Frame, Window, import_pydicom, open_slice, quiet, read_window
from promptfed.data.own_photos import own_album, read_own
from promptfed.data.photos import Album, Photo, require_trained

SUFFIXES = (".dcm", ".dicom", ".ima")
KEYS = ("file", "patient", "study")  # columns by which a list of labels may know an image
TAGS = ["PatientID", "StudyInstanceUID", "InstitutionName", "Rows"]
UNKNOWN = "unknown"  # the institution of a file that names none

log = logging.getLogger("promptfed")


@dataclass(frozen=True)
class Header:
    """What a file says before its pixels; one that is no DICOM file says nothing."""

    patient: str = ""
    study: str = ""
    institution: str = ""
    image: bool = True


@dataclass(frozen=True)
class Dicom:
    """A user's own medical images in DICOM files under `path`, divided by patient; classes in folders or a list."""

    name: ClassVar[str] = "dicom"
    path: str
    size: Count = 32
    labels: str = ""  # a CSV file with the column label, and file, patient or study; empty: class folders
    site: Literal["none", "folder", "institution"] = "none"
    group: Literal["patient", "study", "file"] = "patient"  # what is never on both sides of a split
    window: str = "file"  # or full, or CENTER/WIDTH
    frame: Frame = "middle"  # of a file that has several
    test_fraction: Share = 0.2
    skip_corrupt: bool = False
    seed: Whole = 0

    def load(self) -> Dataset:
        """Decode the images, and set those of some patients aside for testing unless folders or the list do."""
        return read_own(self.album(), self.size, self.skip_corrupt, self.test_fraction, self.seed)

    def album(self) -> Album:
        """Return the images that the tree holds, unread."""
        window, root = read_window(self.window), Path(self.path).expanduser()
        album = own_album(root.resolve().name, root, _photos(self, root))
        read = partial(_open, root, window, self.frame)
        return replace(album, read=read, around=quiet, recipe=f"|{self.window}|{self.frame}")


def list_files(root: Path) -> list[Path]:
    """Return the DICOM files under `root` in order of path: the n-th one is what messages call file n."""
    if not root.is_dir():
        raise PromptFedError(f"There is no folder {root}.")
    found: list[Path] = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith((".", "__"))]
        found += [Path(folder) / name for name in names if not name.startswith(".")]
    return sorted((path for path in found if _is_dicom(path)), key=lambda path: path.relative_to(root).as_posix())


def _is_dicom(path: Path) -> bool:
    """Say whether a file is called a DICOM file or, without a suffix, begins like one."""
    if path.suffix.lower() in SUFFIXES:
        return True
    if not path.name.replace(".", "").isdigit() and path.suffix:  # a UID as a name has dots
        return False
    if path.name == "DICOMDIR" or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(132)[128:] == b"DICM"


def _open(root: Path, window: Window, frame: Frame, photo: Photo) -> Image.Image:
    return open_slice(photo.path, window, frame, root)


def _photos(chosen: Dicom, root: Path) -> list[Photo]:
    """Return every image under `root` with its class, site, split and patient."""
    files = list_files(root)
    headers = _headers(files, root)
    images = [(number, path, header) for number, (path, header) in enumerate(zip(files, headers, strict=True), 1)]
    images = [one for one in images if one[2].image]
    if not images:
        raise PromptFedError(f"{root} holds no DICOM images ({', '.join(SUFFIXES)}, or no suffix).")
    if others := len(files) - len(images):
        log.info("%d of %d DICOM files in %s hold no picture and are left out", others, len(files), root)
    rows = _read_labels(chosen.labels, root) if chosen.labels else None
    splits = _split_folders(root)
    photos, unlisted = [], 0
    for number, path, header in images:
        name = f"file {number} of {len(files)} in {root}"
        parts = path.relative_to(root).parts[:-1]
        split = SPLITS[parts[0].lower()] if splits and parts and parts[0].lower() in splits else "train"
        parts = parts[1:] if splits else parts
        row = None if rows is None else rows.row(path.relative_to(root).as_posix(), header)
        if rows is not None and row is None:
            unlisted += 1
            continue
        site, label = _place(chosen, parts, header, row, name)
        split = split if row is None else SPLITS[row.get("split", split).lower()]
        person = {"patient": header.patient or header.study, "study": header.study}.get(chosen.group) or name
        photos.append(Photo(path, split == "test", site, label, split == "val", patient=person, name=name))
    return _checked(photos, unlisted, chosen.labels, root)


def _checked(photos: list[Photo], unlisted: int, labels: str, root: Path) -> list[Photo]:
    """Return the images, where there are any and every class is trained."""
    if unlisted and not photos:
        raise PromptFedError(f"{labels} lists none of the {unlisted} images in {root}.")
    if unlisted:
        log.warning("%d images in %s are not in the list of labels and are left out", unlisted, root)
    if any(photo.val for photo in photos) and not any(photo.test for photo in photos):
        photos = [replace(photo, test=photo.val, val=False) for photo in photos]
    require_trained(photos, root)
    return photos


def _place(chosen: Dicom, parts: Sequence[str], header: Header, row: Row | None, name: str) -> tuple[str, str]:
    """Return the site and the class of an image."""
    needed = (chosen.site == "folder") + (row is None)
    if len(parts) < needed:
        layout = "site/class/…" if chosen.site == "folder" else "class/…"
        layout = "site/…" if row is not None else layout
        more = "" if row is not None else ", or list the classes in a CSV file (data.labels=FILE)"
        raise PromptFedError(f"{name} is not in the layout {layout}; put it into such a folder{more}.")
    site = {"folder": parts[0] if parts else "", "institution": header.institution or UNKNOWN}.get(chosen.site, "")
    if row is None:
        return site, parts[1 if chosen.site == "folder" else 0]
    return (site or row.get("site", "")), row["label"]


def _split_folders(root: Path) -> tuple[str, ...]:
    """Return the names of the folders that are splits: train with test, val or both; or none."""
    tops = {path.name.lower() for path in root.iterdir() if path.is_dir()}
    there = tuple(name for name in ("train", "val", "test") if name in tops)
    return there if "train" in there and len(there) > 1 else ()


# -- headers ------------------------------------------------------------------------------------------------------


def _headers(files: Sequence[Path], root: Path) -> list[Header]:
    """Return the headers of all files."""
    import_pydicom()
    found = []
    with quiet(), progress.bar(f"reading the headers of {root.resolve().name}", len(files)) as advance:
        for path in files:
            stat = path.stat()
            found.append(_header(path, stat.st_size, stat.st_mtime_ns))
            advance(1, None)
    return found


@lru_cache(maxsize=1 << 20)  # a run lists its images more than once
def _header(path: Path, size: int, changed: int) -> Header:
    """Return the header of a file; one that cannot be read is kept, to be reported with the broken ones."""
    try:
        found = import_pydicom().dcmread(path, stop_before_pixels=True, specific_tags=TAGS)
        patient, study, institution = (str(found.get(tag) or "").strip() for tag in TAGS[:3])
        return Header(patient, study, institution, "Rows" in found)
    except Exception:  # damaged files make pydicom raise nearly anything
        return Header()


# -- a list of labels ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Labels:
    """The rows of a CSV file by file, patient or study."""

    path: Path
    key: str
    rows: Mapping[str, Row]

    def row(self, relative: str, header: Header) -> Row | None:
        """Return what the list says about an image, if anything."""
        return self.rows.get({"file": relative, "patient": header.patient, "study": header.study}[self.key])


def _read_labels(given: str, root: Path) -> Labels:
    """Read the list, which may also lie in `root`; its values are not repeated in messages."""
    path = Path(given).expanduser()
    path = path if path.is_file() or not (root / given).is_file() else root / given
    lines = read_table(path, ("label",), ("label", "site", "split", *KEYS))
    columns = set(lines[0][1]) if lines else set()
    keys = [key for key in KEYS if key in columns]
    if len(keys) != 1:
        raise PromptFedError(f"{path} needs, beside label, exactly one of the columns {', '.join(KEYS)}.")
    rows: dict[str, Row] = {}
    for line, row in lines:
        value = row[keys[0]].replace("\\", "/").removeprefix("./") if keys[0] == "file" else row[keys[0]]
        for column in {*keys, "label", "site", "split"} & columns:
            if not row[column]:
                raise PromptFedError(f"{path}, line {line} has no {column}; fill in every row.")
        if row.get("split", "train").lower() not in SPLITS:
            raise PromptFedError(f"{path}, line {line} has an unknown split; write train, val or test.")
        if value in rows:
            raise PromptFedError(f"{path}, line {line}: this {keys[0]} is already listed above.")
        rows[value] = row
    return Labels(path, keys[0], rows)
