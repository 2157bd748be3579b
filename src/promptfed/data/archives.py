"""The official archive layouts, read in memory: nothing is unpacked to disk, no foreign code is run."""

import gzip
import io
import math
import pickle
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from promptfed.core import progress
from promptfed.core.errors import PromptFedError
from promptfed.data.dataset import Dataset, Images
from promptfed.data.shops import CLASSES

# What a broken download or a foreign file raises, whichever of the standard library's readers meets it.
BROKEN = (
    EOFError,
    IndexError,
    KeyError,
    OSError,
    TypeError,
    ValueError,
    pickle.UnpicklingError,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
)


@contextmanager
def reading(path: Path, layout: str) -> Iterator[None]:
    """Turn whatever a broken file raises while it is read into one sentence."""
    try:
        yield
    except BROKEN as problem:
        kind = type(problem).__name__
        raise PromptFedError(f"{path} is not a complete {layout}: {kind}: {problem}.") from problem


def whole(name: str, train: tuple[Images, Any], test: tuple[Images, Any], classes: tuple[str, ...]) -> Dataset:
    """Return one data set of (images, labels) for training, followed by those for testing, in a single domain."""
    labels = np.concatenate([np.asarray(train[1], np.int64), np.asarray(test[1], np.int64)])
    return Dataset(
        name=name,
        images=np.concatenate([train[0], test[0]]),
        labels=labels,
        test=np.arange(len(labels)) >= len(train[1]),
        classes=classes,
        domains=np.zeros(len(labels), np.int64),
        domain_names=(name,),
    )


# -- Fashion-MNIST: four gzipped idx files --------------------------------------------------------------------------


def read_fashion_mnist(folder: Path) -> Dataset:
    """Read the four idx files in `folder`; the 28 × 28 grey images are padded with black to 32 × 32 and made RGB."""
    parts = []
    for stem in ("train", "t10k"):
        grey = read_idx(folder / f"{stem}-images-idx3-ubyte.gz")
        padded = np.pad(grey, ((0, 0), (2, 2), (2, 2)))
        rgb = np.broadcast_to(padded[..., None], (*padded.shape, 3))
        parts.append((rgb, read_idx(folder / f"{stem}-labels-idx1-ubyte.gz")))
    return whole("fashion-mnist", parts[0], parts[1], CLASSES)


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read one gzipped idx file of bytes: two zeros, 8 (bytes), the number of dimensions, the sizes, the values."""
    with reading(path, "gzipped idx file"):
        raw = gzip.decompress(path.read_bytes())
        if raw[:3] != b"\0\0\x08":
            raise ValueError("it does not begin with 0, 0, 8")
        start = 4 + 4 * raw[3]
        shape = [int(size) for size in np.frombuffer(raw[4:start], ">u4")]
        return np.frombuffer(raw, np.uint8, count=math.prod(shape), offset=start).reshape(shape)


# -- CIFAR: Python 2 pickles in a tar.gz ----------------------------------------------------------------------------


def read_cifar10(path: Path) -> Dataset:
    """Read cifar-10-python.tar.gz."""
    batches = [f"data_batch_{n}" for n in range(1, 6)]
    with reading(path, "CIFAR-10 archive (cifar-10-python.tar.gz)"):
        found = _pickles(path, "cifar-10-batches-py", [*batches, "test_batch", "batches.meta"])
        images = np.concatenate([_chw(found[name]["data"]) for name in batches])
        labels = [label for name in batches for label in found[name]["labels"]]
        test = (_chw(found["test_batch"]["data"]), found["test_batch"]["labels"])
        return whole("cifar10", (images, labels), test, tuple(found["batches.meta"]["label_names"]))


def read_cifar100(path: Path, labels: str = "fine") -> Dataset:
    """Read cifar-100-python.tar.gz with its 100 "fine" or its 20 "coarse" labels."""
    with reading(path, "CIFAR-100 archive (cifar-100-python.tar.gz)"):
        found = _pickles(path, "cifar-100-python", ["train", "test", "meta"])
        train, test = ((_chw(found[name]["data"]), found[name][f"{labels}_labels"]) for name in ("train", "test"))
        return whole("cifar100", train, test, tuple(found["meta"][f"{labels}_label_names"]))


def _chw(data: Any) -> Images:
    """Return rows of 3,072 bytes, colour by colour, as images [N, 32, 32, 3]."""
    return np.asarray(data, np.uint8).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


def _pickles(path: Path, folder: str, names: list[str]) -> dict[str, dict[str, Any]]:
    """Return the wanted pickles of a tar.gz by name, in one pass over the file."""
    found = {}
    with tarfile.open(path, "r:gz") as archive:
        for member in archive:
            place = PurePosixPath(member.name)
            stream = archive.extractfile(member) if place.parent.name == folder and place.name in names else None
            if stream is not None:
                found[place.name] = _Numbers(stream, encoding="latin1").load()
    if missing := [name for name in names if name not in found]:
        raise ValueError(f"it lacks {folder}/{missing[0]}")
    return found


def _latin1(text: str, encoding: str) -> bytes:
    """Stand in for `codecs.encode`, by which pickles write bytes, with the one encoding they use."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"encoding {encoding} is not allowed")
    return text.encode("latin1")


class _Numbers(pickle.Unpickler):
    """An unpickler that knows numpy arrays and plain values, and calls nothing else."""

    # A pickle names the function by where it lived in the numpy that wrote it; an array knows where it lives today.
    allowed: dict[tuple[str, str], Callable[..., Any]] = {  # noqa: RUF012 - a constant
        ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],  # type: ignore[dict-item]
        ("numpy._core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],  # type: ignore[dict-item]
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("_codecs", "encode"): _latin1,
    }

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        """Return the constructor a pickle asks for, if it is one that arrays need."""
        if (module, name) not in self.allowed:
            raise pickle.UnpicklingError(f"the pickle asks for {module}.{name}, which is not allowed")
        return self.allowed[module, name]


# -- Tiny ImageNet: JPEG files in a zip -----------------------------------------------------------------------------


def read_tiny_imagenet(path: Path) -> Dataset:
    """Read tiny-imagenet-200.zip; its validation images are the test images, the true test labels being secret."""
    with reading(path, "Tiny ImageNet archive (tiny-imagenet-200.zip)"), zipfile.ZipFile(path) as archive:
        top = "tiny-imagenet-200"
        wnids = archive.read(f"{top}/wnids.txt").decode().split()
        label = {wnid: n for n, wnid in enumerate(wnids)}
        train = {}
        for name in sorted(archive.namelist()):
            parts = PurePosixPath(name).parts
            if len(parts) == 5 and parts[1] == "train" and parts[3] == "images":
                train[name] = label[parts[2]]
        rows = [line.split("\t") for line in archive.read(f"{top}/val/val_annotations.txt").decode().splitlines()]
        val = {f"{top}/val/images/{row[0]}": label[row[1]] for row in rows}
        words = archive.read(f"{top}/words.txt").decode().splitlines()
        images = _decode(archive, [*train, *val])
        split = len(train)
        return whole(
            "tiny-imagenet",
            (images[:split], list(train.values())),
            (images[split:], list(val.values())),
            _class_names(wnids, words),
        )


def _class_names(wnids: list[str], words: list[str]) -> tuple[str, ...]:
    """Return each class's first word, or all its words where two classes share the first."""
    full = dict(line.split("\t", 1) for line in words)
    first = {wnid: full[wnid].split(",")[0] for wnid in wnids}
    times = Counter(first.values())
    return tuple(first[wnid] if times[first[wnid]] == 1 else full[wnid] for wnid in wnids)


def _decode(archive: zipfile.ZipFile, names: list[str]) -> Images:
    """Decode the named images of a zip to RGB on all cores."""

    def one(name: str) -> Images:
        with Image.open(io.BytesIO(archive.read(name))) as image:
            return np.asarray(image.convert("RGB"))

    with ThreadPoolExecutor() as pool, progress.bar("decoding Tiny ImageNet", len(names)) as advance:
        decoded = []
        for image in pool.map(one, names):
            decoded.append(image)
            advance(1, "")
    return np.stack(decoded)
