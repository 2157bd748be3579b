"""An .npy file that grows by rows, which need not fit in memory, and that another process can go on with.

Beside it lies a journal. Each of its lines is written once the rows it speaks of are on the disk, and has their
checksum: what comes after the last line that holds true is written again.
"""

import json
import math
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from promptfed.core.files import private

CHUNK = 2**24  # bytes read at a time


class GrowingArray:
    """Rows of one shape and type, appended to a file; so many `rows` are there."""

    def __init__(self, file: BinaryIO, journal: Path, row: Sequence[int], dtype: str) -> None:
        self._file, self._journal, self._row, self._dtype = file, journal, tuple(row), dtype
        self._width = math.prod(row) * np.dtype(dtype).itemsize
        self.rows, self._crc = self._found()
        self._file.seek(self._head(self.rows))
        self._file.truncate()

    def append(self, rows: NDArray[Any]) -> None:
        """Add rows [n, ...]."""
        content = np.ascontiguousarray(rows, self._dtype).reshape(-1).view(np.uint8).data
        self._file.write(content)
        self._crc = zlib.crc32(content, self._crc)
        self.rows += len(rows)

    def note(self) -> None:
        """Make sure that the rows so far outlive this process."""
        self._file.flush()
        os.fsync(self._file.fileno())
        line = json.dumps({"rows": self.rows, "crc32": self._crc})
        with open(self._journal, "a", encoding="utf-8", opener=private) as journal:
            journal.write(f"{line}\n")

    def finish(self) -> None:
        """Write the head anew, now that the number of rows is known; the file is then an array like any other."""
        self._head(self.rows)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._journal.unlink(missing_ok=True)

    def _head(self, rows: int) -> int:
        """Write the head, whose length is the same for any number of rows, and return where so many rows end."""
        self._file.seek(0)
        about = {"descr": self._dtype, "fortran_order": False, "shape": (rows, *self._row)}
        np.lib.format.write_array_header_1_0(self._file, about)
        return self._file.tell() + rows * self._width

    def _found(self) -> tuple[int, int]:
        """Return how many rows of an earlier writer are whole, and their checksum."""
        whole, crc, read = (0, 0), 0, 0
        self._file.seek(self._head(0))
        for rows, expected in self._lines():
            while content := self._file.read(min(CHUNK, rows * self._width - read)):
                crc, read = zlib.crc32(content, crc), read + len(content)
            if read != rows * self._width or crc != expected:
                break
            whole = rows, crc
        return whole

    def _lines(self) -> Iterator[tuple[int, int]]:
        """Yield the lines of the journal; the last may be torn."""
        if self._journal.is_file():
            for text in self._journal.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    found = json.loads(text)
                    yield int(found["rows"]), int(found["crc32"])
                except (ValueError, KeyError, TypeError):
                    return


@contextmanager
def growing(path: Path, row: Sequence[int], dtype: str) -> Iterator[GrowingArray]:
    """Open the file for appending, after what an earlier writer has left of it; only its owner may read it."""
    with open(path, "r+b" if path.exists() else "w+b", opener=private) as file:
        yield GrowingArray(file, journal_of(path), row, dtype)


def journal_of(path: Path) -> Path:
    """Return the journal of a growing file, which is there until the file is finished."""
    return path.with_name(f"{path.name}.journal")
