"""A file of rows that outlives its writers."""

from pathlib import Path

import numpy as np
import pytest

from promptfed.data.growing import growing

ROWS = np.arange(60, dtype=np.float32).reshape(20, 3)


def write(path: Path, *, until: int) -> int:
    """Go on until so many rows, noted every four; return how many were there already."""
    with growing(path, (3,), "<f4") as grown:
        before = grown.rows
        for first in range(before, until, 2):
            grown.append(ROWS[first : min(first + 2, until)])
            if grown.rows % 4 == 0:
                grown.note()
        if until == len(ROWS):
            grown.finish()
    return before


def test_rows_in_one_go(tmp_path: Path) -> None:
    path = tmp_path / "rows.npy"
    assert write(path, until=20) == 0
    assert np.load(path).tolist() == ROWS.tolist()
    assert [one.name for one in tmp_path.iterdir()] == ["rows.npy"]
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("stopped", [1, 4, 7, 15])
def test_another_writer_goes_on_after_what_was_noted(tmp_path: Path, stopped: int) -> None:
    path = tmp_path / "rows.npy"
    write(path, until=stopped)
    assert write(path, until=20) == stopped // 4 * 4
    assert np.load(path).tolist() == ROWS.tolist()


@pytest.mark.parametrize(("row", "kept"), [(2, 0), (5, 4), (9, 8)])
def test_rows_that_are_not_what_was_noted_are_written_again(tmp_path: Path, row: int, kept: int) -> None:
    path = tmp_path / "rows.npy"
    write(path, until=11)
    content = bytearray(path.read_bytes())
    content[len(content) - (11 - row) * 12] ^= 1
    path.write_bytes(content)
    assert write(path, until=20) == kept
    assert np.load(path).tolist() == ROWS.tolist()


@pytest.mark.parametrize("journal", ["", "{", '{"rows": 400, "crc32": 5}', '{"rows": 4}', "\x00\x00"])
def test_a_journal_that_is_damaged_counts_for_nothing(tmp_path: Path, journal: str) -> None:
    path = tmp_path / "rows.npy"
    write(path, until=9)
    (tmp_path / "rows.npy.journal").write_text(journal)
    assert write(path, until=20) == 0
    assert np.load(path).tolist() == ROWS.tolist()
