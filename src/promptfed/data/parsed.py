"""Data sets that have been read, cached on disk as plain .npy files: the next load is a memory map, not a decode."""

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from promptfed.core.files import held, make_private
from promptfed.data.dataset import Dataset
from promptfed.data.growing import journal_of

IMAGES = "images.npy"
ARRAYS = ("labels", "test", "domains", "val", "patients")
MAPPED_BYTES = 1 << 26  # larger arrays are mapped, not read
PART, LOCK = ".part", ".lock"  # the folder of a data set that is being made, and a file in it that its maker locks
VERSION = 2  # of the layout and of the readers; part of every key

Make = Callable[[Path | None], Dataset]

log = logging.getLogger("promptfed")


def cached(folder: Path, key: str, make: Make, *, own: bool = False) -> Dataset:
    """Return the data set kept in `folder` under `key`, or make it and keep it there in place of older keys.

    `make(path)` may write its images to the .npy file at `path` as they come, so that they need not fit in memory, and
    go on with what it finds there; `path` is None where nothing can be written. What is a user's `own` is for no one
    else to read.
    """
    place = folder / f"{key}-{VERSION}"
    if place.is_dir():
        try:
            return _load(place)
        except (OSError, EOFError, ValueError, KeyError, TypeError):
            shutil.rmtree(place, ignore_errors=True)
    fresh = place.with_name(f".{place.name}{PART}")
    made: Dataset | None = None
    try:
        if own:
            make_private(folder)
        fresh.mkdir(parents=True, exist_ok=True)  # what a process that was stopped has left may be gone on with
        with held(fresh / LOCK, wait=True):
            if place.is_dir():  # another process was faster, with the same contents
                shutil.rmtree(fresh, ignore_errors=True)
            else:
                _clear(fresh)
                made = make(fresh / IMAGES)
                _save(made, fresh, place)
        return _load(place)
    except OSError as problem:
        shutil.rmtree(fresh, ignore_errors=True)
        log.warning("The images could not be kept in %s (%s); they will be read again next time", folder, problem)
        return make(None) if made is None else made


def _save(data: Dataset, fresh: Path, place: Path) -> None:
    """Write all of `data` to `fresh`, then move it to `place` in one step and drop what stood there before."""
    if not (fresh / IMAGES).exists():
        np.save(fresh / IMAGES, data.images)
    for array in ARRAYS:
        if getattr(data, array) is not None:
            np.save(fresh / f"{array}.npy", getattr(data, array))
    names: dict[str, object] = {"name": data.name, "classes": data.classes, "domain_names": data.domain_names}
    names |= {"columns": data.columns} if data.columns else {}
    (fresh / "names.json").write_text(json.dumps(names), encoding="utf-8")
    (fresh / LOCK).unlink()
    fresh.rename(place)
    for other in place.parent.iterdir():
        if other != place and not (other.name.startswith(".") and _in_use(other)):
            shutil.rmtree(other, ignore_errors=True)


def _clear(fresh: Path) -> None:
    """Remove what a stopped process has left, unless it is written so that it can be gone on with."""
    if not journal_of(fresh / IMAGES).exists():
        for path in fresh.iterdir():
            if path.name != LOCK:
                path.unlink()


def _in_use(part: Path) -> bool:
    """Say whether a process is at work in the folder of a data set that is being made."""
    try:
        with held(part / LOCK, wait=False):
            return False
    except OSError:
        return True


def _load(place: Path) -> Dataset:
    """Read what `_save` wrote."""
    names = json.loads((place / "names.json").read_text(encoding="utf-8"))
    path = place / IMAGES
    # Copy on write: the array may be changed in memory, the file never is.
    images = np.load(path, mmap_mode="c" if path.stat().st_size > MAPPED_BYTES else None)
    return Dataset(
        name=names["name"],
        classes=tuple(names["classes"]),
        domain_names=tuple(names["domain_names"]),
        columns={key: tuple(values) for key, values in names.get("columns", {}).items()},
        images=images,
        **{array: np.load(place / f"{array}.npy") for array in ARRAYS if (place / f"{array}.npy").exists()},
    )
