"""Dermoscopic-FL: PRR-FL's lists, images found by id, sites that are not there, and the real files at hand."""

import csv
import os
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from promptfed.core.errors import PromptFedError
from promptfed.data import add, open_dataset
from promptfed.data.partition import make_partition
from promptfed.data.split import Split, evaluated_on
from support.small_sites import CSV, paint, write_csvs, zipped

NAME = "dermoscopic-fl"
OFFICIAL = {"A": (2091, 298, 598), "B": (2708, 386, 774), "C": (1144, 163, 328), "D": (1400, 199, 401)}
SMALL = {"A": (6, 2, 3), "B": (4, 1, 2), "C": (3, 1, 1), "D": (5, 2, 2)}


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMPTFED_HOME", str(tmp_path / "home"))


@pytest.fixture
def lists(tmp_path: Path) -> Path:
    """Lists of four sites; the images of the first three, 23 of 32, are in `images` in folders of two depths."""
    ids = write_csvs(tmp_path / "lists", SMALL)
    for n, name in enumerate(ids[:23]):
        paint(tmp_path / "images" / ("nv" if n % 2 else "part 1/mel") / f"{name}.jpg", n)
    return tmp_path / "lists"


def test_lists_and_images_are_added_one_after_the_other(lists: Path, tmp_path: Path) -> None:
    add(NAME, zipped(lists, tmp_path / "splits.zip"))
    add(NAME, tmp_path / "images")
    data = open_dataset(NAME, size=2)
    assert data.val is not None
    assert data.images[:, 0, 0, 0].tolist() == list(range(23))
    assert data.labels[:11].tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 0, 1, 2]
    assert data.classes == ("nevus", "benign keratosis", "melanoma")
    assert data.domain_names == ("vidir_modern", "vidir_molemax", "rosendahl")
    for mask, column in ((data.dealt & ~data.test, 0), (data.val, 1), (data.test, 2)):
        assert np.bincount(data.domains[mask]).tolist() == [SMALL[site][column] for site in "ABC"]


def test_two_zips_of_one_name_are_two_parts(lists: Path, tmp_path: Path) -> None:
    for part in (lists, tmp_path / "images"):
        (tmp_path / f"of {part.name}").mkdir()
        add(NAME, zipped(part, tmp_path / f"of {part.name}" / "data.zip"))
    assert len(open_dataset(NAME, size=2)) == 23


def test_what_was_added_last_goes_first(lists: Path, tmp_path: Path) -> None:
    add(NAME, tmp_path)
    paint(tmp_path / "better" / "ISIC_0000002.jpg", 200)
    add(NAME, tmp_path / "better")
    assert open_dataset(NAME, size=2).images[:4, 0, 0, 0].tolist() == [0, 1, 200, 3]


def test_one_folder_with_everything(lists: Path, tmp_path: Path) -> None:
    add(NAME, tmp_path)
    data = open_dataset(NAME, size=2, sites="AC")
    assert np.bincount(data.domains).tolist() == [11, 5]
    assert data.domain_names == ("vidir_modern", "rosendahl")
    partition = make_partition("domain", {}, data, 2, seed=0)
    assert [(len(train), len(test)) for train, test in zip(partition.train, partition.test, strict=True)] == [
        (6, 3),
        (3, 1),
    ]


def test_limit_counts_training_images_of_each_class_and_site(lists: Path, tmp_path: Path) -> None:
    add(NAME, tmp_path)
    data = open_dataset(NAME, size=2, limit=1)
    assert np.bincount(data.domains[data.dealt & ~data.test]).tolist() == [3, 3, 3]


def test_a_site_without_images_says_what_to_do(lists: Path, tmp_path: Path) -> None:
    add(NAME, tmp_path)
    with pytest.raises(PromptFedError) as caught:
        open_dataset(NAME, sites="ABCD")
    assert str(caught.value) == (
        "5 of 5 images of train_clientD.csv are not here, such as ISIC_0000023; add them with "
        "`promptfed data add dermoscopic-fl PATH`, or leave site D out of data.sites."
    )


def test_images_without_lists_say_what_to_do(lists: Path, tmp_path: Path) -> None:
    add(NAME, tmp_path / "images")
    with pytest.raises(PromptFedError, match=r"There is no train_clientA\.csv in .*images; `promptfed data add derm"):
        open_dataset(NAME)


@pytest.mark.parametrize("sites", ["", "BA", "AA", "ABE", "abc"])
def test_sites_are_letters_in_order(sites: str) -> None:
    with pytest.raises(PromptFedError, match=r"data\.sites must be some of the letters ABCD, in order, not"):
        open_dataset(NAME, sites=sites)


@pytest.mark.parametrize("content", ["image_id\nx\n", CSV + "ISIC_0,3,0\n", CSV + "ISIC_0,nv,0\n", CSV + "ISIC_0\n"])
def test_foreign_lists_are_refused(lists: Path, tmp_path: Path, content: str) -> None:
    (lists / "csv_folder" / "clientA" / "test_clientA.csv").write_text(content)
    add(NAME, tmp_path)
    with pytest.raises(PromptFedError, match=r"test_clientA\.csv is not a list with columns image_id and label"):
        open_dataset(NAME)


def test_a_folder_with_neither_lists_nor_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PromptFedError, match=r"holds neither lists such as train_clientA\.csv nor images"):
        add(NAME, tmp_path)


def test_the_official_sizes_come_out(tmp_path: Path) -> None:
    """All images are links to one file, which makes 10,490 of them cheap."""
    ids = write_csvs(tmp_path / "lists", OFFICIAL)
    paint(tmp_path / "one.jpg", 7)
    (tmp_path / "images").mkdir()
    for name in ids:
        (tmp_path / "images" / f"{name}.jpg").hardlink_to(tmp_path / "one.jpg")
    add(NAME, tmp_path)
    data = open_dataset(NAME, size=1, sites="ABCD")
    assert len(data) == 10_490
    for split, column in zip(get_args(Split), (2, 1), strict=True):
        partition = make_partition("domain", {}, evaluated_on(data, split, 0), 4, seed=0)
        assert [len(own) for own in partition.train] == [sizes[0] for sizes in OFFICIAL.values()]
        assert [len(own) for own in partition.test] == [sizes[column] for sizes in OFFICIAL.values()]


@pytest.mark.skipif("PROMPTFED_SHARED_DATA" not in os.environ, reason="PROMPTFED_SHARED_DATA names no folder")
def test_the_real_lists_and_images() -> None:
    shared = Path(os.environ["PROMPTFED_SHARED_DATA"])
    where = add(NAME, shared / "dermoscopic_fl_splits.zip")
    add(NAME, shared / "ham10000.zip")
    data = open_dataset(NAME, size=4)
    assert data.val is not None
    for mask, column in ((data.dealt & ~data.test, 0), (data.val, 1), (data.test, 2)):
        assert np.bincount(data.domains[mask]).tolist() == [OFFICIAL[site][column] for site in "ABC"]
    assert np.bincount(data.labels[data.test & (data.domains == 1)]).tolist() == [744, 25, 5]
    for site, count in OFFICIAL.items():
        rows = [_lesions(where / "csv_folder" / f"client{site}" / f"{s}_client{site}.csv") for s in ("train", "test")]
        assert len(rows[0]) == count[0]
        # the official lists show some lesions in training and in testing, as docs/data.md says
        assert bool(set(rows[0]) & set(rows[1])) is (site in "AC")


def _lesions(path: Path) -> list[str | None]:
    with path.open(newline="") as file:
        return [row.get("lesion_id") for row in csv.DictReader(file)]
