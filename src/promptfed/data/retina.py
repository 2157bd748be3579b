"""Retina: five grades of diabetic retinopathy on photographs of two sites, APTOS 2019 (India) and DeepDRiD (China).

APTOS has neither patients nor test images with labels, and some of its photographs twice; DeepDRiD has patients with
two photographs of either eye, and training, validation and test images of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from promptfed.core.errors import PromptFedError
from promptfed.core.options import Count, Share, Whole
from promptfed.data.by_hand import folder_with, folders_of
from promptfed.data.csv_file import Row, read_table
from promptfed.data.dataset import Dataset
from promptfed.data.download import home
from promptfed.data.patients import copies_of, linked, together, whole_patients
from promptfed.data.photos import Album, Photo, read_album
from promptfed.data.split import SHARE, fewer
from promptfed.data.spreadsheet import read_sheet

GRADES = tuple(f"{kind} diabetic retinopathy" for kind in ("no", "mild", "moderate", "severe", "proliferative"))
SITES = ("aptos", "deepdrid")
APTOS_LIST, APTOS_IMAGES = "train.csv", "train_images"
TRAINING, VALIDATION, EVALUATION = (
    "regular-fundus-training",
    "regular-fundus-validation",
    "Online-Challenge1&2-Evaluation",
)
LABELS = "Challenge1_labels"  # of the evaluation's images: .csv if there is one, else .xlsx
EYES = ("left_eye_DR_Level", "right_eye_DR_Level")
TRAIN, VAL, TEST = range(3)


@dataclass(frozen=True)
class Retina:
    """Retina: 3,662 + 2,000 photographs of two sites (APTOS 2019, DeepDRiD) in five grades of diabetic retinopathy."""

    name: ClassVar[str] = "retina"
    size: Count = 224
    test_fraction: Share = 0.2  # of APTOS; DeepDRiD has test images of its own
    limit: Whole = 0  # training images per grade and site; 0: all
    skip_corrupt: bool = False
    seed: Whole = 0

    def load(self) -> Dataset:
        """Decode the photographs, and divide APTOS; no patient and no photograph is on two sides."""
        roots = folders_of(self.name)
        photos = [*_aptos(_found(roots, "aptos")), *_deepdrid(_found(roots, "deepdrid"))]
        album = Album(self.name, home() / "data" / self.name, photos, GRADES, SITES)
        data = read_album(album, self.size, self.skip_corrupt, f"data/{self.name}/parsed/all")
        return fewer(divided(data, self.test_fraction, self.seed), self.limit)


def divided(data: Dataset, test_fraction: float, seed: int) -> Dataset:
    """Return the data with test and validation images of APTOS; copies and a patient's images are kept together."""
    copies = copies_of(data.images)
    groups = copies if data.patients is None else linked(data.patients, copies)
    validates = np.zeros(len(data), np.bool_) if data.val is None else data.val
    side = np.where(data.test, TEST, np.where(validates, VAL, TRAIN))
    for kind, share in ((TEST, test_fraction), (VAL, SHARE)):
        rows = np.flatnonzero((data.domains == SITES.index("aptos")) & (side == TRAIN))
        drawn = whole_patients(data.labels[rows], data.domains[rows], groups[rows], share, seed)
        side[rows[drawn]] = kind
    side = together(side, groups)
    val = side == VAL
    return replace(data, test=side == TEST, val=val if val.any() else None, patients=groups)


def check(root: Path) -> None:
    """Refuse a folder with neither site, and one whose lists cannot be read."""
    found = _sites(root)
    if not found:
        raise PromptFedError(
            f"{root} holds no retina: neither {APTOS_IMAGES}/ with {APTOS_LIST} beside it (APTOS 2019) nor "
            f"{TRAINING}/ and {VALIDATION}/ (DeepDRiD)."
        )
    for site, folder in found.items():
        _ = _aptos(folder) if site == "aptos" else _deepdrid(folder)


def _sites(root: Path) -> dict[str, Path]:
    """Return the folders of the sites that are below `root`."""
    folders = {"aptos": (APTOS_IMAGES,), "deepdrid": (TRAINING, VALIDATION)}
    found = {site: folder_with(root, names) for site, names in folders.items()}
    return {site: folder for site, folder in found.items() if folder is not None}


def _found(roots: Sequence[Path], site: str) -> Path:
    for root in roots:
        if folder := _sites(root).get(site):
            return folder
    title = {"aptos": "APTOS 2019", "deepdrid": "DeepDRiD"}[site]
    raise PromptFedError(
        f"Of retina {title} is not on this machine; `promptfed data add retina PATH` takes its folder beside what is "
        "there."
    )


# -- the two sites ----------------------------------------------------------------------------------------------------


def _aptos(top: Path) -> list[Photo]:
    """Return the photographs that train.csv lists; those of the competition's test have no labels in public."""
    path = top / APTOS_LIST
    photos = []
    for line, row in read_table(path, ("id_code", "diagnosis"), ()):
        image = top / APTOS_IMAGES / f"{row['id_code']}.png"
        grade = _grade(row["diagnosis"], f"{path}, line {line}")
        photos.append(Photo(image, False, "aptos", grade, patient=f"aptos {row['id_code']}"))
    return _listed(photos, path)


def _deepdrid(top: Path) -> list[Photo]:
    """Return the regular photographs; those of a wider field are of another kind of camera."""
    photos = []
    for folder in (TRAINING, VALIDATION):
        path = top / folder / f"{folder}.csv"
        listed = {row["image_id"]: _level(row, f"{path}, line {line}") for line, row in _table(path, EYES)}
        photos += _listed(_photos(top / folder, listed, val=folder == VALIDATION), path)
    path = top / EVALUATION / f"{LABELS}.csv"
    path = path if path.is_file() else path.with_suffix(".xlsx")
    if not path.is_file():
        raise PromptFedError(f"{top / EVALUATION} lacks {path.name}, the grades of DeepDRiD's test images.")
    rows = _table(path, ("DR_Levels",))
    listed = {row["image_id"]: _grade(row["DR_Levels"], f"{path}, line {line}") for line, row in rows}
    return photos + _listed(_photos(path.parent, listed, test=True), path)


def _table(path: Path, columns: Sequence[str]) -> list[tuple[int, Row]]:
    read = read_sheet if path.suffix == ".xlsx" else read_table
    return read(path, ("image_id", *columns), ())


def _photos(folder: Path, listed: Mapping[str, str], *, test: bool = False, val: bool = False) -> list[Photo]:
    """Return the photographs Images/1/1_l1.jpg and so on, in the list's order."""
    found = []
    for name, grade in listed.items():
        patient = name.partition("_")[0]
        path = folder / "Images" / patient / f"{name}.jpg"
        found.append(Photo(path, test, "deepdrid", grade, val, patient=f"deepdrid {patient}"))
    return found


def _listed(photos: list[Photo], path: Path) -> list[Photo]:
    """Return the photographs of a list, or refuse it for what it lacks."""
    if not photos:
        raise PromptFedError(f"{path} lists no photographs.")
    if missing := [photo for photo in photos if not photo.path.is_file()]:
        raise PromptFedError(
            f"{len(missing)} of {len(photos)} photographs of {path} are not here, such as {missing[0].path}."
        )
    return photos


def _level(row: Row, where: str) -> str:
    """Return the one grade in the columns of the two eyes; eleven rows have it under the other eye."""
    given = [row[eye] for eye in EYES if row[eye]]
    if len(given) != 1:
        raise PromptFedError(f"{where} has {len(given)} grades in {EYES[0]} and {EYES[1]}; expected one.")
    return _grade(given[0], where)


def _grade(text: str, where: str) -> str:
    if text not in ("0", "1", "2", "3", "4"):
        raise PromptFedError(f'{where}: the grade is "{text}"; expected 0 to 4.')
    return GRADES[int(text)]
