"""Data sets by name: options, errors, adding files by hand, what is present, and the parsed copies."""

import hashlib
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from promptfed.core.errors import PromptFedError
from promptfed.data import DATASETS, Dataset, add, datasets, download, find_sides, open_dataset, parsed, status
from promptfed.data.split import fewer
from support.small_archives import write_cifar10, write_cifar100, write_fashion, write_tiny


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PROMPTFED_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(datasets, "INSTALLED", {"fashion-mnist": tmp_path / "debian"})
    return tmp_path / "home"


@pytest.fixture
def cifar10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small archive that passes for the official one."""
    path = tmp_path / "by hand.tgz"
    write_cifar10(path)
    (remote,) = download.REMOTES["cifar10"]
    right = "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setitem(download.REMOTES, "cifar10", (replace(remote, checksum=right, url=path.as_uri()),))
    return path


def test_the_names() -> None:
    assert sorted(DATASETS) == [
        "caltech101",
        "celeba",
        "cifar10",
        "cifar100",
        "csv",
        "dermoscopic-fl",
        "dicom",
        "domainnet",
        "eurosat",
        "fashion-mnist",
        "fashion-shops",
        "flowers102",
        "folder",
        "food101",
        "hf",
        "npz",
        "office-caltech10",
        "office31",
        "oxford-pets",
        "retina",
        "stanford-cars",
        "tiny-imagenet",
    ]


def test_the_embedded_set_needs_nothing() -> None:
    assert len(open_dataset("fashion-shops")) == 8000


def test_sides_are_known_without_an_image(tmp_path: Path) -> None:
    (tmp_path / "debian").mkdir()
    write_fashion(tmp_path / "debian")
    write_cifar10(tmp_path / "cifar10.tar.gz")
    write_cifar100(tmp_path / "cifar100.tar.gz")
    write_tiny(tmp_path / "tiny.zip")
    np.savez(tmp_path / "mine.npz", x=np.zeros((4, 5, 7, 3), np.uint8), y=[0, 1, 0, 1])
    for file, name in (("cifar10.tar.gz", "cifar10"), ("cifar100.tar.gz", "cifar100"), ("tiny.zip", "tiny-imagenet")):
        add(name, tmp_path / file, verify=False)
    for name in ("fashion-shops", "fashion-mnist", "cifar10", "cifar100", "tiny-imagenet", f"npz:{tmp_path}/mine.npz"):
        data = open_dataset(name)
        assert find_sides(name) == data.sides
        assert (data.mean, data.std) == (Dataset.mean, Dataset.std)  # whoever has no images relies on this


def test_sides_are_an_option_of_all_other_sets() -> None:
    for name, kind in DATASETS.items():
        if name not in (*datasets.SIDES, "npz"):
            given = {"path": "somewhere"} if name in ("folder", "csv", "dicom", "hf") else {}
            assert find_sides(name, size=48, **given) == (48, 48)
            assert find_sides(name, **given) == (kind.size, kind.size)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("cifar11", {}, 'Unknown data set "cifar11"; did you mean "cifar10"?'),
        ("cifar10:here", {}, 'Data set "cifar10" takes no path: write cifar10 instead of cifar10:here.'),
        ("folder", {}, 'Data set "folder" needs a path: write folder:PATH.'),
        ("npz:", {}, 'Data set "npz" needs a path: write npz:PATH.'),
        ("cifar10", {"limits": 5}, 'Unknown option "limits" in data set "cifar10"; did you mean "limit"?'),
        ("cifar10", {"limit": "5"}, "data.limit must be a whole number, not '5'."),
        ("cifar10", {"limit": True}, "data.limit must be a whole number, not True."),
        ("cifar10", {"limit": -1}, "data.limit must be at least 0, not -1."),
        ("cifar100", {"labels": "corse"}, 'Unknown data.labels "corse"; did you mean "coarse"?'),
        ("folder:x", {"size": 0}, "data.size must be at least 1, not 0."),
        ("folder:x", {"skip_corrupt": 1}, "data.skip_corrupt must be true or false, not 1."),
        ("npz:x", {"test_fraction": 1.5}, "data.test_fraction must be at most 1, not 1.5."),
        ("npz:x", {"test_fraction": "a"}, "data.test_fraction must be a number, not 'a'."),
        ("npz:x", {"seed": -1}, "data.seed must be at least 0, not -1."),
    ],
)
def test_mistakes_are_one_sentence(name: str, options: dict[str, object], sentence: str) -> None:
    with pytest.raises(PromptFedError) as caught:
        open_dataset(name, **options)
    assert str(caught.value) == sentence


def test_a_missing_archive_is_downloaded(cifar10: Path, home: Path) -> None:
    assert len(open_dataset("cifar10")) == 12
    assert (home / "data" / "cifar10" / "cifar-10-python.tar.gz").read_bytes() == cifar10.read_bytes()


def test_an_added_archive_is_loaded_without_the_network(cifar10: Path, home: Path) -> None:
    where = add("cifar10", cifar10)
    cifar10.unlink()
    assert where == home / "data" / "cifar10" / "cifar-10-python.tar.gz"
    assert len(open_dataset("cifar10", limit=1)) == 7  # classes 1 … 5 once, and two test images


def test_adding_the_wrong_file_is_refused_unless_told_otherwise(cifar10: Path, home: Path) -> None:
    write_cifar10(cifar10, each=3)
    with pytest.raises(PromptFedError, match=r"has checksum sha256:.* instead of sha256:.*: not the official file"):
        add("cifar10", cifar10)
    assert not home.exists()
    add("cifar10", cifar10, verify=False)
    assert len(open_dataset("cifar10")) == 18


def test_adding_an_unknown_set_or_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PromptFedError, match=r'Unknown data set to add "cifar"; did you mean "cifar10"\?'):
        add("cifar", tmp_path)
    with pytest.raises(PromptFedError, match=r'There is no file .*gone.zip; data set "tiny-imagenet" needs tiny-'):
        add("tiny-imagenet", tmp_path / "gone.zip")


def test_cifar100_keeps_fine_and_coarse_apart(tmp_path: Path) -> None:
    write_cifar100(tmp_path / "cifar-100-python.tar.gz")
    add("cifar100", tmp_path, verify=False)
    for _ in range(2):
        assert open_dataset("cifar100").labels.tolist() == [99, 3, 99, 3]
        assert open_dataset("cifar100", labels="coarse").labels.tolist() == [19, 1, 19, 1]


def test_tiny_imagenet_by_name(tmp_path: Path) -> None:
    write_tiny(tmp_path / "t.zip")
    add("tiny-imagenet", tmp_path / "t.zip", verify=False)
    assert open_dataset("tiny-imagenet").images.shape == (5, 64, 64, 3)


@pytest.mark.parametrize("given", ["", "t10k-labels-idx1-ubyte.gz"])
def test_fashion_mnist_is_added_as_a_folder_or_by_one_of_its_files(tmp_path: Path, home: Path, given: str) -> None:
    (tmp_path / "four").mkdir()
    write_fashion(tmp_path / "four")
    assert add("fashion-mnist", tmp_path / "four" / given, verify=False) == home / "data" / "fashion-mnist"
    assert len(open_dataset("fashion-mnist")) == 7


def test_fashion_mnist_from_a_system_package_needs_no_download(tmp_path: Path) -> None:
    (tmp_path / "debian").mkdir()
    write_fashion(tmp_path / "debian")
    assert len(open_dataset("fashion-mnist", limit=1)) == 7
    found = {row.name: row for row in status()}["fashion-mnist"]
    assert (found.present, found.where) == (True, tmp_path / "debian")


def test_status_says_what_is_here_and_how_big(cifar10: Path, home: Path) -> None:
    add("cifar10", cifar10)
    rows = {row.name: row for row in status()}
    assert list(rows) == sorted(set(DATASETS) - {"csv", "dicom", "folder", "hf", "npz"})
    assert rows["cifar10"] == ("cifar10", True, home / "data" / "cifar10", cifar10.stat().st_size)
    assert rows["cifar100"] == ("cifar100", False, home / "data" / "cifar100", 169_001_437)
    assert rows["fashion-shops"].present


def test_the_second_load_reads_no_archive_until_it_is_replaced(
    cifar10: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add("cifar10", cifar10)
    first = open_dataset("cifar10")
    with monkeypatch.context() as patch:
        patch.setattr(datasets, "read_cifar10", None)
        again = open_dataset("cifar10")
    assert (first.images == again.images).all()
    assert (first.classes, first.name) == (again.classes, again.name)
    write_cifar10(cifar10, each=4)
    add("cifar10", cifar10, verify=False)
    assert len(open_dataset("cifar10")) == 24
    assert len(list((home / "data" / "cifar10" / "parsed" / "all").iterdir())) == 1  # the old copy is gone


def test_large_arrays_are_mapped_and_writing_to_them_leaves_the_file_alone(
    cifar10: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parsed, "MAPPED_BYTES", 1000)
    add("cifar10", cifar10)
    images = open_dataset("cifar10").images
    assert isinstance(images, np.memmap)
    images[:] = 0
    assert open_dataset("cifar10").images.any()


def toy(name: str = "toy") -> Dataset:
    labels = np.array([0, 1, 0, 1, 0, 1])
    test = np.array([False, False, False, False, True, True])
    images = np.arange(6, dtype=np.uint8).reshape(6, 1, 1, 1).repeat(3, -1)
    return Dataset(name, images, labels, test, ("a", "b"), labels * 0, ("toy",))


def test_a_damaged_copy_is_made_again(tmp_path: Path) -> None:
    parsed.cached(tmp_path, "key", lambda _: toy())
    (copy,) = tmp_path.iterdir()
    (copy / "images.npy").write_bytes(b"junk")
    assert parsed.cached(tmp_path, "key", lambda _: toy("new")).name == "new"
    assert parsed.cached(tmp_path, "key", lambda _: toy()).name == "new"


def test_a_folder_that_cannot_be_written_only_costs_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    with caplog.at_level(logging.WARNING, "promptfed"):
        assert parsed.cached(tmp_path / "file" / "sub", "key", lambda _: toy()).name == "toy"
    assert "could not be kept" in caplog.text


def test_fewer_takes_the_first_training_images_of_each_class() -> None:
    assert fewer(toy(), 0).images[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4, 5]
    small = fewer(toy(), 1)
    assert small.images[:, 0, 0, 0].tolist() == [0, 1, 4, 5]
    assert small.test.tolist() == [False, False, True, True]
