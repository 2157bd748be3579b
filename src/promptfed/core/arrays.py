"""Arrays beside a JSON file, for what would be a list with an entry for each of very many clients.

The JSON file has a reference in the list's place: the file's name and checksum. Small runs have the list itself.
"""

import io
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptfed.core.files import write_bytes

MANY = 20_000  # lists with more entries than this are kept as arrays

Arrays = dict[str, NDArray[Any]]


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> dict[str, object]:
    """Write the arrays to an .npz file in one step, and return the reference to it."""
    buffer = io.BytesIO()
    np.savez(buffer, **dict[str, Any](arrays))
    content = buffer.getbuffer()
    write_bytes(path, content)
    return {"file": path.name, "crc32": f"{zlib.crc32(content):08x}"}


def read_arrays(folder: Path, reference: Mapping[str, Any]) -> Arrays:
    """Return the arrays a reference names; a file that is missing or altered is a ValueError."""
    path = folder / Path(str(reference["file"])).name
    try:
        content = path.read_bytes()
        if f"{zlib.crc32(content):08x}" != reference["crc32"]:
            raise ValueError("it does not match its checksum")
        with np.load(io.BytesIO(content), allow_pickle=False) as found:
            return {name: found[name] for name in found.files}
    except (OSError, ValueError) as error:
        why = "it is missing" if isinstance(error, FileNotFoundError) else error
        raise ValueError(f"its arrays in {path} cannot be read ({why})") from error


def compact(values: NDArray[np.int64]) -> NDArray[Any]:
    """Return whole numbers from 0 in the smallest type that holds them all."""
    return values.astype(np.min_scalar_type(int(values.max(initial=0))))
