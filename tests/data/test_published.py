"""Published folders of classes: their layouts, the words for their classes, and which images are for testing."""

from pathlib import Path

import numpy as np
import pytest

from promptfed.core.errors import PromptFedError
from promptfed.data import Dataset, add, open_dataset
from promptfed.data.published import ALL, CAMERAS, EUROSAT
from support.small_sites import paint, zipped


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMPTFED_HOME", str(tmp_path / "home"))


def levels(data: Dataset, *, test: bool) -> list[int]:
    """Return the grey levels of the test or the training images."""
    return [int(level) for level in data.images[data.test == test, 0, 0, 0]]


def folders(root: Path, *names: str, each: int = 2, start: int = 0) -> Path:
    """Write so many images to each folder; image n of all has level n, counted from `start`."""
    for place, name in enumerate(names):
        for number in range(each):
            paint(root / name / f"image_{number + 1:04}.jpg", start + place * each + number)
    return root


# -- sets without official test images --------------------------------------------------------------------------------


def test_caltech_leaves_out_the_background_and_the_faces_that_are_there_twice(tmp_path: Path) -> None:
    names = ("BACKGROUND_Google", "Faces", "Faces_easy", "accordion", "airplanes", "car_side", "water_lilly")
    folders(tmp_path / "set" / "101_ObjectCategories", *names, each=10)
    (tmp_path / "set" / "101_ObjectCategories" / "BACKGROUND_Google" / "tmp").write_text("")
    add("caltech101", zipped(tmp_path / "set", tmp_path / "set.zip"))
    data = open_dataset("caltech101", size=2)
    assert data.classes == ("face", "accordion", "airplane", "car side", "water lily")
    assert data.images[:, 0, 0, 0].tolist() == [*range(10, 20), *range(30, 70)]
    assert [int(data.test[data.labels == label].sum()) for label in range(5)] == [3] * 5
    drawn = [levels(open_dataset("caltech101", size=2, seed=seed), test=True) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert not open_dataset("caltech101", size=2, test_fraction=0.0).test.any()


def test_eurosat_calls_uses_of_land_by_words(tmp_path: Path) -> None:
    root = folders(tmp_path / "2750", *EUROSAT, each=4)
    (root / ".DS_Store").write_text("")
    add("eurosat", tmp_path)
    data = open_dataset("eurosat", limit=2)
    assert data.images.shape == (10 * (2 + 1), 64, 64, 3)
    assert data.classes[:4] == ("annual crop land", "forest", "herbaceous vegetation land", "highway or road")
    assert data.classes[-1] == "sea or lake"
    assert data.val is None


def test_an_image_that_is_there_twice_is_never_on_both_sides(tmp_path: Path) -> None:
    for number in range(40):
        paint(tmp_path / "set" / "accordion" / f"{number}.jpg", number // 2)
        paint(tmp_path / "set" / "airplanes" / f"{number}.jpg", 100 + number)
    add("caltech101", tmp_path / "set")
    data = open_dataset("caltech101", size=2, test_fraction=0.5)
    train, test = levels(data, test=False), levels(data, test=True)
    assert not set(train) & set(test)
    assert len([level for level in test if level >= 100]) == 20
    assert 0 < len([level for level in test if level < 100]) < 20  # pairs that were drawn whole


@pytest.mark.parametrize("images", ["images", "."])
def test_office31_has_three_cameras(tmp_path: Path, images: str) -> None:
    for place, camera in enumerate(CAMERAS):
        folders(tmp_path / "Office31" / camera / images, "back_pack", "mug", each=5 + 5 * place, start=50 * place)
    add("office31", tmp_path)
    data = open_dataset("office31", size=2)
    assert (data.classes, data.domain_names) == (("back pack", "mug"), CAMERAS)
    assert np.bincount(data.domains).tolist() == [10, 20, 30]
    assert np.bincount(data.domains[data.test]).tolist() == [2, 4, 6]  # a fifth of each class at each camera


# -- official lists and folders ---------------------------------------------------------------------------------------


def pets(root: Path) -> Path:
    for level, stem in enumerate(("american_bulldog_3", "Abyssinian_1", "american_bulldog_10", "Abyssinian_2")):
        paint(root / "images" / f"{stem}.jpg", level)
    (root / "images" / "._Abyssinian_1.jpg").write_bytes(b"no image")
    (root / "images" / "Abyssinian_1.mat").write_bytes(b"no image")
    (root / "annotations").mkdir()
    (root / "annotations" / "trainval.txt").write_text("american_bulldog_3 2 2 1\nAbyssinian_1 1 1 1\n")
    (root / "annotations" / "test.txt").write_text("Abyssinian_2 1 1 1\n\namerican_bulldog_10 2 2 1\n")
    return root


def test_pets_have_official_lists(tmp_path: Path) -> None:
    add("oxford-pets", pets(tmp_path / "pets" / "data").parent)
    data = open_dataset("oxford-pets", size=2)
    assert data.classes == ("abyssinian", "american bulldog")  # by the lists' numbers
    assert (levels(data, test=False), levels(data, test=True)) == ([1, 0], [3, 2])
    assert data.labels.tolist() == [0, 0, 1, 1]


def test_lists_that_are_none_are_refused(tmp_path: Path) -> None:
    root = pets(tmp_path)
    lists = root / "annotations" / "test.txt"
    lists.write_text("Abyssinian_2\n")
    with pytest.raises(PromptFedError, match=r'annotations lists "Abyssinian_2" without a breed.s number'):
        add("oxford-pets", root)
    lists.write_text("\n")
    with pytest.raises(PromptFedError, match=r"test\.txt lists nothing; expected lines such as Abyssinian_100 1 1 1"):
        add("oxford-pets", root)
    lists.unlink()
    with pytest.raises(PromptFedError, match=r"test\.txt cannot be read as a list such as Abyssinian_100 1"):
        add("oxford-pets", root)
    lists.write_text("Abyssinian_9 1 1 1\n")
    add("oxford-pets", root)
    with pytest.raises(PromptFedError, match=r'no file .*Abyssinian_9\.jpg, which data set "oxford-pets" lists'):
        open_dataset("oxford-pets", size=2)


def test_food_has_official_lists(tmp_path: Path) -> None:
    root = folders(tmp_path / "food-101" / "images", "apple_pie", "waffles").parent
    (root / "meta").mkdir()
    (root / "meta" / "train.txt").write_text("apple_pie/image_0002\nwaffles/image_0001\n")
    (root / "meta" / "test.txt").write_text("apple_pie/image_0001\nwaffles/image_0002\n")
    add("food101", tmp_path / "food-101")
    data = open_dataset("food101", size=2)
    assert data.classes == ("apple pie", "waffles")
    assert (levels(data, test=False), levels(data, test=True)) == ([1, 2], [0, 3])


def test_or_it_is_divided_into_folders(tmp_path: Path) -> None:
    folders(tmp_path / "data", "train/apple_pie", "train/waffles", "test/apple_pie", "test/testpile", "validation/old")
    add("food101", tmp_path)
    data = open_dataset("food101", size=2, limit=1)
    assert data.classes == ("apple pie", "waffles")
    assert (levels(data, test=False), levels(data, test=True)) == ([0, 2], [4, 5])


def test_the_year_of_a_car_comes_first(tmp_path: Path) -> None:
    cars = ("Acura RL Sedan 2012", "Audi S4 Sedan 2007", "smart fortwo Convertible 2012")
    folders(tmp_path, *(f"{half}/{car}" for half in ("train", "test") for car in cars), each=1)
    add("stanford-cars", tmp_path)
    data = open_dataset("stanford-cars", size=2)
    assert data.classes == ("2012 Acura RL Sedan", "2007 Audi S4 Sedan", "2012 smart fortwo Convertible")  # by make
    assert (levels(data, test=False), levels(data, test=True)) == ([0, 1, 2], [3, 4, 5])


# -- what is not there ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.name)
def test_foreign_folders_are_refused(kind: type, tmp_path: Path) -> None:
    folders(tmp_path / "photos", "cat", "dog")
    name = str(vars(kind)["name"])
    with pytest.raises(PromptFedError, match=rf"photos holds no {name}: there is no folder with \w+/ and \w+/.* in it"):
        add(name, tmp_path / "photos")
    with pytest.raises(PromptFedError, match=rf'Data set "{name}" is not on this machine and cannot be downloaded; '):
        open_dataset(name)
