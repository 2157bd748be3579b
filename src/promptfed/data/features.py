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
from promptfed.core.ranks import ALONE, Ranks
from promptfed.data.augment import augmented
from promptfed.data.batches import Pool
from promptfed.data.dataset import Dataset
from promptfed.data.download import home

BATCH = 256
MAPPED_BYTES = 1 << 26  # larger features are mapped, not read
HASHED_BYTES = 1 << 34  # of a larger data set, every so many images stand for all: reading it all takes minutes

Change = Callable[[Tensor], Tensor]

log = logging.getLogger("promptfed")


def features_of(dataset: Dataset, backbone: Backbone, device: torch.device, ranks: Ranks = ALONE) -> Tensor:
    """Return the features of all images [N, D]; where several processes share a run, each computes a part."""
    return _cached(dataset, _fingerprint(dataset), backbone, device, "image", None, ranks)


def patches_of(dataset: Dataset, backbone: DenseBackbone, device: torch.device, ranks: Ranks = ALONE) -> Tensor:
    """Return class tokens and patches of all images [N, 1 + M, D] in 16 bits: they are many."""
    read = partial(backbone.patches, {})
    return _cached(dataset, _fingerprint(dataset), backbone, device, "patch", None, ranks, read)


def views_of(dataset: Dataset, backbone: Backbone, device: torch.device, count: int, ranks: Ranks = ALONE) -> Tensor:
    """Return the features of `count` augmented views of every image [N, count, D]; they are the same in every run."""
    views, content = [], _fingerprint(dataset)
    for number in range(count):
        draw = torch.Generator(device).manual_seed(keys.key("view", number))
        change = partial(augmented, draw=draw)
        views.append(_cached(dataset, content, backbone, device, f"view {number}", change, ranks))
    return torch.stack(views, 1)


def _cached(
    dataset: Dataset,
    content: str,
    backbone: Backbone,
    device: torch.device,
    what: str,
    change: Change | None,
    ranks: Ranks,
    read: Change | None = None,
) -> Tensor:
    """Return features from the cache, or compute and keep them; `content` is the data set's fingerprint."""
    parts = (what, backbone.fingerprint, content, str(dataset.mean), str(dataset.std), device.type)
    path = home() / "features" / f"{hashlib.sha256('|'.join(parts).encode()).hexdigest()[:32]}.npy"
    kept = _load(path)
    if ranks.unanimous(None if kept is None else "kept") and kept is not None:
        return kept.to(device)
    made = _compute(dataset, device, what, change, read or partial(backbone.features, {}), ranks)
    try:
        if ranks.first_here:
            _save(path, made.cpu().numpy())
    except OSError as problem:
        log.warning("features could not be kept in %s (%s)", path.parent, problem)
    if ranks.size == 1:
        return made
    ranks.told("kept")
    kept = _load(path)
    return made if kept is None else kept.to(device)


def _load(path: Path) -> Tensor | None:
    """Return what is kept, large features mapped: processes on one machine then share the memory."""
    if not path.is_file():
        return None
    try:
        return torch.from_numpy(np.load(path, mmap_mode="c" if path.stat().st_size > MAPPED_BYTES else None))
    except (OSError, EOFError, ValueError):
        log.warning("%s is damaged; the features are computed again", path)
        return None


def _compute(
    dataset: Dataset, device: torch.device, what: str, change: Change | None, read: Change, ranks: Ranks
) -> Tensor:
    pool = Pool(dataset, torch.device("cpu"))  # a large data set need not fit on the device
    scale, shift = (value.to(device).view(3, 1, 1) for value in (pool.scale, pool.shift))
    blocks = torch.arange(len(dataset)).split(BATCH)
    bounds = [len(blocks) * rank // ranks.size for rank in range(ranks.size + 1)]
    first, last = bounds[ranks.rank], bounds[ranks.rank + 1]
    parts = []
    total = sum(map(len, blocks[first:last]))
    with ranks.together(), torch.no_grad(), progress.bar(f"{what} features", total) as advance:
        for number, index in enumerate(blocks[:last]):
            if number < first and not change:
                continue
            images = pool.x[index].to(device).movedim(-1, -3).float()  # 0 … 255
            # its draws come one after the other, those for other processes' images too
            changed = change(images / 255) if change else images / 255
            if number >= first:
                found = read(torch.addcmul(shift, changed * 255, scale))
                parts.append(found.half() if found.dim() > 2 else found)
                advance(len(index), "")
    gathered = ranks.gathered({"features": torch.cat(parts)} if parts else {}).trees
    return torch.cat([one["features"] for one in gathered if one])


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
