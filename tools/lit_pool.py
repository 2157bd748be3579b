"""Gather images with names for tools/pretrain_lit.py, and benchmark sets that share no image with them.

    python tools/lit_pool.py RAW --cifar cifar100-half1.delta.npz --keep-out office_caltech10.zip --out DIR

RAW has a folder for each set below, with the files of its public copy as they are; a set that is not there is left out.
DIR/pool/NAME/FOLDER/*.jpg is for pretraining, and classes.json beside it says what the classes are called in English.
flickr8k has the captions of each image instead, in captions.json. DIR/bench/NAME/{train,test}/CLASS/*.jpg is for
`data.name=folder:`, with the set's own split where it has one. Images are drawn by a fixed seed and made small.

No image of the pool is one of a benchmark set, nor of a --keep-out zip: it is left out where their difference hashes
(is a pixel brighter than the one to its left, of 9 × 8 grey ones) differ in three bits or fewer. That finds an image at
another size or quality; it does not find a part of one, or its mirror image. pool.json says what came of it.
"""

import argparse
import io
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
from image_looks import Hashes, Look, fingerprint, look, look_of, looks_in, near
from numpy.typing import NDArray
from PIL import Image, ImageOps

WORKERS = 2
QUALITY = 85
CIFAR_EACH = 120
IGNORED = {"BACKGROUND_Google", "Faces_easy"}  # of Caltech-101: no class, and the photographs of Faces once more
CODE = len("n01440764")
CAPTIONED, CAPTIONS = "flickr8k", "Flicker8k_text/Flickr8k.token.txt"
CLEARER: dict[str, dict[str, str]] = json.loads(Path(__file__).with_name("lit_names.json").read_text("utf-8"))


@dataclass(frozen=True)
class Album:
    """Where a set has its images, how many of a class are taken, and their longer side if they are made smaller."""

    pattern: str
    each: int
    side: int | None = None


@dataclass(frozen=True)
class Bench:
    """Where a set has its images to train and to test on (none: those left over), how many of a class, and the side."""

    train: str
    test: tuple[str, ...]
    each: tuple[int, int]
    side: int | None = None


ALBUMS = {
    "imagenet": Album("ILSVRC2012_img_val_subset/CLASS/*.JPEG", 4, 224),
    "tiny-imagenet": Album("tiny-imagenet-200/train/CLASS/images/*.JPEG", 92),
    "mini-imagenet": Album("*/CLASS/*.jpg", 104),
    "flickr8k": Album("CLASS/*.jpg", 10_000, 140),
    "dogs": Album("dogs_split/*/CLASS/*.jpg", 36, 144),
    "cub": Album("*/CLASS/*.jpg", 22, 144),
    "imagenette": Album("*/CLASS/*.JPEG", 200, 160),
}
WORDS = "tiny-imagenet/tiny-imagenet-200/words.txt"
PETS = "oxford-pets-datasets/data/annotations"
FLOWERS_TEST = ("flowers/valid/CLASS/*.jpg", "flowers/test/CLASS/*.jpg")
BENCHES = {
    "caltech101": Bench("101_ObjectCategories/CLASS/*.jpg", (), (30, 30), 176),
    "pets": Bench(f"{PETS}/trainval.txt", (f"{PETS}/test.txt",), (32, 40), 176),
    "flowers102": Bench("flowers/train/CLASS/*.jpg", FLOWERS_TEST, (16, 20), 144),
    "eurosat": Bench("data/EuroSAT/2750/CLASS/*.jpg", (), (100, 200)),
    "food101": Bench("data/train/CLASS/*.jpg", ("data/test/CLASS/*.jpg",), (32, 30)),
    "cars": Bench("train/CLASS/*.jpg", ("test/CLASS/*.jpg",), (16, 15), 144),
}


class Job(NamedTuple):
    """An image and where it goes."""

    source: Path
    target: Path


# -- finding ------------------------------------------------------------------------------------------------------


def found(root: Path, *patterns: str) -> dict[str, list[Path]]:
    """Return the images of each class; a pattern has CLASS in it, or is a list of the images of Oxford-IIIT Pets."""
    classes = defaultdict(list)
    for pattern in patterns:
        if pattern.endswith(".txt"):
            stems = [line.split()[0] for line in (root / pattern).read_text("utf-8").splitlines()]
            images = (root / pattern).parents[1] / "images"
            pairs = [(stem.rpartition("_")[0], images / f"{stem}.jpg") for stem in stems]
        else:
            place = pattern.split("/").index("CLASS")
            files = root.glob(pattern.replace("CLASS", "*"))
            pairs = [(file.relative_to(root).parts[place], file) for file in files if file.name[0] != "."]
        for folder, file in pairs:
            classes[folder].append(file)
    return {folder: sorted(files) for folder, files in sorted(classes.items()) if folder not in IGNORED}


def drawn(key: str, files: list[Path], count: int) -> list[Path]:
    """Return up to `count` of the files, always the same ones for a key."""
    return Random(key).sample(files, min(count, len(files)))


def known_names(raw: Path, name: str) -> dict[str, str]:
    """Return what the folders of a set are called, as far as its own files or those of ImageNet say it."""
    if name == "flowers102":
        return dict(json.loads((raw / name / "cat_to_name.json").read_text("utf-8")))
    index = raw / "imagenet" / "imagenet_class_index.json"
    rows = json.loads(index.read_text("utf-8")) if index.is_file() and name in ALBUMS else {}
    clearer = CLEARER["imagenet"]
    names = {code: clearer.get(code, clearer.get(name, name)) for code, name in rows.values()}
    return {number: names[code] for number, (code, _) in rows.items()} if name == "imagenet" else names


def synonyms(raw: Path, pool: Path) -> dict[str, list[str]]:
    """Return other names of ImageNet's classes in the pool, from Tiny-ImageNet's words.txt if it is there."""
    file, index = raw / WORDS, raw / "imagenet" / "imagenet_class_index.json"
    lines = file.read_text("utf-8").splitlines() if file.is_file() else []
    words = dict(line.split("\t") for line in lines)
    rows = json.loads(index.read_text("utf-8")) if index.is_file() else {}
    found: dict[str, set[str]] = defaultdict(set)
    for known in sorted(pool.glob("*/classes.json")):
        for folder, name in json.loads(known.read_text("utf-8")).items():
            code = rows[folder][0] if known.parent.name == "imagenet" else folder[:CODE]
            found[name] |= {word.strip().lower() for word in words.get(code, name).split(",")} - {name}
    return {name: sorted(others) for name, others in sorted(found.items()) if others}


def called(known: dict[str, str], folder: str) -> str:
    """Return a readable English name, in lower case."""
    name = known.get(folder, known.get(folder[:CODE], re.sub(r"^(n\d{8}-|\d{3}\.)", "", folder)))
    return CLEARER["others"].get(name, name).replace("_", " ").lower()


# -- writing ------------------------------------------------------------------------------------------------------


def shrunk(file: Path, side: int | None) -> bytes:
    """Return a JPEG no longer than `side` pixels, or the file itself where there is no such limit."""
    if side is None:
        return file.read_bytes()
    with Image.open(file) as image:
        image.draft("RGB", (side, side))
        small = ImageOps.exif_transpose(image).convert("RGB")
    small.thumbnail((side, side))
    packed = io.BytesIO()
    small.save(packed, "JPEG", quality=QUALITY)
    return packed.getvalue()


def write(jobs: list[Job], side: int | None, others: Hashes | None = None) -> tuple[list[Job], list[Look]]:
    """Write small images that are not close to others, and return which were written and what they look like."""

    def made(job: Job) -> tuple[bytes, Look]:
        content = shrunk(job.source, side)
        return content, look(content)

    with ThreadPoolExecutor(WORKERS) as workers:
        contents, looks = zip(*workers.map(made, jobs), strict=True)
    left_out = near(looks, others) if others is not None else np.zeros(len(jobs), np.bool_)
    written = [index for index in range(len(jobs)) if not left_out[index]]
    for index in written:
        target = jobs[index].target
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(contents[index])
    return [jobs[index] for index in written], [looks[index] for index in written]


def distinct(name: str, known: dict[str, str], folders: Iterable[str]) -> dict[str, str]:
    """Return what each folder of a set is called; it is an error if two are called the same, or if there is none."""
    names = {folder: called(known, folder) for folder in folders}
    twice = [one for one, count in Counter(names.values()).items() if count > 1]
    if twice or not names:
        raise SystemExit(f"{name} has several classes called {twice[0]}." if twice else f"{name} has no images.")
    return names


def write_bench(raw: Path, name: str, out: Path) -> tuple[list[Look], dict[str, object]]:
    """Write a benchmark set; return what its images look like, and how many there are."""
    bench = BENCHES[name]
    train, test = found(raw / name, bench.train), found(raw / name, *bench.test)
    names = distinct(name, known_names(raw, name), train)
    jobs = []
    for folder, files in train.items():
        taught = drawn(f"{name} train {folder}", files, bench.each[0])
        rest = test.get(folder, []) if bench.test else sorted({*files} - {*taught})
        sides = {"train": taught, "test": drawn(f"{name} test {folder}", rest, bench.each[1])}
        for split, chosen in sides.items():
            jobs += [Job(file, out / split / names[folder] / f"{file.stem}.jpg") for file in chosen]
    _, looks = write(jobs, bench.side)
    counts = Counter(job.target.parts[-3] for job in jobs)
    return looks, {"classes": len(names), **counts, "thumbnails": fingerprint(looks)}


def write_album(raw: Path, name: str, out: Path, others: Hashes) -> dict[str, object]:
    """Write an album with the names of its classes or its captions; return how many images there are."""
    album = ALBUMS[name]
    files = found(raw / name, album.pattern)
    names = distinct(name, known_names(raw, name), files)
    jobs = []
    for folder, own in files.items():
        place = out / ("images" if name == CAPTIONED else folder)
        jobs += [Job(file, place / f"{file.stem}.jpg") for file in drawn(f"{name} {folder}", own, album.each)]
    written, looks = write(jobs, album.side, others)
    if name == CAPTIONED:
        kept = {job.target.name for job in written}
        said = {file: texts for file, texts in captions(raw / name / CAPTIONS).items() if file in kept}
        write_json(out / "captions.json", said)
    else:
        write_json(out / "classes.json", names)
    return counted(len(names), len(jobs), looks)


def write_cifar(file: Path, out: Path, others: Hashes) -> dict[str, object]:
    """Write some images of each class of a delta-coded half of CIFAR-100; return how many there are."""
    content = np.load(file)
    labels, names = content["y_train"].astype(np.int64), content["class_names"]
    members = [[*np.flatnonzero(labels == label)] for label in range(len(names))]
    indices = [Random(f"cifar {label}").sample(own, min(CIFAR_EACH, len(own))) for label, own in enumerate(members)]
    chosen = np.sort(np.concatenate(indices))
    images = undelta(content["x_train"][:, chosen])
    looks = [look_of(Image.fromarray(image)) for image in images]
    kept = ~near(looks, others)
    out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(out, x_train=images[kept], y_train=labels[chosen][kept], class_names=names)
    return counted(len(names), len(chosen), [one for one, own in zip(looks, kept, strict=True) if own])


def undelta(coded: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return images [N, H, W, 3] from differences along both axes [3, N, H, W], red and blue given less green."""
    red, green, blue = coded.cumsum(2, np.uint8).cumsum(3, np.uint8)
    return np.stack([red + green, green, blue + green], -1)


def captions(file: Path) -> dict[str, list[str]]:
    """Return the captions of each image from lines such as `1.jpg#0<tab>A dog runs .`."""
    said = defaultdict(list)
    for line in file.read_text("utf-8").splitlines():
        key, text = line.split("\t")
        said[key.rpartition("#")[0]].append(text.strip())
    return said


def counted(classes: int, drawn_images: int, looks: list[Look]) -> dict[str, object]:
    """Return the row of an album in pool.json."""
    kept = {"images": len(looks), "left_out": drawn_images - len(looks)}
    return {"classes": classes, **kept, "thumbnails": fingerprint(looks)}


def write_json(file: Path, content: object) -> None:
    """Write a file of JSON."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")


def gather(raw: Path, out: Path, cifar: Path | None, keep_out: list[Path]) -> dict[str, dict[str, object]]:
    """Write the benchmark sets, then the pool without their images; return what pool.json says."""
    made: dict[str, dict[str, object]] = {"bench": {}, "keep_out": {}, "pool": {}}

    def note(kind: str, name: str, row: object) -> None:
        made[kind][name] = row
        print(f"{kind} {name}: {row}", flush=True)

    hashes = []
    for name in [name for name in BENCHES if (raw / name).is_dir()]:
        looks, row = write_bench(raw, name, out / "bench" / name)
        hashes += [one.difference for one in looks]
        note("bench", name, row)
    for file in keep_out:
        looks = looks_in(file)
        hashes += [one.difference for one in looks]
        note("keep_out", file.name, {"images": len(looks), "thumbnails": fingerprint(looks)})
    others = np.unique(np.array(hashes, np.uint64))
    for name in [name for name in ALBUMS if (raw / name).is_dir()]:
        note("pool", name, write_album(raw, name, out / "pool" / name, others))
    if cifar is not None:
        stem = cifar.name.partition(".")[0]
        note("pool", stem, write_cifar(cifar, out / "pool" / f"{stem}.npz", others))
    write_json(out / "pool" / "pool.json", made)
    write_json(out / "pool" / "synonyms.json", synonyms(raw, out / "pool"))
    return made


def main() -> None:
    """Read the arguments and write both."""
    parser = argparse.ArgumentParser(description="Gather images with names, and benchmark sets apart.")
    parser.add_argument("raw", type=Path, help="the folder of the public sets, each in one of its own")
    parser.add_argument("--cifar", type=Path, help="a delta-coded half of CIFAR-100, for the pool")
    parser.add_argument("--keep-out", type=Path, default=[], action="append", help="a zip of test images; repeatable")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write pool/ and bench/ in")
    given = parser.parse_args()
    there = [part for part in ("pool", "bench") if (given.out / part).exists()]
    if there:
        raise SystemExit(f"{given.out / there[0]} is there already: give --out a new folder.")
    gather(given.raw, given.out, given.cifar, given.keep_out)


if __name__ == "__main__":
    main()
