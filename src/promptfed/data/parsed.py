"""Data sets once read, kept on disk as plain .npy files: the next load is a memory map, not a decode."""

import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from promptfed.data.dataset import Dataset

ARRAYS = ("images", "labels", "test", "domains")
MAPPED_BYTES = 1 << 26  # larger arrays are mapped, not read
VERSION = 1  # of the layout and of the readers; part of every key

log = logging.getLogger("promptfed")


def kept(folder: Path, key: str, make: Callable[[], Dataset]) -> Dataset:
    """Return the data set kept in `folder` under `key`, or make it and keep it there in place of older keys."""
    place = folder / f"{key}-{VERSION}"
    if place.is_dir():
        try:
            return _load(place)
        except (OSError, ValueError, KeyError):
            shutil.rmtree(place, ignore_errors=True)
    made = make()
    try:
        _save(made, place)
        return _load(place)
    except OSError as problem:
        log.warning("%s could not be kept in %s (%s); it will be read again next time", made.name, folder, problem)
        return made


def _save(data: Dataset, place: Path) -> None:
    """Write all of `data` beside `place`, then move it there in one step and drop what stood there before."""
    place.parent.mkdir(parents=True, exist_ok=True)
    fresh = place.with_name(f".{place.name}.{os.getpid()}")
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        fresh.mkdir()
        for array in ARRAYS:
            np.save(fresh / f"{array}.npy", getattr(data, array))
        names = {"name": data.name, "classes": data.classes, "domain_names": data.domain_names}
        (fresh / "names.json").write_text(json.dumps(names), encoding="utf-8")
        if not place.exists():  # or another process was faster, with the same contents
            fresh.rename(place)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    for other in place.parent.iterdir():
        if other != place and not other.name.startswith("."):
            shutil.rmtree(other, ignore_errors=True)


def _load(place: Path) -> Dataset:
    """Read what `_save` wrote."""
    names = json.loads((place / "names.json").read_text(encoding="utf-8"))
    arrays = {}
    for array in ARRAYS:
        path = place / f"{array}.npy"
        # Copy on write: the array may be changed in memory, the file never is.
        arrays[array] = np.load(path, mmap_mode="c" if path.stat().st_size > MAPPED_BYTES else None)
    return Dataset(
        name=names["name"],
        classes=tuple(names["classes"]),
        domain_names=tuple(names["domain_names"]),
        **arrays,
    )
