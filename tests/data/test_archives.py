"""The official archive layouts, on small archives made by hand."""

import gzip
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from promptfed.core.errors import PromptFedError
from promptfed.data.archives import read_cifar10, read_cifar100, read_fashion_mnist, read_idx, read_tiny_imagenet
from support.small_archives import write_cifar10, write_cifar100, write_fashion, write_idx, write_tar, write_tiny


def test_idx_gives_the_values_in_their_shape(tmp_path: Path) -> None:
    values = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    write_idx(tmp_path / "a.gz", values)
    assert (read_idx(tmp_path / "a.gz") == values).all()


@pytest.mark.parametrize(
    "content",
    [b"", b"junk", gzip.compress(b"\0\0\x0d\1\0\0\0\0"), gzip.compress(b"\0\0\x08\1\0\0\0\5ab")],
    # named by hand: compressed bytes hold the time, and all workers must collect the same names
    ids=["empty", "not gzip", "numbers that are no bytes", "fewer than promised"],
)
def test_a_broken_idx_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.gz").write_bytes(content)
    with pytest.raises(PromptFedError, match=r"a\.gz is not a complete gzipped idx file"):
        read_idx(tmp_path / "a.gz")


def test_fashion_mnist_is_padded_to_32_and_made_rgb(tmp_path: Path) -> None:
    write_fashion(tmp_path)
    data = read_fashion_mnist(tmp_path)
    assert data.images.shape == (7, 32, 32, 3)
    assert (data.images[:, 2:30, 2:30] == 9).all()
    assert data.images.sum() == 7 * 28 * 28 * 3 * 9
    assert data.labels.tolist() == [0, 1, 2, 3, 4, 0, 1]
    assert data.test.tolist() == [False] * 5 + [True] * 2
    assert data.classes[9] == "Ankle boot"


def test_cifar10_keeps_the_official_order_and_colours(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "c.tar.gz")
    data = read_cifar10(tmp_path / "c.tar.gz")
    assert data.images.shape == (12, 32, 32, 3)
    assert data.images[::2, 31, 0].tolist() == [[n, 100 + n, 200 + n] for n in range(1, 7)]
    assert data.labels.tolist() == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]
    assert data.test.tolist() == [False] * 10 + [True] * 2
    assert data.classes[:2] == ("c0", "c1")
    assert data.domain_names == ("cifar10",)


def python2_batch(data: bytes, label: int) -> bytes:
    """Return the pickle Python 2 wrote for {"data": an array [1, 3072], "labels": [label]}: strings are bytes."""
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\0tU\1btR"
    kind = b"cnumpy\ndtype\n(U\2u1K\0K\1tR(K\3U\1|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"
    state = b"(K\1(K\1M\0\x0ct" + kind + b"\x89T" + struct.pack("<i", len(data)) + data + b"tb"
    return b"\x80\x02}(U\4data" + array + state + b"U\6labels](K" + bytes([label]) + b"eu."


def test_cifar10_reads_what_python_2_pickled(tmp_path: Path) -> None:
    data = bytes(range(256)) * 12
    write_cifar10(tmp_path / "c.tar.gz", each=1, test_batch=python2_batch(data, 7))
    read = read_cifar10(tmp_path / "c.tar.gz")
    assert read.labels[-1] == 7
    assert read.images[-1].transpose(2, 0, 1).tobytes() == data


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, ("raise SystemExit",))


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path, protocol: int) -> None:
    write_cifar10(tmp_path / "c.tar.gz", test_batch=pickle.dumps(Evil(), protocol=protocol))
    with pytest.raises(PromptFedError, match=r"asks for (builtins|__builtin__)\.exec, which is not allowed"):
        read_cifar10(tmp_path / "c.tar.gz")


def test_a_pickle_may_not_decode_with_other_codecs(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "c.tar.gz", test_batch=b"\x80\x02c_codecs\nencode\nX\1\0\0\0aX\3\0\0\0hex\x86R.")
    with pytest.raises(PromptFedError, match="encoding hex is not allowed"):
        read_cifar10(tmp_path / "c.tar.gz")


def test_cifar10_names_what_is_missing(tmp_path: Path) -> None:
    write_tar(tmp_path / "c.tar.gz", "cifar-10-batches-py", {"data_batch_1": pickle.dumps({})})
    with pytest.raises(PromptFedError, match="it lacks cifar-10-batches-py/data_batch_2"):
        read_cifar10(tmp_path / "c.tar.gz")


def test_a_truncated_tar_is_one_sentence(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "c.tar.gz")
    whole = (tmp_path / "c.tar.gz").read_bytes()
    (tmp_path / "c.tar.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(PromptFedError, match="not a complete CIFAR-10 archive"):
        read_cifar10(tmp_path / "c.tar.gz")


@pytest.mark.parametrize(("labels", "first", "count"), [("fine", 99, 100), ("coarse", 19, 20)])
def test_cifar100_has_fine_and_coarse_labels(tmp_path: Path, labels: str, first: int, count: int) -> None:
    write_cifar100(tmp_path / "c.tar.gz")
    data = read_cifar100(tmp_path / "c.tar.gz", labels)
    assert data.labels[[0, 2]].tolist() == [first, first]
    assert len(data.classes) == count
    assert data.classes[0] == ("f0" if labels == "fine" else "k0")


def test_tiny_imagenet_tests_on_its_validation_images(tmp_path: Path) -> None:
    write_tiny(tmp_path / "t.zip")
    data = read_tiny_imagenet(tmp_path / "t.zip")
    assert data.images.shape == (5, 64, 64, 3)
    assert data.images[:, 0, 0, 0].tolist() == [0, 50, 100, 200, 201]
    assert data.labels.tolist() == [1, 0, 2, 2, 0]  # numbered by wnids.txt: n02, n01, n03
    assert data.test.tolist() == [False, False, False, True, True]
    assert data.classes == ("crane", "goldfish", "crane, bird")


def test_a_zip_of_something_else_is_one_sentence(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "t.zip", "w") as archive:
        archive.writestr("holiday.txt", "sun")
    with pytest.raises(PromptFedError, match="not a complete Tiny ImageNet archive"):
        read_tiny_imagenet(tmp_path / "t.zip")
