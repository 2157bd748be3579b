"""Flowers-102: the official files, folders by number or name, one kind alone; and the real files where they are."""

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.io import savemat

from promptfed.core.errors import PromptFedError
from promptfed.data import add, open_dataset
from promptfed.data.flowers import CLASSES, find_photos, read_mat
from promptfed.data.partition import make_partition
from support.small_sites import paint, zipped

ROSE, CLEMATIS = CLASSES.index("rose") + 1, CLASSES.index("clematis") + 1


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMPTFED_HOME", str(tmp_path / "home"))


@pytest.fixture
def official(tmp_path: Path) -> Path:
    """Write eight images in the official layout; image n (from 1) has level n."""
    root = tmp_path / "official"
    for number in range(1, 9):
        paint(root / "jpg" / f"image_{number:05}.jpg", number)
    savemat(root / "imagelabels.mat", {"labels": np.array([[ROSE, CLEMATIS] * 4], np.uint8)}, do_compression=True)
    lists = {"trnid": [[1, 2]], "valid": [[3, 4]], "tstid": [[5, 6, 7, 8]]}
    savemat(root / "setid.mat", {name: np.array(value, np.float64) for name, value in lists.items()})
    return root


def test_there_are_102_kinds_and_clematis_is_number_82() -> None:
    assert len(set(CLASSES)) == 102
    assert CLEMATIS == 82


def test_one_kind_of_the_official_files(official: Path) -> None:
    add("flowers102", official)
    data = open_dataset("flowers102", only="clematis", size=2, test_fraction=0.25)
    assert data.classes == ("clematis",)
    assert data.images[:, 0, 0, 0].tolist() == [2, 4, 6, 8]
    assert data.labels.tolist() == [0, 0, 0, 0]
    assert data.test.sum() == 1


def test_all_images_may_be_for_training(official: Path) -> None:
    add("flowers102", official)
    data = open_dataset("flowers102", only="rose", size=2, test_fraction=0.0)
    assert not data.test.any()
    part = make_partition("iid", {}, data, 2, seed=0)
    assert [len(own) for own in (*part.train, *part.test)] == [2, 2, 0, 0]


def test_official_lists(official: Path) -> None:
    add("flowers102", official)
    data = open_dataset("flowers102", size=2, split="official")
    assert data.val is not None
    assert data.classes == ("rose", "clematis")
    assert data.val.nonzero()[0].tolist() == [2, 3]
    assert data.test.nonzero()[0].tolist() == [4, 5, 6, 7]


def test_a_photograph_that_no_list_names_is_refused(official: Path) -> None:
    lists = {"trnid": [[1, 2]], "valid": [[3, 4]], "tstid": [[5, 6, 7]]}
    savemat(official / "setid.mat", {name: np.array(value, np.float64) for name, value in lists.items()})
    add("flowers102", official)
    with pytest.raises(PromptFedError, match=r"No list of .*setid\.mat has image 8, .*; use data\.split"):
        open_dataset("flowers102", size=2, split="official")


def test_hidden_files_are_no_photographs(tmp_path: Path) -> None:
    paint(tmp_path / "set" / "082" / "image_00007.jpg", 7)
    for hidden in (tmp_path / "set" / "082" / "._image_00007.jpg", tmp_path / "set" / "__MACOSX" / "082" / "x.jpg"):
        hidden.parent.mkdir(parents=True, exist_ok=True)
        hidden.write_bytes(b"no image")
    add("flowers102", tmp_path / "set")
    assert len(open_dataset("flowers102", size=2)) == 1


def test_limit(official: Path) -> None:
    add("flowers102", official)
    data = open_dataset("flowers102", only="rose", size=2, test_fraction=0.0, limit=3)
    assert data.images[:, 0, 0, 0].tolist() == [1, 3, 5]


def test_folders_by_number_and_by_name(tmp_path: Path) -> None:
    paint(tmp_path / "set" / "082" / "image_00007.jpg", 7)
    paint(tmp_path / "set" / "rose" / "image_00003.jpg", 3)
    (tmp_path / "set" / "classes.json").write_text("{}")
    add("flowers102", zipped(tmp_path / "set", tmp_path / "set.zip"))
    data = open_dataset("flowers102", size=2)
    assert data.classes == ("rose", "clematis")
    assert dict(zip(data.labels.tolist(), data.images[:, 0, 0, 0].tolist(), strict=True)) == {0: 3, 1: 7}
    with pytest.raises(PromptFedError, match=r"no setid\.mat with the official lists; use data\.split=random"):
        open_dataset("flowers102", size=2, split="official")
    with pytest.raises(PromptFedError, match='holds no photograph of "sunflower"'):
        open_dataset("flowers102", only="sunflower", size=2)


def test_unknown_kind() -> None:
    with pytest.raises(PromptFedError, match=r'"clematys".*clematis'):
        open_dataset("flowers102", only="clematys")


def test_foreign_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(PromptFedError, match="holds no Flowers-102"):
        add("flowers102", tmp_path / "empty")


def test_labels_must_fit_the_images(official: Path) -> None:
    paint(official / "jpg" / "image_00009.jpg", 9)
    with pytest.raises(PromptFedError, match="does not label the 9 photographs"):
        find_photos(official)


@pytest.mark.parametrize("packed", [True, False])
def test_matlab_files(tmp_path: Path, packed: bool) -> None:
    arrays: dict[str, NDArray[Any]] = {
        "a": np.arange(5, dtype=np.uint8),
        "longer_name": np.arange(300, dtype=np.int32),
        "b": np.array([3.0]),
    }
    savemat(tmp_path / "x.mat", arrays, do_compression=packed)
    found = read_mat(tmp_path / "x.mat")
    assert {name: value.tolist() for name, value in found.items()} == {n: v.tolist() for n, v in arrays.items()}


def test_damaged_matlab_files(tmp_path: Path) -> None:
    (tmp_path / "x.mat").write_bytes(bytes(128) + b"\x0f\0\0\0\x04\0\0\0junk")
    with pytest.raises(PromptFedError, match=r"x\.mat cannot be read as a MATLAB 5 file"):
        read_mat(tmp_path / "x.mat")


@pytest.mark.skipif("PROMPTFED_SHARED_DATA" not in os.environ, reason="PROMPTFED_SHARED_DATA names no folder")
def test_the_real_clematis_files() -> None:
    path = Path(os.environ["PROMPTFED_SHARED_DATA"]) / "flowers_clematis.zip"
    assert zipfile.is_zipfile(path)
    add("flowers102", path)
    assert len(open_dataset("flowers102", only="clematis", size=8)) == 112
