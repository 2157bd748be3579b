"""Data sets that cannot be downloaded: which folders on this machine hold them.

A zip is unpacked into the data home; a folder stays where it is and only its path is remembered, since some of these
sets are too large to copy.
"""

import hashlib
import json
import os
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

from promptfed.core.errors import PromptFedError
from promptfed.core.files import write_json
from promptfed.data.download import home

RECORD = "folders.json"
UNPACKED = "unpacked"


def register(name: str, path: Path, check: Callable[[Path], object], beside: bool) -> Path:
    """Register a zip or a folder that `check` accepts as data set `name`, and return the folder.

    `beside` keeps what was added before, for sets that come in parts.
    """
    own = home() / "data" / name
    if not path.exists():
        raise PromptFedError(f"There is no file or folder {path}.")
    if path.is_dir():
        check(path)
    # parts of a set may well be zips of the same name
    apart = f"-{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}" if beside else ""
    folder = path.resolve() if path.is_dir() else _unpack(path, own / UNPACKED / f"{path.stem}{apart}", check)
    others = {place: size for place, size in _record(name).items() if place != str(folder)}
    own.mkdir(parents=True, exist_ok=True)
    write_json(own / RECORD, {str(folder): _bytes(folder)} | (others if beside else {}))
    for place in map(Path, others):
        if not beside and place.parent == own / UNPACKED:
            shutil.rmtree(place, ignore_errors=True)
    return folder


def folders_of(name: str) -> list[Path]:
    """Return the folders that hold a data set, the last one added first, or say how to add one."""
    found = [Path(place) for place in _record(name)]
    if not found:
        raise PromptFedError(
            f'Data set "{name}" is not on this machine and cannot be downloaded; '
            f"`promptfed data add {name} PATH` takes a copy of it (docs/data.md says where from)."
        )
    for place in found:
        if not place.is_dir():
            raise PromptFedError(
                f'The folder {place} of data set "{name}" is gone; `promptfed data add {name} PATH` takes another.'
            )
    return found


def status_of(name: str) -> tuple[bool, Path, int]:
    """Return whether a data set is here, where it is or would go, and its size in bytes, 0 if unknown."""
    record = _record(name)
    present = bool(record) and all(Path(place).is_dir() for place in record)
    where = Path(next(iter(record))) if len(record) == 1 else home() / "data" / name
    return present, where, sum(record.values())


def folder_with(root: Path, names: Iterable[str]) -> Path | None:
    """Return the folder, `root` or one below it, in which folders of all these names are."""
    wanted = set(names)
    for top, folders, _ in os.walk(root):
        if wanted <= set(folders):
            return Path(top)
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__")))
    return None


def _record(name: str) -> dict[str, int]:
    """Return the remembered folders with their sizes."""
    path = home() / "data" / name / RECORD
    if not path.is_file():
        return {}
    try:
        return {str(place): int(size) for place, size in json.loads(path.read_text(encoding="utf-8")).items()}
    except (AttributeError, OSError, TypeError, ValueError) as problem:
        raise PromptFedError(f"{path} cannot be read ({problem}); remove it and add {name} again.") from problem


def _unpack(path: Path, folder: Path, check: Callable[[Path], object]) -> Path:
    """Unpack a zip that `check` accepts to `folder`, which is the old one or the new one, never a part."""
    fresh = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        fresh.mkdir(parents=True)
        with zipfile.ZipFile(path) as archive:
            archive.extractall(fresh)
        _checked(fresh, path, check)
        shutil.rmtree(folder, ignore_errors=True)
        fresh.rename(folder)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as problem:  # or encrypted
        raise PromptFedError(f"{path} is neither a folder nor a complete zip: {problem}.") from problem
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return folder


def _checked(fresh: Path, path: Path, check: Callable[[Path], object]) -> None:
    """Check what was unpacked; a complaint is about the zip the user gave, not about a folder that is going away."""
    try:
        check(fresh)
    except PromptFedError as problem:
        raise PromptFedError(str(problem).replace(str(fresh), str(path))) from problem


def _bytes(folder: Path) -> int:
    """Return the size of all files below a folder."""
    return sum((Path(top) / file).lstat().st_size for top, _, files in os.walk(folder) for file in files)
