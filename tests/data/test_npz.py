"""A user's own arrays in an .npz file."""

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from promptfed.core.errors import PromptFedError
from promptfed.data import open_dataset
from promptfed.data.npz import read_sides

Arrays = dict[str, Any]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mine.npz"


def images(count: int, *shape: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.full((count, *shape), 5, np.uint8)


def split() -> Arrays:
    return {"x_train": images(3, 4, 4, 3), "y_train": [0, 1, 2], "x_test": images(2, 4, 4, 3), "y_test": [2, 0]}


def test_train_and_test_arrays(path: Path) -> None:
    np.savez(path, **split())
    data = open_dataset(f"npz:{path}")
    assert data.images.shape == (5, 4, 4, 3)
    assert data.labels.tolist() == [0, 1, 2, 2, 0]
    assert data.test.tolist() == [False, False, False, True, True]
    assert (data.name, data.classes, data.domain_names) == ("mine", ("0", "1", "2"), ("mine",))


def test_names_and_domains(path: Path) -> None:
    names: Arrays = {"class_names": ["a", "b", "c", "d"], "domain_names": ["lab", "field"]}
    np.savez(path, domain_train=[0, 1, 1], domain_test=[0, 0], **names, **split())
    data = open_dataset("npz", path=path)
    assert data.classes == ("a", "b", "c", "d")
    assert data.domain_names == ("lab", "field")
    assert data.domains.tolist() == [0, 1, 1, 0, 0]


def test_grey_images_and_label_columns_are_accepted(path: Path) -> None:
    np.savez(path, x=images(10, 4, 4), y=np.arange(10)[:, None] % 2)
    data = open_dataset(f"npz:{path}", test_fraction=0.4)
    assert data.images.shape == (10, 4, 4, 3)
    assert [int((data.test & (data.labels == label)).sum()) for label in range(2)] == [2, 2]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"x_train": images(3, 4, 4, 3) / 255}, r"x_train in .* must be uint8 \[N, H, W, 3\] .* not float64"),
        ({"x_train": images(3, 3, 4, 4)}, r"x_train in .* must be uint8 .*\(3, 3, 4, 4\)"),
        ({"y_train": [0.0, 1.0, 2.0]}, "y_train in .* must hold whole numbers from 0"),
        ({"y_train": [0, -1, 2]}, "y_train in .* must hold whole numbers from 0"),
        ({"x_test": images(2, 5, 5, 3)}, "images of two sizes"),
        ({"y_train": [0, 1], "y_test": [0, 1, 2]}, "x_train in .* has 3 images, but there are 2 labels\\.$"),
        ({"class_names": ["a", "b"]}, "class_names in .* has 2 names, but the numbers go up to 2"),
        ({"class_names": np.array(["a", None], object)}, r"is not an \.npz file of plain arrays"),
        ({"domain_train": [0, 0, 0]}, "lacks domain_test"),
        ({"y_train": [0, 1, 10**8]}, "labels in .* go up to 100,000,000; number them from 0, without large gaps"),
        ({"class_names": ["a", "b\x1b[2J", "c"]}, r"Class 'b\\x1b\[2J' of mine cannot be shown; rename it"),
        ({"y_train": np.array([0, 1, 2**63], np.uint64)}, "y_train in .* must hold whole numbers from 0"),
    ],
)
def test_wrong_arrays_are_one_sentence(path: Path, changes: Arrays, sentence: str) -> None:
    np.savez(path, **{**split(), **changes})
    with pytest.raises(PromptFedError, match=sentence):
        open_dataset(f"npz:{path}")


def test_wrong_files_are_one_sentence(path: Path) -> None:
    with pytest.raises(PromptFedError, match="There is no file"):
        open_dataset(f"npz:{path}")
    path.write_bytes(b"junk")
    with pytest.raises(PromptFedError, match=r"is not an \.npz file"):
        open_dataset(f"npz:{path}")
    with path.open("wb") as single:
        np.save(single, images(1, 2, 2))
    with pytest.raises(PromptFedError, match=r"is not an \.npz file"):
        open_dataset(f"npz:{path}")
    np.savez(path, z=np.zeros(1))
    with pytest.raises(PromptFedError, match="lacks x; it holds z"):
        open_dataset(f"npz:{path}")


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_the_sides_of_images_are_in_a_header(path: Path, write: Any) -> None:
    write(path, **split() | {"x_train": images(3, 4, 6)})
    assert read_sides(path) == (4, 6)


def test_no_sides(path: Path) -> None:
    with pytest.raises(PromptFedError, match="There is no file"):
        read_sides(path)
    path.write_bytes(b"PK")
    with pytest.raises(PromptFedError, match=r"not an \.npz file of images"):
        read_sides(path)
    for arrays in ({"y": [1]}, {"x": [1, 2]}):
        np.savez(path, **arrays)  # type: ignore[arg-type]
        with pytest.raises(PromptFedError, match=r"not an \.npz file of images"):
            read_sides(path)


def test_a_file_that_would_fill_the_memory_is_refused_before_it_is_unpacked(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez_compressed(path, **split() | {"x_train": images(3000, 32, 32, 3)})
    assert path.stat().st_size < 100_000
    monkeypatch.setattr("promptfed.data.npz.memory", lambda: 1_000_000)
    monkeypatch.setattr("promptfed.data.npz.np.load", None)
    with pytest.raises(PromptFedError, match=r"unpacks to 9,21\d,\d+ bytes, more than half of the memory here"):
        open_dataset(f"npz:{path}")


def test_an_array_that_claims_more_than_it_holds_is_refused(path: Path) -> None:
    np.savez(path, **split())
    with zipfile.ZipFile(path, "a") as archive:
        head = io.BytesIO()
        about = {"descr": "|u1", "fortran_order": False, "shape": (10**12, 32, 32, 3)}
        np.lib.format.write_array_header_1_0(head, about)
        archive.writestr("x.npy", head.getvalue())
    with pytest.raises(PromptFedError, match=r"x\.npy in .* claims more numbers than it holds"):
        open_dataset(f"npz:{path}")


def test_a_pipe_is_not_waited_for(path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises(PromptFedError, match="is not a regular file"):
        read_sides(path)
