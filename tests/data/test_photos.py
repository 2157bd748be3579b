"""Decoding: written to a file as it goes, mapped afterwards, in memory where nothing can be written."""

import io
import logging
import tracemalloc
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from promptfed.data import parsed, photos
from promptfed.data.photos import Album, Photo, first, read_album
from support.small_sites import paint


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PROMPTFED_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def album(root: Path, count: int) -> Album:
    """Return grey photographs, level n in the n-th; every fifth validates, and every fifth after it tests."""
    listed = []
    for n in range(count):
        paint(root / f"{n}.png", n)
        listed.append(Photo(root / f"{n}.png", n % 5 == 1, "here", "ab"[n % 2], val=n % 5 == 0))
    return Album("greys", root, listed, ("a", "b"), ("here",))


def test_images_are_mapped_from_the_file_they_were_decoded_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parsed, "MAPPED_BYTES", 1000)
    monkeypatch.setattr(photos, "AHEAD", 4)
    greys = album(tmp_path / "greys", 100)
    tracemalloc.start()
    data = read_album(greys, 100, False, "greys")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(data.images, np.memmap)
    assert data.images.shape == (100, 100, 100, 3)
    assert data.images[:, 50, 50, 1].tolist() == list(range(100))
    assert peak < data.images.nbytes / 3  # never all of them in memory


def test_val_is_kept_with_the_rest(tmp_path: Path) -> None:
    greys = album(tmp_path / "greys", 10)
    for _ in range(2):
        data = read_album(greys, 2, False, "greys")
        assert data.val is not None
        assert np.flatnonzero(data.val).tolist() == [0, 5]
        assert np.flatnonzero(data.test).tolist() == [1, 6]
        assert np.flatnonzero(data.dealt).tolist() == [1, 2, 3, 4, 6, 7, 8, 9]


def test_a_set_without_validation_images_has_none(tmp_path: Path) -> None:
    paint(tmp_path / "0.png", 0)
    lone = Album("lone", tmp_path, [Photo(tmp_path / "0.png", False, "here", "a")], ("a",), ("here",))
    assert all(read_album(lone, 2, False, "lone").val is None for _ in range(2))


def test_corrupt_images_leave_no_gap_in_the_file(tmp_path: Path, home: Path) -> None:
    greys = album(tmp_path / "greys", 10)
    for n in (0, 4, 9):
        (tmp_path / "greys" / f"{n}.png").write_bytes(b"no image")
    data = read_album(greys, 2, True, "greys")
    assert data.images[:, 0, 0, 0].tolist() == [1, 2, 3, 5, 6, 7, 8]
    assert data.labels.tolist() == [1, 0, 1, 1, 0, 1, 0]
    (file,) = home.rglob("images.npy")
    assert np.load(file).shape == (7, 2, 2, 3)


def test_where_nothing_can_be_written_the_images_are_in_memory(
    tmp_path: Path, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home.write_text("in the way")
    with caplog.at_level(logging.WARNING, "promptfed"):
        data = read_album(album(tmp_path / "greys", 6), 2, False, "greys")
    assert "could not be kept" in caplog.text
    assert data.images[:, 1, 1, 2].tolist() == [0, 1, 2, 3, 4, 5]
    assert data.images.flags.writeable


@pytest.mark.parametrize(("module", "function"), [(photos, "growing"), (np, "save")], ids=["images", "labels"])
def test_a_full_disk_costs_the_copy_and_not_the_run(
    tmp_path: Path,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    module: ModuleType,
    function: str,
) -> None:
    greys, right = album(tmp_path / "greys", 6), getattr(module, function)

    def full(stream: object, *rest: int) -> None:
        if not isinstance(stream, io.BytesIO):
            raise OSError(28, "No space left on device")
        right(stream, *rest)

    monkeypatch.setattr(module, function, full)
    with caplog.at_level(logging.WARNING, "promptfed"):
        data = read_album(greys, 2, False, "greys")
    assert "No space left on device" in caplog.text
    assert data.images[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert not list(home.rglob("*.npy"))


def test_first_counts_training_photographs_of_each_class_and_domain() -> None:
    def photo(name: str, domain: str, label: str, test: bool = False, val: bool = False) -> Photo:
        return Photo(Path(name), test, domain, label, val)

    listed = [
        photo("0", "x", "a"),
        photo("1", "x", "a"),
        photo("2", "x", "b"),
        photo("3", "y", "a"),
        photo("4", "x", "a", test=True),
        photo("5", "x", "a", val=True),
    ]
    assert [one.path.name for one in first(listed, 1)] == ["0", "2", "3", "4", "5"]
    assert first(listed, 0) == first(listed, 2) == listed


def test_decoding_goes_on_where_it_was_stopped(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    greys = album(tmp_path / "greys", 23)
    greys.photos[4].path.write_bytes(b"not an image")  # left out, before and after
    greys.photos[15].path.write_bytes(b"nor is this")
    monkeypatch.setattr(photos, "NOTED", 4)
    monkeypatch.setattr(photos, "AHEAD", 1)
    read: list[Photo] = []

    def stopped(photo: Photo) -> Image.Image:
        if len(read) == 14:
            raise KeyboardInterrupt
        read.append(photo)
        return photos.open_file(photo)

    with pytest.raises(KeyboardInterrupt):
        read_album(replace(greys, read=stopped), 8, True, "folders")
    (part,) = (home / "folders").glob("*/.*.part")
    assert {path.stat().st_mode & 0o077 for path in part.glob("images*")} == {0}
    again: list[Photo] = []

    def counted(photo: Photo) -> Image.Image:
        again.append(photo)
        return photos.open_file(photo)

    found = read_album(replace(greys, read=counted), 8, True, "folders")
    assert again == list(greys.photos[12:])  # twelve were on the disk
    assert found.images[:, 0, 0, 0].tolist() == [n for n in range(23) if n not in (4, 15)]
    assert len(found.labels) == 21
    assert not list((home / "folders").glob("*/.*"))
