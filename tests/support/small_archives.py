"""Small archives in the official layouts."""

import gzip
import io
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from promptfed.data.dataset import Images


def write_idx(path: Path, values: Images) -> None:
    head = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
    path.write_bytes(gzip.compress(head + values.tobytes()))


def write_fashion(folder: Path, train: int = 5, test: int = 2) -> None:
    for stem, count in (("train", train), ("t10k", test)):
        write_idx(folder / f"{stem}-images-idx3-ubyte.gz", np.full((count, 28, 28), 9, np.uint8))
        write_idx(folder / f"{stem}-labels-idx1-ubyte.gz", np.arange(count, dtype=np.uint8) % 10)


def write_tar(path: Path, folder: str, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(f"{folder}/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def write_cifar10(path: Path, each: int = 2, **replaced: bytes) -> None:
    """Write `each` images per batch; pixel values count the batches from 1, red first."""
    members = {"batches.meta": pickle.dumps({"label_names": [f"c{n}" for n in range(10)]}, protocol=2)}
    for n, name in enumerate([*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"], start=1):
        data = np.repeat(np.array([n, 100 + n, 200 + n], np.uint8), 1024)[None].repeat(each, 0)
        members[name] = pickle.dumps({"data": data, "labels": [n % 10] * each}, protocol=2)
    write_tar(path, "cifar-10-batches-py", {**members, **replaced})


def write_cifar100(path: Path) -> None:
    split = {"data": np.zeros((2, 3072), np.uint8), "fine_labels": [99, 3], "coarse_labels": [19, 1]}
    meta = {"fine_label_names": [f"f{n}" for n in range(100)], "coarse_label_names": [f"k{n}" for n in range(20)]}
    members: dict[str, Any] = {"train": split, "test": split, "meta": meta}
    write_tar(path, "cifar-100-python", {name: pickle.dumps(value, protocol=2) for name, value in members.items()})


def jpeg(level: int, mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (64, 64), (level, level, level) if mode == "RGB" else level).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def write_tiny(path: Path) -> None:
    top = "tiny-imagenet-200"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{top}/wnids.txt", "n02\nn01\nn03\n")
        archive.writestr(f"{top}/words.txt", "n01\tgoldfish, Carassius\nn02\tcrane\nn03\tcrane, bird\nn04\tunused\n")
        archive.writestr(f"{top}/train/n01/images/", b"")
        for n, wnid in enumerate(("n01", "n02", "n03")):
            archive.writestr(f"{top}/train/{wnid}/{wnid}_boxes.txt", "n01_0.JPEG\t0\t0\t63\t63\n")
            archive.writestr(f"{top}/train/{wnid}/images/{wnid}_0.JPEG", jpeg(50 * n, "L" if n == 2 else "RGB"))
        archive.writestr(f"{top}/val/val_annotations.txt", "val_0.JPEG\tn03\t0\t0\t9\t9\nval_1.JPEG\tn02\t0\t0\t9\t9\n")
        for n in range(2):
            archive.writestr(f"{top}/val/images/val_{n}.JPEG", jpeg(200 + n))
        archive.writestr(f"{top}/test/images/test_0.JPEG", jpeg(7))
