"""The embedded set: real Fashion-MNIST photographs, four styles, the same bytes everywhere."""

import hashlib
import io
import lzma
import os
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from promptfed.core.errors import PromptFedError
from promptfed.data import open_dataset
from promptfed.data.dataset import Dataset, Images
from promptfed.data.shops import CLASSES, EMBEDDED, SHOPS, load_shops, style
from support.scripts import load_script

DEBIAN = Path(os.environ.get("PROMPTFED_FASHION_MNIST", "/usr/share/datasets/fashion-mnist"))
STUDIO, CATALOGUE, SKETCH, STREET = range(4)


@pytest.fixture(scope="module")
def shops() -> Dataset:
    return load_shops()


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load_script("tools/build_fashion_shops.py")


def embedded() -> Images:
    grey: Images = np.load(io.BytesIO(lzma.decompress(EMBEDDED.read_bytes())))
    return grey


def test_every_machine_loads_the_same_bytes(shops: Dataset) -> None:
    checksum = hashlib.sha256(shops.images.tobytes()).hexdigest()
    assert checksum == "abf5752406ee76f9baea6e2b30679063a835c20f119258c3e47d8e3e8e3fe587"


def test_the_files_in_the_package_stay_under_four_megabytes() -> None:
    assert len(EMBEDDED.read_bytes()) < 4_000_000


def test_the_licence_travels_with_the_photographs() -> None:
    notice = (EMBEDDED.parent / "README.md").read_text(encoding="utf-8")
    assert "The MIT License" in notice
    assert "2017 Zalando SE" in notice


def test_shapes_and_names(shops: Dataset) -> None:
    assert shops.images.shape == (8000, 32, 32, 3)
    assert shops.images.dtype == np.uint8
    assert shops.labels.dtype == shops.domains.dtype == np.int64
    assert shops.test.dtype == bool
    assert shops.classes == CLASSES
    assert shops.domain_names == SHOPS == ("studio", "catalogue", "sketch", "street")
    assert shops.mean == shops.std == (0.5, 0.5, 0.5)


def test_every_shop_has_150_training_and_50_test_images_of_each_class(shops: Dataset) -> None:
    for split, each in ((~shops.test, 150), (shops.test, 50)):
        counts = np.zeros((4, 10), int)
        np.add.at(counts, (shops.domains[split], shops.labels[split]), 1)
        assert (counts == each).all()


def test_one_class_alone_is_a_concept_in_four_styles(shops: Dataset) -> None:
    boots = load_shops("Ankle boot")
    rows = shops.labels == CLASSES.index("Ankle boot")
    assert (boots.images == shops.images[rows]).all()
    assert (boots.classes, set(boots.labels.tolist())) == (("Ankle boot",), {0})
    assert (boots.test == shops.test[rows]).all()
    assert np.bincount(boots.domains[~boots.test]).tolist() == [150, 150, 150, 150]


def test_an_unknown_class_is_refused_with_the_nearest() -> None:
    with pytest.raises(PromptFedError, match=r'Unknown class "Ankle boots" in data\.only; did you mean "Ankle boot"\?'):
        load_shops("Ankle boots")


def test_no_photograph_is_in_two_shops() -> None:
    flat = embedded().reshape(4, -1, 784)
    sets = [{row.tobytes() for row in shop} for shop in flat]
    assert len(set().union(*sets)) == sum(map(len, sets)) == 8000


def test_studio_shows_the_photograph_as_it_is() -> None:
    grey = np.arange(784, dtype=np.uint8).reshape(1, 28, 28)
    shown = style(grey, STUDIO, np.array([7]))
    assert (shown[:, 2:30, 2:30] == grey[..., None]).all()
    assert shown.sum() == 3 * int(grey.sum())


def test_catalogue_is_dark_on_warm_white() -> None:
    grey = np.zeros((1, 28, 28), np.uint8)
    grey[0, 0, 0], grey[0, 0, 1] = 255, 51
    shown = style(grey, CATALOGUE, np.array([0]))
    assert shown[0, 0, 0].tolist() == [255, 246, 226]
    assert shown[0, 2, 2].tolist() == [70, 38, 20]
    assert shown[0, 2, 3].tolist() == [218, 204, 184]  # a fifth of the way from paper to ink


def test_sketch_draws_only_where_brightness_changes() -> None:
    grey = np.zeros((1, 28, 28), np.uint8)
    grey[0, 4:20, 4:20] = 200
    drawn = (style(grey, SKETCH, np.array([0]))[0] != [236, 240, 244]).any(-1)
    expected = np.zeros((32, 32), bool)
    for edge in (5, 21):  # the last row and column before each change
        expected[edge, 6:22] = expected[6:22, edge] = True
    assert (drawn == expected).all()


def test_street_has_its_own_wall_and_dye_for_every_index() -> None:
    grey = np.zeros((3, 28, 28), np.uint8)
    grey[:, 10:18, 10:18] = 255
    shown = style(grey, STREET, np.array([5, 6, 5]))
    assert (shown[0] == shown[2]).all()
    assert (shown[0, 14, 14] != shown[1, 14, 14]).any()
    assert (shown[0, 0] != shown[1, 0]).any()
    assert len(np.unique(shown[0, 12:20, 12:20].reshape(-1, 3), axis=0)) == 1


def test_street_clothes_stand_out_from_the_wall(shops: Dataset) -> None:
    street = shops.images[shops.domains == STREET].astype(int).sum(-1)
    covered = np.pad(embedded().reshape(4, -1, 28, 28)[STREET] > 128, ((0, 0), (2, 2), (2, 2)))
    assert street[covered].mean() > 2 * street[~covered].mean()


@pytest.mark.parametrize("shop", range(4))
def test_a_style_does_not_depend_on_the_company_an_image_is_in(shop: int) -> None:
    grey = embedded()[shop, :3, 0]
    index = np.array([3, 11, 4000])
    together = style(grey, shop, index)
    alone = np.concatenate([style(grey[n : n + 1], shop, index[n : n + 1]) for n in range(3)])
    assert (together == alone).all()


def test_dealing_takes_the_first_photographs_of_each_class_in_turn(tool: ModuleType) -> None:
    labels = np.tile(np.arange(10, dtype=np.uint8), 9)
    images = np.repeat(np.arange(90, dtype=np.uint8), 784).reshape(90, 28, 28)
    dealt = tool.deal(images, labels, 2)
    assert dealt.shape == (4, 2, 10, 28, 28)
    assert dealt[:, :, 3, 0, 0].tolist() == [[3, 43], [13, 53], [23, 63], [33, 73]]


def test_packing_loses_nothing(tool: ModuleType) -> None:
    grey = embedded()[:, :1, :2]
    assert (np.load(io.BytesIO(lzma.decompress(tool.pack(grey)))) == grey).all()


def test_the_tool_rebuilds_the_embedded_photographs(tool: ModuleType) -> None:
    if not DEBIAN.is_dir():
        missing = f"no {DEBIAN}: install Debian's dataset-fashion-mnist, or point PROMPTFED_FASHION_MNIST at the files"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(missing)
    assert tool.build(DEBIAN).tobytes() == embedded().tobytes()


def test_one_class_is_opened_by_its_name() -> None:
    boots = open_dataset("fashion-shops", only="Ankle boot", limit=2)
    assert (len(boots.classes), int((~boots.test & boots.dealt).sum())) == (1, 8)
