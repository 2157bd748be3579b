import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from promptfed.core.errors import PromptFedError
from promptfed.core.files import unsealed
from promptfed.data import open_dataset
from promptfed.data.dataset import Dataset
from promptfed.data.partition import Partition, make_partition
from promptfed.data.shares import DescribedPartition
from promptfed.data.split import evaluated_on


def dataset_of(labels: list[int], domains: list[int]) -> Dataset:
    """Two classes and two domains; the last two images are for testing."""
    return Dataset(
        name="toy",
        images=np.zeros((len(labels), 1, 1, 3), dtype=np.uint8),
        labels=np.array(labels),
        test=np.arange(len(labels)) >= len(labels) - 2,
        classes=("class 0", "class 1"),
        domains=np.array(domains),
        domain_names=("domain 0", "domain 1"),
    )


def small() -> tuple[Partition, Dataset]:
    dataset = dataset_of([0, 1, 0, 1, 1, 0], [0, 1, 1, 0, 0, 1])
    return Partition("mine", (np.array([2, 0]), np.array([1, 3])), (np.array([4]), np.zeros(0, np.int64))), dataset


def test_value_is_sorted_read_only_and_counted() -> None:
    partition, dataset = small()
    assert [part.tolist() for part in partition.train] == [[0, 2], [1, 3]]
    assert partition.counts(dataset).tolist() == [[2, 0], [0, 2]]
    assert partition.counts(dataset).dtype == np.int64
    assert partition == small()[0]
    assert len({partition, small()[0]}) == 1
    assert partition != replace(partition, test=partition.test[::-1])
    with pytest.raises(ValueError, match="read-only"):
        partition.train[0][0] = 5


def test_hash_is_sha256_of_little_endian_counts_and_indices() -> None:
    # SHA-256 of 2 | 2 0 2 | 1 4 | 2 1 3 | 0 as 64-bit little-endian integers
    expected = "sha256:d9191abefb08fe14e07a6858d3a930cdd47b850387dad468d643a6eea8ae29bb"
    partition = small()[0]
    assert partition.hash == expected
    narrow = replace(partition, train=tuple(part.astype(">i4") for part in partition.train))
    assert narrow.hash == expected
    moved = replace(partition, train=(partition.train[0], partition.train[1][:1]))
    assert moved.hash != expected


@pytest.mark.parametrize(
    ("train", "test", "sentence"),
    [
        ([[0], []], [[], []], "leaves client 1 of 2 without a training image"),
        ([[0], [1]], [[], [0]], "uses image 0 more than once"),
        ([[0, 0]], [[]], "uses image 0 more than once"),
        ([[0], [0]], [[], []], "uses image 0 more than once"),
        ([[-1]], [[]], "uses image -1"),
        ([[0]], [], "1 training and 0 test lists"),
        ([], [], "0 training and 0 test lists"),
    ],
)
def test_a_broken_value_is_refused(train: list[list[int]], test: list[list[int]], sentence: str) -> None:
    with pytest.raises(PromptFedError, match=sentence):
        Partition("x", tuple(map(np.array, train)), tuple(map(np.array, test)))


@pytest.mark.parametrize(
    ("train", "test"), [([[0, 0], [1]], [[], []]), ([[0], [1]], [[1], []]), ([[0], [0]], [[1], [1]])]
)
def test_images_repeat_in_the_training_of_several_clients_alone(train: list[list[int]], test: list[list[int]]) -> None:
    with pytest.raises(PromptFedError, match="more than once"):
        Partition("x", tuple(map(np.array, train)), tuple(map(np.array, test)), repeats=True)


def test_a_partition_that_repeats_comes_back_from_its_file(tmp_path: Path) -> None:
    _, dataset = small()
    made = Partition("x", (np.array([0, 2]), np.array([2, 3])), (np.array([4]), np.array([5])), repeats=True)
    made.save(tmp_path / "partition.json", dataset)
    assert json.loads((tmp_path / "partition.json").read_text())["repeats"] is True
    loaded = Partition.load(tmp_path / "partition.json", dataset)
    assert (loaded, loaded.repeats) == (made, True)
    edited(tmp_path / "partition.json", {"repeats": False})
    with pytest.raises(PromptFedError, match="uses image 2 more than once"):
        Partition.load(tmp_path / "partition.json", dataset)


def test_file_says_what_the_report_needs(tmp_path: Path) -> None:
    partition, dataset = small()
    partition.save(tmp_path / "new" / "partition.json", dataset)
    assert unsealed((tmp_path / "new" / "partition.json").read_text()) == {
        "name": "mine",
        "hash": partition.hash,
        "dataset": "toy",
        "images": 6,
        "classes": ["class 0", "class 1"],
        "domain_names": ["domain 0", "domain 1"],
        "clients": [
            {"train": [0, 2], "test": [4], "counts": [2, 0], "domains": [1, 1]},
            {"train": [1, 3], "test": [], "counts": [0, 2], "domains": [1, 1]},
        ],
    }
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["partition.json"]


def edited(path: Path, change: Mapping[str, object], client: Mapping[str, object] | None = None) -> None:
    document = unsealed(path.read_text())
    document.update(change)
    document["clients"][0].update(client or {})
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("change", "client", "sentence"),
    [
        ({}, {"train": [0]}, "damaged or was edited"),
        ({}, {"train": [2, 0]}, "damaged or was edited"),
        ({}, {"test": [5]}, "damaged or was edited"),
        ({}, {"train": [0, True]}, "damaged or was edited"),
        ({}, {"train": [0, 2.0]}, "damaged or was edited"),
        ({}, {"train": [-1]}, "damaged or was edited"),
        ({}, {"train": [2**70]}, "damaged or was edited"),
        ({}, {"train": None}, "damaged or was edited"),
        ({}, {"train": {}}, "damaged or was edited"),
        ({}, {"train": "02"}, "damaged or was edited"),
        ({}, {"counts": [1, 1]}, "do not fit the labels"),
        ({"hash": "sha256:0"}, {}, "damaged or was edited"),
        ({"name": 3}, {}, "damaged or was edited"),
        ({"dataset": "cifar10"}, {}, 'splits the data set "cifar10" with 6 images, not "toy" with 6 images'),
        ({"images": 7}, {}, 'divides 7 images of the data set "toy", which has 6 now; put back'),
    ],
)
def test_edits_are_noticed(tmp_path: Path, change: dict[str, object], client: dict[str, object], sentence: str) -> None:
    partition, dataset = small()
    path = tmp_path / "partition.json"
    partition.save(path, dataset)
    edited(path, change, client)
    with pytest.raises(PromptFedError, match=sentence) as caught:
        Partition.load(path, dataset)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b"3", b"\xff\xfe", b'{"name": "x"}', b"[" * 100_000])
def test_other_files_are_refused(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "partition.json"
    path.write_bytes(text)
    with pytest.raises(PromptFedError, match="damaged or was edited"):
        Partition.load(path, small()[1])


def test_every_torn_end_is_noticed(tmp_path: Path) -> None:
    partition, dataset = small()
    path = tmp_path / "partition.json"
    partition.save(path, dataset)
    whole = path.read_bytes()
    for length in range(len(whole) - 2):
        path.write_bytes(whole[:length])
        with pytest.raises(PromptFedError, match="damaged or was edited"):
            Partition.load(path, dataset)


def test_images_beyond_the_data_set_and_changed_labels(tmp_path: Path) -> None:
    partition, dataset = small()
    path = tmp_path / "partition.json"
    larger = dataset_of([0, 1] * 10, [0] * 20)
    replace(partition, test=(np.array([19]), np.array([18]))).save(path, larger)
    edited(path, {"images": 6})
    with pytest.raises(PromptFedError, match='beyond the 6 of "toy"'):
        Partition.load(path, dataset)
    partition.save(path, dataset)
    with pytest.raises(PromptFedError, match="do not fit the labels"):
        Partition.load(path, replace(dataset, labels=1 - dataset.labels))


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    partition, dataset = small()
    path = tmp_path / "partition.json"
    partition.save(path, dataset)
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(PromptFedError, match=r"cannot be written: No space left on device\."):
        replace(partition, name="other").save(path, dataset)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["partition.json"]
    with pytest.raises(PromptFedError, match="cannot be written"):
        partition.save(path / "below" / "partition.json", dataset)


def test_a_reader_with_the_old_file_open_keeps_the_old_file(tmp_path: Path) -> None:
    partition, dataset = small()
    path = tmp_path / "partition.json"
    partition.save(path, dataset)
    with path.open() as reader:
        replace(partition, name="other").save(path, dataset)
        assert json.load(reader)["name"] == "mine"
    assert Partition.load(path, dataset).name == "other"


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(PromptFedError, match="There is no partition file"):
        Partition.load(tmp_path / "none.json", small()[1])
    with pytest.raises(PromptFedError, match="cannot be read"):
        Partition.load(tmp_path, small()[1])


def test_a_file_made_for_another_split_is_refused(tmp_path: Path) -> None:
    whole = open_dataset("fashion-shops", limit=10)
    held_out = evaluated_on(whole, "val", 0)
    for dataset, other in ((held_out, whole), (whole, held_out)):
        path = tmp_path / "p.json"
        make_partition("iid", {}, dataset, 4, 0).save(path, dataset)
        assert len(make_partition(f"file:{path}", {}, dataset, 4, 0)) == 4
        with pytest.raises(PromptFedError, match="it was made for another evaluation split"):
            make_partition(f"file:{path}", {}, other, 4, 0)
    make_partition("pfllib-iid", {}, whole, 4, 0).save(path, whole)
    assert len(make_partition(f"file:{path}", {}, whole, 4, 0)) == 4  # it tests on training images, as that code does


def test_wrong_number_of_clients_for_a_file_and_negative_seed(tmp_path: Path) -> None:
    partition, dataset = small()
    partition.save(tmp_path / "p.json", dataset)
    with pytest.raises(PromptFedError, match=r"has 2 clients; use 2 clients, not 3\."):
        make_partition(f"file:{tmp_path / 'p.json'}", {}, dataset, 3, 0)
    with pytest.raises(PromptFedError, match="seed must be a whole number from 0, not -1"):
        make_partition("iid", {}, dataset, 2, -1)


# -- read without the data set ----------------------------------------------------------------------------------------


def test_a_file_describes_the_images(tmp_path: Path) -> None:
    partition, dataset = small()
    partition.save(tmp_path / "partition.json", dataset)
    found = DescribedPartition.load(tmp_path / "partition.json")
    assert found.partition == partition
    assert found.classes == dataset.classes
    assert found.counts.tolist() == partition.counts(dataset).tolist()
    assert found.domains.tolist() == [[1, 1], [1, 1]]


@pytest.mark.parametrize(
    ("key", "value"),
    [("classes", ["one"]), ("classes", 3), ("domain_names", None), ("clients", []), ("hash", "sha256:0"), ("name", 4)],
)
def test_a_description_that_does_not_fit_is_refused(key: str, value: object, tmp_path: Path) -> None:
    path = tmp_path / "partition.json"
    small()[0].save(path, small()[1])
    path.write_text(json.dumps(unsealed(path.read_text()) | {key: value}))
    with pytest.raises(PromptFedError, match="damaged or was edited"):
        DescribedPartition.load(path)


def test_edited_counts_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "partition.json"
    small()[0].save(path, small()[1])
    text = json.dumps(unsealed(path.read_text()), separators=(",", ":"))
    path.write_text(text.replace('"counts":[2,0]', '"counts":[2,1]'))
    with pytest.raises(PromptFedError, match="damaged or was edited"):
        DescribedPartition.load(path)
