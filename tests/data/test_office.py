"""Office-Caltech10: FedBN's lists and truncation, FedAPT's split, the layout, and the real files where at hand."""

import json
import os
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from promptfed.core.errors import PromptFedError
from promptfed.data import Dataset, add, open_dataset
from promptfed.data.deal import Flags
from promptfed.data.office import DOMAINS
from promptfed.data.partition import make_partition
from promptfed.data.split import Split, evaluated_on
from support.small_sites import paint, write_office

SIZES = {"amazon": 12, "caltech": 15, "dslr": 10, "webcam": 11}


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMPTFED_HOME", str(tmp_path / "home"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_office(tmp_path / "office", SIZES, test=3)


def levels(data: Dataset, mask: Flags, domain: int) -> list[int]:
    """Return the grey levels of the masked images of one domain."""
    return [int(level) for level in data.images[mask & (data.domains == domain), 0, 0, 0]]


def test_truncation_takes_the_first_to_train_and_the_last_to_validate(root: Path) -> None:
    add("office-caltech10", root)
    data = open_dataset("office-caltech10", size=2)
    assert data.val is not None
    assert data.images.shape == (4 * (5 + 4 + 3), 2, 2, 3)  # int(0.5 · 10), int(0.4 · 10), all test images
    for domain, count in enumerate(SIZES.values()):
        assert levels(data, data.dealt & ~data.test, domain) == [0, 1, 2, 3, 4]
        assert levels(data, data.val, domain) == list(range(count - 4, count))
        assert levels(data, data.test, domain) == list(range(count, count + 3))
    assert data.domain_names == DOMAINS
    assert [data.classes[label] for label in data.labels[:2]] == ["bike", "mug"]
    assert data.classes[0] == "back pack"


def test_without_truncation_the_last_fifth_of_each_list_validates(root: Path) -> None:
    add("office-caltech10", root)
    data = open_dataset("office-caltech10", size=2, truncate=False)
    assert data.val is not None
    assert len(data) == 12 + 15 + 10 + 11 + 4 * 3
    assert [len(levels(data, data.val, domain)) for domain in range(4)] == [2, 3, 2, 2]
    assert levels(data, data.val, 1) == [12, 13, 14]


def test_fedapts_split_tests_on_a_fifth_of_every_class_and_camera(root: Path) -> None:
    add("office-caltech10", root)
    data = open_dataset("office-caltech10", size=2, split="fedapt")
    assert data.val is None
    sizes = [15, 18, 13, 14]  # FedBN's training and test images together
    assert np.bincount(data.domains).tolist() == sizes
    for domain, count in enumerate(sizes):
        for label, name in enumerate(data.classes):
            own = (data.domains == domain) & (data.labels == label)
            images = {"bike": (count + 1) // 2, "mug": count // 2}.get(name, 0)
            assert own.sum() == images
            assert data.test[own].sum() == int(images / 5 + 0.5)
    assert sorted(levels(data, np.ones(len(data), bool), 2)) == list(range(13))


def test_fedapts_split_does_not_depend_on_fedbns_lists(root: Path) -> None:
    add("office-caltech10", root)
    tested = [levels(data, data.test, 1) for data in [open_dataset("office-caltech10", size=2, split="fedapt")]]
    lists = json.loads((root / "fedbn_split.json").read_text())
    turned = {name: {"train": one["test"][::-1], "test": one["train"]} for name, one in lists.items()}
    (root / "fedbn_split.json").write_text(json.dumps(turned))
    data = open_dataset("office-caltech10", size=2, split="fedapt", truncate=False)
    assert [levels(data, data.test, 1)] == tested


def test_limit_counts_training_images_of_each_class_and_domain(root: Path) -> None:
    add("office-caltech10", root)
    data = open_dataset("office-caltech10", size=2, limit=1)
    assert levels(data, data.dealt & ~data.test, 2) == [0, 1]
    assert len(data) == 4 * (2 + 4 + 3)


def test_the_folder_may_lie_one_deeper(root: Path) -> None:
    assert add("office-caltech10", root.parent) == root.parent
    assert len(open_dataset("office-caltech10", size=2)) == 48


def test_a_listed_file_that_is_missing_or_corrupt_is_named(root: Path) -> None:
    add("office-caltech10", root)
    bad = root / "dslr" / "mug" / "frame_0001.jpg"
    bad.write_bytes(b"no image")
    with pytest.raises(PromptFedError, match=r"frame_0001\.jpg cannot be read as an image"):
        open_dataset("office-caltech10", size=2)
    data = open_dataset("office-caltech10", size=2, skip_corrupt=True)
    assert levels(data, data.dealt & ~data.test, 2) == [0, 2, 3, 4]
    bad.unlink()
    with pytest.raises(PromptFedError, match=r'no file .*frame_0001\.jpg, which data set "office-caltech10" lists'):
        open_dataset("office-caltech10", size=2, skip_corrupt=True)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "is not a table of lists .*JSONDecodeError"),
        ("[]", "is not a table of lists .*TypeError"),
        ("{}", "is not a table of lists .*KeyError: 'amazon'"),
        (json.dumps({name: {"train": ["x"], "test": 3} for name in DOMAINS}), "ValueError: a list of paths is missing"),
        (json.dumps({name: {"train": ["a/cat/1.jpg"], "test": []} for name in DOMAINS}), "in none of the ten classes"),
    ],
    ids=["torn", "list", "empty", "no list", "class"],
)
def test_foreign_lists_are_refused(tmp_path: Path, content: str, sentence: str) -> None:
    (tmp_path / "fedbn_split.json").write_text(content)
    with pytest.raises(PromptFedError, match=sentence):
        add("office-caltech10", tmp_path)


def test_too_few_images_to_truncate_is_an_error(tmp_path: Path) -> None:
    add("office-caltech10", write_office(tmp_path / "o", dict.fromkeys(DOMAINS, 1)))
    with pytest.raises(PromptFedError, match=r'"amazon" .* without a training image: the shortest .* has 1'):
        open_dataset("office-caltech10", size=2)


def test_a_changed_list_is_decoded_again(root: Path) -> None:
    add("office-caltech10", root)
    assert open_dataset("office-caltech10", size=2).images.max() == 17
    paint(root / "caltech" / "mug" / "frame_0017.jpg", 99)
    os.utime(root / "caltech" / "mug" / "frame_0017.jpg", ns=(1, 1))
    assert open_dataset("office-caltech10", size=2).images.max() == 99


@pytest.mark.skipif("PROMPTFED_SHARED_DATA" not in os.environ, reason="PROMPTFED_SHARED_DATA names no folder")
def test_the_real_lists_have_fedbns_sizes() -> None:
    add("office-caltech10", Path(os.environ["PROMPTFED_SHARED_DATA"]) / "office_caltech10.zip")
    whole = open_dataset("office-caltech10", size=8, truncate=False)
    train, test = (np.bincount(whole.domains[mask]).tolist() for mask in (~whole.test, whole.test))
    assert (train, test) == ([766, 898, 125, 236], [192, 225, 32, 59])
    data = open_dataset("office-caltech10", size=8)
    for split, sizes in zip(get_args(Split), (test, [50] * 4), strict=True):
        partition = make_partition("domain", {}, evaluated_on(data, split, 0), 4, 0)
        assert [len(own) for own in partition.train] == [62] * 4
        assert [len(own) for own in partition.test] == sizes


@pytest.mark.skipif("PROMPTFED_SHARED_DATA" not in os.environ, reason="PROMPTFED_SHARED_DATA names no folder")
def test_the_real_images_have_fedapts_sizes() -> None:
    add("office-caltech10", Path(os.environ["PROMPTFED_SHARED_DATA"]) / "office_caltech10.zip")
    data = open_dataset("office-caltech10", size=8, split="fedapt")
    train, test = (np.bincount(data.domains[mask]).tolist() for mask in (~data.test, data.test))
    assert (train, test) == ([766, 898, 126, 237], [192, 225, 31, 58])
