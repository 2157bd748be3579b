"""Features of a frozen backbone, computed once for every image and kept on disk."""

import hashlib
import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from promptfed.core import keys, progress
from promptfed.core.files import private
from promptfed.core.protocols import Backbone, DenseBackbone
from promptfed.data.augment import augmented
from promptfed.data.batches import Pool
from promptfed.data.dataset import Dataset
from promptfed.data.download import home

BATCH = 256
HASHED_BYTES = 1 << 34  # of a larger data set, every so many images stand for all: reading it all takes minutes

log = logging.getLogger("promptfed")


def features_of(dataset: Dataset, backbone: Backbone, device: torch.device) -> Tensor:
    """Return the features of all images [N, D]."""
    return _cached(dataset, _fingerprint(dataset), backbone, device, "image", lambda images: images)


def patches_of(dataset: Dataset, backbone: DenseBackbone, device: torch.device) -> Tensor:
    """Return class tokens and patches of all images [N, 1 + M, D] in 16 bits: they are many."""
    read = partial(backbone.patches, {})
    return _cached(dataset, _fingerprint(dataset), backbone, device, "patch", lambda images: images, read)


def views_of(dataset: Dataset, backbone: Backbone, device: torch.device, count: int) -> Tensor:
    """Return the features of `count` augmented views of every image [N, count, D]; they are the same in every run."""
    views, content = [], _fingerprint(dataset)
    for number in range(count):
        draw = torch.Generator(device).manual_seed(keys.key("view", number))
        views.append(_cached(dataset, content, backbone, device, f"view {number}", partial(augmented, draw=draw)))
    return torch.stack(views, 1)


def _cached(
    dataset: Dataset,
    content: str,
    backbone: Backbone,
    device: torch.device,
    what: str,
    change: Callable[[Tensor], Tensor],
    read: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Return features from the cache, or compute and keep them; `content` is the data set's fingerprint."""
    parts = (what, backbone.fingerprint, content, str(dataset.mean), str(dataset.std), device.type)
    path = home() / "features" / f"{hashlib.sha256('|'.join(parts).encode()).hexdigest()[:32]}.npy"
    if path.is_file():
        try:
            return torch.from_numpy(np.load(path)).to(device)
        except (OSError, EOFError, ValueError):
            log.warning("%s is damaged; the features are computed again", path)
    made = _compute(dataset, device, what, change, read or partial(backbone.features, {}))
    try:
        _save(path, made.cpu().numpy())
    except OSError as problem:
        log.warning("features could not be kept in %s (%s)", path.parent, problem)
    return made


def _compute(
    dataset: Dataset,
    device: torch.device,
    what: str,
    change: Callable[[Tensor], Tensor],
    read: Callable[[Tensor], Tensor],
) -> Tensor:
    pool = Pool(dataset, torch.device("cpu"))  # a large data set need not fit on the device
    scale, shift = (value.to(device).view(3, 1, 1) for value in (pool.scale, pool.shift))
    parts = []
    with torch.no_grad(), progress.bar(f"{what} features", len(dataset)) as advance:
        for index in torch.arange(len(dataset)).split(BATCH):
            images = pool.x[index].to(device).movedim(-1, -3).float()  # 0 … 255
            found = read(torch.addcmul(shift, change(images / 255) * 255, scale))
            parts.append(found.half() if found.dim() > 2 else found)
            advance(len(index), "")
    return torch.cat(parts)


def _save(path: Path, values: NDArray[np.floating]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with open(fresh, "wb", opener=private) as file:  # the images may be a user's own
        np.save(file, values)
    fresh.replace(path)


def _fingerprint(dataset: Dataset) -> str:
    """Return a hash of the images, or of evenly chosen ones where there are very many."""
    every = max(1, -(-dataset.images.nbytes // HASHED_BYTES))
    content = hashlib.sha256(f"{dataset.images.shape}|{every}".encode())
    for start in range(0, len(dataset), BATCH * every):
        content.update(dataset.images[start : start + BATCH * every : every].tobytes())
    return content.hexdigest()
