"""A user's own arrays in one .npz file."""

import math
import os
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from promptfed.core.errors import PromptFedError
from promptfed.data.dataset import Dataset, Images, Indices
from promptfed.data.split import stratified

Arrays = dict[str, NDArray[Any]]
MOST_NUMBERS = 1_000_000  # of classes or domains: a name is made for each


def read_npz(path: Path, test_fraction: float, seed: int) -> Dataset:
    """Read x_train, y_train, x_test, y_test, or x and y alone, of which `test_fraction` then becomes the test set.

    Optional: class_names, and domain_names with domain_train and domain_test (or domain).
    """
    arrays = _read(path)
    ends = ("_train", "_test") if "x_train" in arrays else ("",)
    given = f"domain{ends[0]}" in arrays
    parts = [_part(arrays, end, given, path) for end in ends]
    if len({part[0].shape[1:] for part in parts}) > 1:
        raise PromptFedError(f"{path} holds images of two sizes, one in x_train and another in x_test.")
    images, labels, domains = (np.concatenate(column) for column in zip(*parts, strict=True))
    if ends == ("",):
        test = stratified(labels, domains, test_fraction, seed)
    else:
        test = np.arange(len(labels)) >= len(parts[0][1])
    return Dataset(
        name=path.stem,
        images=images,
        labels=labels,
        test=test,
        classes=_names(arrays, "class_names", labels, path),
        domains=domains,
        domain_names=_names(arrays, "domain_names", domains, path) if given else (path.stem,),
    )


def read_sides(path: Path) -> tuple[int, int]:
    """Return the height and width of the images, from the header of their array alone."""
    if path.exists() and not path.is_file():
        raise PromptFedError(f"{path} is not a regular file.")
    try:
        with zipfile.ZipFile(path) as archive:
            name = "x_train.npy" if "x_train.npy" in archive.namelist() else "x.npy"
            with archive.open(name) as array:
                _, height, width = _header(array)[0][:3]
    except FileNotFoundError as problem:
        raise PromptFedError(f"There is no file {path}.") from problem
    except (OSError, KeyError, ValueError, zipfile.BadZipFile, zlib.error) as problem:
        raise PromptFedError(f"{path} is not an .npz file of images.") from problem
    return height, width


def read_domains(path: Path) -> tuple[str, ...]:
    """Return the names of the domains; no image is read."""
    arrays = _read(path, "domain")
    parts = [_indices(arrays, name, path) for name in ("domain", "domain_train", "domain_test") if name in arrays]
    return _names(arrays, "domain_names", np.concatenate(parts), path) if parts else (path.stem,)


def _read(path: Path, start: str = "") -> Arrays:
    """Return the arrays of the file by name: all of them, or those whose names have that start."""
    if not path.is_file():
        raise PromptFedError(f"There is no file {path}.")
    try:
        _check_room(path)
        with path.open("rb") as file, np.load(file) as opened:
            return {name: opened[name] for name in opened if name.startswith(start)}
    except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as problem:
        raise PromptFedError(f"{path} is not an .npz file of plain arrays.") from problem


def _check_room(path: Path) -> None:
    """Refuse a file that would fill the memory, or whose arrays claim more than it holds, before it is unpacked."""
    with zipfile.ZipFile(path) as archive:
        entries = [entry for entry in archive.infolist() if entry.filename.endswith(".npy")]
        if (total := sum(entry.file_size for entry in entries)) > (most := memory() // 2):
            raise PromptFedError(f"{path} unpacks to {total:,} bytes, more than half of the memory here ({most:,}).")
        for entry in entries:
            with archive.open(entry) as file:
                shape, kind = _header(file)
            if not kind.hasobject and math.prod(shape) * kind.itemsize > entry.file_size:
                raise PromptFedError(f"{entry.filename} in {path} claims more numbers than it holds.")


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], "np.dtype[Any]"]:
    """Return the shape and type of the array that begins here."""
    old = np.lib.format.read_magic(file) == (1, 0)
    read = np.lib.format.read_array_header_1_0 if old else np.lib.format.read_array_header_2_0
    shape, _, kind = read(file)
    return shape, kind


def memory() -> int:
    """Return the bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 2**40


def _pick(arrays: Arrays, name: str, path: Path) -> NDArray[Any]:
    """Return an array that must be there."""
    if name not in arrays:
        held = ", ".join(sorted(arrays)) or "nothing"
        raise PromptFedError(f"{path} lacks {name}; it holds {held} (wanted: x_train, y_train, x_test, y_test).")
    return arrays[name]


def _part(arrays: Arrays, end: str, domains: bool, path: Path) -> tuple[Images, Indices, Indices]:
    """Return the images, labels and domains of one split, which must be equally many."""
    images, labels = _images(arrays, f"x{end}", path), _indices(arrays, f"y{end}", path)
    places = _indices(arrays, f"domain{end}", path) if domains else labels * 0
    if not len(images) == len(labels) == len(places):
        also = f" and {len(places)} domains" if domains else ""
        raise PromptFedError(f"x{end} in {path} has {len(images)} images, but there are {len(labels)} labels{also}.")
    return images, labels, places


def _images(arrays: Arrays, name: str, path: Path) -> Images:
    """Return images as uint8 [N, H, W, 3]; grey ones [N, H, W] or [N, H, W, 1] gain equal colours."""
    x = _pick(arrays, name, path)
    x = x[..., None] if x.ndim == 3 else x
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[-1] not in (1, 3):
        raise PromptFedError(f"{name} in {path} must be uint8 [N, H, W, 3] or [N, H, W], not {x.dtype} {x.shape}.")
    return np.broadcast_to(x, (*x.shape[:3], 3))


def _indices(arrays: Arrays, name: str, path: Path) -> Indices:
    """Return whole numbers from 0 as int64 [N]; a column [N, 1] is accepted."""
    y = _pick(arrays, name, path)
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if y.ndim != 1 or y.dtype.kind not in "iu" or (y.astype(np.int64) < 0).any():
        raise PromptFedError(f"{name} in {path} must hold whole numbers from 0, one per image.")
    return y.astype(np.int64)


def _names(arrays: Arrays, name: str, values: Indices, path: Path) -> tuple[str, ...]:
    """Return the names of the values 0 … max: those in the file, or the numbers themselves."""
    count = int(values.max(initial=-1)) + 1
    if count > MOST_NUMBERS:
        what = "labels" if name == "class_names" else "domains"
        raise PromptFedError(f"The {what} in {path} go up to {count - 1:,}; number them from 0, without large gaps.")
    names = tuple(str(given) for given in arrays[name]) if name in arrays else tuple(map(str, range(count)))
    if len(names) < count:
        raise PromptFedError(f"{name} in {path} has {len(names)} names, but the numbers go up to {count - 1}.")
    return names
