"""Class tokens of a frozen DINOv2 for albums of images, kept in small files so that training needs no images.

    python tools/lit_features.py --dinov2 dinov2_vits14.safetensors --size 224 --out features pool/imagenet bench/pets …

An album is a folder CLASS/*.jpg whose classes.json may give the classes' names, a folder {train,test}/CLASS/*.jpg, a
folder images/*.jpg with captions.json (every file's sentences), or an .npz with x_train, y_train and class_names.
`tools/lit_pool.py` makes them. Each feature is written in eight bits beside a scale of its own.
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from promptfed.backbones.checkpoint import IMAGENET
from promptfed.backbones.pretrained import LoadedViT, ViT
from promptfed.data.photos import decode

BATCH = 256


@dataclass(frozen=True)
class Album:
    """Images, unread or as arrays, with a class each, or with sentences."""

    name: str
    files: Sequence[Path]
    pixels: NDArray[np.uint8]  # of an .npz, or none
    labels: NDArray[np.int64]
    test: NDArray[np.bool_]
    classes: list[str]
    captions: list[list[str]]  # of every image, or none at all


@dataclass(frozen=True)
class Features:
    """What is kept of an album."""

    name: str
    features: Tensor  # [N, D]
    labels: Tensor
    test: Tensor
    classes: list[str]
    captions: list[list[str]]


def read_album(path: Path) -> Album:
    """Return what an album holds; photographs in files are not read yet."""
    none, no_pixels = np.zeros(0, np.int64), np.zeros((0, 0, 0, 3), np.uint8)
    if path.suffix == ".npz":
        content = np.load(path)
        names, labels = [str(one) for one in content["class_names"]], content["y_train"].astype(np.int64)
        return Album(path.stem, [], content["x_train"], labels, np.zeros(len(labels), np.bool_), names, [])
    if (path / "captions.json").is_file():
        captions = json.loads((path / "captions.json").read_text("utf-8"))
        files = [path / "images" / file for file in sorted(captions)]
        said = [captions[file.name] for file in files]
        return Album(path.name, files, no_pixels, none, np.zeros(len(files), np.bool_), [], said)
    known = path / "classes.json"
    called = json.loads(known.read_text("utf-8")) if known.is_file() else {}
    splits = [path / split for split in ("train", "test") if (path / split).is_dir()] or [path]
    folders = sorted({folder.name for split in splits for folder in split.iterdir() if folder.is_dir()})
    found = [
        (file, label, split.name == "test")
        for split in splits
        for label, folder in enumerate(folders)
        for file in sorted((split / folder).glob("*.jpg"))
    ]
    labels, test = np.array([label for _, label, _ in found], np.int64), np.array([one for *_, one in found])
    names = [called.get(folder, folder).replace("_", " ") for folder in folders]
    return Album(path.name, [file for file, *_ in found], no_pixels, labels, test, names, [])


def batches(album: Album, size: int, threads: int) -> Iterator[Tensor]:
    """Yield the images [B, 3, H, W] in 0 … 1, in order; those of files are decoded by several threads."""
    if len(album.pixels):
        for part in torch.from_numpy(album.pixels).split(BATCH):
            yield part.permute(0, 3, 1, 2).float() / 255
        return
    with ThreadPoolExecutor(threads) as pool:
        starts = range(0, len(album.files), BATCH)
        for first in starts:
            read = pool.map(partial(decode, size=size), album.files[first : first + BATCH])
            yield torch.from_numpy(np.stack(list(read))).permute(0, 3, 1, 2).float() / 255


def class_tokens(net: LoadedViT, album: Album, size: int, threads: int, device: torch.device) -> Tensor:
    """Return the class tokens [N, D], in float32."""
    mean, std = (torch.tensor(value, device=device).view(3, 1, 1) for value in IMAGENET)
    parts = []
    with torch.inference_mode():
        for x in batches(album, size, threads):
            parts.append(net.features({}, (x.to(device) - mean) / std).float().cpu())
    return torch.cat(parts)


def keep(path: Path, album: Album, features: Tensor) -> None:
    """Write an album's features in eight bits, with its labels and names."""
    scale = features.abs().amax(1, keepdim=True) / 127
    small = (features / scale).round().to(torch.int8).numpy()
    np.savez_compressed(
        path,
        features=small,
        scale=scale.numpy().astype(np.float16),
        labels=album.labels.astype(np.int16),
        test=album.test,
        classes=np.array(album.classes, np.str_),
        captions=np.array(json.dumps(album.captions)),
    )


def read_features(path: Path) -> Features:
    """Return what `keep` wrote."""
    content = np.load(path)
    features = torch.from_numpy(content["features"]).float() * torch.from_numpy(content["scale"]).float()
    labels, test = torch.from_numpy(content["labels"].astype(np.int64)), torch.from_numpy(content["test"])
    classes = [str(one) for one in content["classes"]]
    return Features(path.stem, features, labels, test, classes, json.loads(str(content["captions"])))


def main() -> None:
    """Read the arguments and write one file an album."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("albums", type=Path, nargs="+")
    parser.add_argument("--dinov2", type=Path, required=True, help="a DINOv2 as `vit` reads it")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write; what is there is left as it is")
    parser.add_argument("--size", type=int, default=224, help="images are resized to so many pixels per side")
    parser.add_argument("--threads", type=int, default=4, help="that decode photographs")
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for path in given.albums:
        out = given.out / f"{path.stem}.npz"
        if out.exists():
            continue
        album, began = read_album(path), time.perf_counter()
        side = album.pixels.shape[1] if len(album.pixels) else given.size
        net = ViT((3, side, side), 1, str(given.dinov2), given.size).to(given.device)
        keep(out, album, class_tokens(net, album, side, given.threads, given.device))
        print(f"{path.stem}: {len(album.test):,} images, {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
