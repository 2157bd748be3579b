"""The images and names for pretraining, and the benchmark sets that share no image with them, from made-up sets."""

import json
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from promptfed.data import open_dataset
from support.scripts import ROOT, load_script

CODES = {"0": ["n01440764", "tench"], "1": ["n02012849", "crane"], "2": ["n03126707", "crane"]}
PETS = "pets/oxford-pets-datasets/data"


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setenv("PROMPTFED_HOME", str(tmp_path / "home"))
    monkeypatch.syspath_prepend(ROOT / "tools")
    return load_script("tools/lit_pool.py")


def photograph(seed: int) -> Image.Image:
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), np.uint8)
    return Image.fromarray(coarse).resize((240, 200), Image.Resampling.BICUBIC)


def put(file: Path, seed: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    photograph(seed).save(file, "JPEG", quality=95)


def put_again(file: Path, seed: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    photograph(seed).resize((84, 84)).save(file, "JPEG", quality=60)


def write_text(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, "utf-8")


def names_in(folder: Path) -> list[str]:
    return sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*.*"))


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    raw = tmp_path / "raw"
    for pet, seed in (("english_setter_1", 1), ("english_setter_2", 2), ("Bombay_7", 3), ("Bombay_8", 4)):
        put(raw / PETS / f"images/{pet}.jpg", seed)
    write_text(raw / PETS / "annotations/trainval.txt", "english_setter_1 1 2 3\nBombay_7 2 1 1\n")
    write_text(raw / PETS / "annotations/test.txt", "english_setter_2 1 2 3\nBombay_8 2 1 1\n")
    for number in range(33):
        put(raw / f"caltech101/101_ObjectCategories/Leopards/image_{number:04}.jpg", 100 + number)
    put(raw / "caltech101/101_ObjectCategories/Faces_easy/image_0001.jpg", 200)
    write_text(raw / "imagenet/imagenet_class_index.json", json.dumps(CODES))
    for folder in CODES:
        put(raw / f"imagenet/ILSVRC2012_img_val_subset/{folder}/a.JPEG", 300 + int(folder))
    put_again(raw / "imagenet/ILSVRC2012_img_val_subset/0/b.JPEG", 2)
    put(raw / "dogs/dogs_split/train/n02112018-Toy_dog/a.jpg", 310)
    put(raw / "dogs/dogs_split/test/n02112018-Toy_dog/b.jpg", 311)
    put(raw / "cub/train/002.Laysan_Albatross/a.jpg", 320)
    put_again(raw / "flickr8k/Flicker8k_Dataset/1.jpg", 5)
    put(raw / "flickr8k/Flicker8k_Dataset/2.jpg", 330)
    said = [f"{image}.jpg#{number}\tA dog runs {number} .\n" for image in (1, 2, 3) for number in range(5)]
    write_text(raw / "flickr8k/Flicker8k_text/Flickr8k.token.txt", "".join(said))
    return raw


def test_benchmark_sets_have_readable_classes_and_the_sets_own_splits(
    tool: ModuleType, raw: Path, tmp_path: Path
) -> None:
    row = tool.gather(raw, tmp_path / "out", None, [])["bench"]
    pets = tmp_path / "out/bench/pets"
    assert names_in(pets / "train") == ["bombay/Bombay_7.jpg", "english setter/english_setter_1.jpg"]
    assert names_in(pets / "test") == ["bombay/Bombay_8.jpg", "english setter/english_setter_2.jpg"]
    assert {key: row["pets"][key] for key in ("classes", "train", "test")} == {"classes": 2, "train": 2, "test": 2}
    train, test = (names_in(tmp_path / "out/bench/caltech101" / split) for split in ("train", "test"))
    assert (len(train), len(test), len({*train, *test})) == (30, 3, 33)
    assert {name.split("/")[0] for name in train} == {"leopard"}
    with Image.open(pets / "train/bombay/Bombay_7.jpg") as image:
        assert image.size == (176, 147)
    assert [*open_dataset(f"folder:{pets}").classes] == ["bombay", "english setter"]


def test_an_image_of_a_benchmark_set_or_a_kept_out_zip_is_not_in_the_pool(
    tool: ModuleType, raw: Path, tmp_path: Path
) -> None:
    put(tmp_path / "5.jpg", 5)
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as kept_out:
        kept_out.write(tmp_path / "5.jpg", "amazon/mug/5.jpg")
        kept_out.writestr("list.json", "{}")
    rows = tool.gather(raw, tmp_path / "out", None, [tmp_path / "other.zip"])
    pool = tmp_path / "out/pool"
    assert names_in(pool / "imagenet") == ["0/a.jpg", "1/a.jpg", "2/a.jpg", "classes.json"]
    assert names_in(pool / "flickr8k") == ["captions.json", "images/2.jpg"]
    counts = {name: (row["images"], row["left_out"]) for name, row in rows["pool"].items()}
    assert counts == {"imagenet": (3, 1), "flickr8k": (1, 1), "dogs": (2, 0), "cub": (1, 0)}
    assert rows["keep_out"]["other.zip"]["images"] == 1
    assert json.loads((pool / "pool.json").read_text("utf-8")) == rows
    captions = json.loads((pool / "flickr8k/captions.json").read_text("utf-8"))
    assert captions == {"2.jpg": [f"A dog runs {number} ." for number in range(5)]}


def test_classes_of_the_pool_have_english_names(tool: ModuleType, raw: Path, tmp_path: Path) -> None:
    words = "n01440764\ttench, Tinca tinca\nn02112018\ttoy dog, toy\nn00001740\tentity\n"
    write_text(raw / "tiny-imagenet/tiny-imagenet-200/words.txt", words)
    put(raw / "tiny-imagenet/tiny-imagenet-200/train/n01440764/images/a.JPEG", 340)
    tool.gather(raw, tmp_path / "out", None, [])
    names = {
        name: json.loads((tmp_path / f"out/pool/{name}/classes.json").read_text("utf-8"))
        for name in ("imagenet", "dogs", "cub")
    }
    assert names["imagenet"] == {"0": "tench", "1": "crane bird", "2": "construction crane"}
    assert names["dogs"] == {"n02112018-Toy_dog": "toy dog"}
    assert names["cub"] == {"002.Laysan_Albatross": "laysan albatross"}
    synonyms = json.loads((tmp_path / "out/pool/synonyms.json").read_text("utf-8"))
    assert synonyms == {"tench": ["tinca tinca"], "toy dog": ["toy"]}


def test_two_classes_of_one_name_are_refused(tool: ModuleType, raw: Path, tmp_path: Path) -> None:
    put(raw / "cub/test/003.laysan_albatross/b.jpg", 321)
    with pytest.raises(SystemExit, match=r"^cub has several classes called laysan albatross\.$"):
        tool.gather(raw, tmp_path / "out", None, [])


def test_a_delta_coded_half_of_cifar_is_decoded(tool: ModuleType, tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), np.uint8)
    green = images[..., 1]
    planes = np.stack([images[..., 0] - green, green, images[..., 2] - green])
    coded = np.diff(np.diff(planes, axis=3, prepend=np.uint8(0)), axis=2, prepend=np.uint8(0))
    labels = np.array([0, 0, 1, 1], np.uint8)
    np.savez(tmp_path / "half.delta.npz", x_train=coded, y_train=labels, class_names=np.array(["apple", "sea"]))
    bench = np.array([tool.look_of(Image.fromarray(images[1])).difference], np.uint64)
    row = tool.write_cifar(tmp_path / "half.delta.npz", tmp_path / "out.npz", bench)
    assert (row["classes"], row["images"], row["left_out"]) == (2, 3, 1)
    written = np.load(tmp_path / "out.npz")
    assert np.array_equal(written["x_train"], images[[0, 2, 3]])
    assert written["y_train"].tolist() == [0, 1, 1]
    assert written["class_names"].tolist() == ["apple", "sea"]


def test_a_folder_that_is_there_is_not_written_over(
    tool: ModuleType, raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out/bench").mkdir(parents=True)
    monkeypatch.setattr(sys, "argv", ["lit_pool.py", str(raw), "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit, match=r"bench is there already: give --out a new folder\.$"):
        tool.main()
