"""Features of a frozen backbone, computed once for every image and kept on disk."""

import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from promptfed.core import keys, progress
from promptfed.core.files import held, part_of, private
from promptfed.core.protocols import Backbone, Batch, DenseBackbone
from promptfed.core.ranks import ALONE, Ranks
from promptfed.core.tree import Tree
from promptfed.data.augment import augmented
from promptfed.data.batches import Pool
from promptfed.data.dataset import Dataset
from promptfed.data.download import home
from promptfed.data.growing import GrowingArray, growing
from promptfed.data.parsed import MAPPED_BYTES

BATCH = 256
NOTED = 16  # batches between two points from which computing them goes on
HASHED_BYTES = 1 << 34  # of a larger data set, every so many images stand for all: reading it all takes minutes

Change = Callable[[Tensor], Tensor]
Known = Callable[[int], bool]
"""Says whether the features from an image on are known."""
Batches = Callable[[Known], Iterator[Tensor | None]]

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


def constants_of(dataset: Dataset, device: torch.device, seed: int, compute: Callable[[Batch], Tree]) -> Tree:
    """Return what a method computes of every image, once [N, ...]: of its pixels, and a number made of its bytes."""
    pool, parts = Pool(dataset, torch.device("cpu")), []
    with torch.no_grad(), progress.bar("constants", len(dataset)) as advance:
        for index in torch.arange(len(dataset)).split(BATCH):
            batch = {"x": pool.images(index).to(device), "key": image_keys(pool.x[index], seed).to(device)}
            parts.append(compute(batch))
            advance(len(index), "")
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def image_keys(images: Tensor, seed: int) -> Tensor:
    """Return a number for each image [B, H, W, 3] of bytes, the same wherever it is met."""
    flat = images.flatten(1).long()
    factors = keys.bits(torch.tensor(keys.key(seed, "image"), device=images.device), (flat.shape[1],))
    return (flat * factors).sum(1)  # wraps around, as a hash may


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
    kept = _kept(path, len(dataset))
    if ranks.unanimous(None if kept is None else "kept") and kept is not None:
        return kept.to(device)
    batches = partial(_batches, dataset, device, what, change, read or partial(backbone.features, {}))
    if ranks.size > 1:
        return _made_together(path, len(dataset), batches, ranks).to(device)
    if _written(path, batches) and (kept := _kept(path, len(dataset))) is not None:
        return kept.to(device)
    return torch.cat([part for part in batches(lambda start: False) if part is not None])


def _made_together(path: Path, rows: int, batches: Batches, ranks: Ranks) -> Tensor:
    """Return features of which each process has computed a part; the first one of each machine keeps them."""
    blocks = -(-rows // BATCH)
    first, last = (blocks * rank // ranks.size for rank in (ranks.rank, ranks.rank + 1))
    with ranks.together():
        parts = islice(batches(lambda start: start < first * BATCH), last)
        own = [part.cpu() for part in parts if part is not None]
    gathered = ranks.gathered({"features": torch.cat(own)} if own else {}).trees
    made = torch.cat([one["features"] for one in gathered if one])
    if ranks.first_here:
        _written(path, lambda known: iter(made.split(BATCH)))
    ranks.told("kept")
    kept = _kept(path, rows)
    return made if kept is None else kept


def _kept(path: Path, rows: int) -> Tensor | None:
    """Return the array in a file, mapped if it is large: it may be larger than memory, and processes share it."""
    if not path.is_file():
        return None
    try:
        # copy on write: a tensor must be writable, the file never changes
        found = np.load(path, mmap_mode="c" if path.stat().st_size > MAPPED_BYTES else None)
        if len(found) != rows:
            raise ValueError("it has another number of rows")
        return torch.from_numpy(found)
    except (OSError, EOFError, ValueError):
        log.warning("%s is damaged; the features are computed again", path)
        path.unlink(missing_ok=True)
        return None


def _batches(
    dataset: Dataset,
    device: torch.device,
    what: str,
    change: Change | None,
    read: Change,
    known: Known,
) -> Iterator[Tensor | None]:
    """Yield the features of one batch after the other, None for those that are known."""
    pool = Pool(dataset, torch.device("cpu"))  # a large data set need not fit on the device
    scale, shift = (value.to(device).view(3, 1, 1) for value in (pool.scale, pool.shift))
    with torch.no_grad(), progress.bar(f"{what} features", len(dataset)) as advance:
        for index in torch.arange(len(dataset)).split(BATCH):
            if known(int(index[0])) and change is None:
                yield None
                continue
            images = pool.x[index].to(device).movedim(-1, -3).float()  # 0 … 255
            # of known ones too: what it draws comes after what it drew before
            changed = images / 255 if change is None else change(images / 255)
            if known(int(index[0])):
                yield None
            else:
                found = read(torch.addcmul(shift, changed * 255, scale))
                yield found.half() if found.dim() > 2 else found
            advance(len(index), "")


def _written(path: Path, batches: Batches) -> bool:
    """Write features to a file; say whether that was possible."""
    try:
        _write(path, batches)
    except OSError as problem:
        log.warning("features could not be kept in %s (%s)", path.parent, problem)
        return False
    return True


def _write(path: Path, batches: Batches) -> None:
    """Write features to a file as they come, going on with what a process that was stopped has left."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = part_of(path)
    os.close(private(str(part), os.O_CREAT | os.O_WRONLY))  # the images may be a user's own
    with held(part, wait=True), ExitStack() as stack:
        if path.is_file():  # another process was faster
            part.unlink(missing_ok=True)
            return
        grown: GrowingArray | None = None

        def known(start: int) -> bool:
            return grown is not None and start < grown.rows

        for number, batch in enumerate(batches(known)):
            if grown is None and batch is not None:
                kind = "<f2" if batch.dtype == torch.float16 else "<f4"
                grown = stack.enter_context(growing(part, batch.shape[1:], kind))
                batch = None if grown.rows else batch  # the first one only tells how long a row is
            if grown is not None and batch is not None:
                grown.append(batch.cpu().numpy())
                if number % NOTED == NOTED - 1:
                    grown.note()
        if grown is not None:
            grown.finish()
            part.replace(path)


def _fingerprint(dataset: Dataset) -> str:
    """Return a hash of the images, or of evenly chosen ones where there are very many."""
    every = max(1, -(-dataset.images.nbytes // HASHED_BYTES))
    content = hashlib.sha256(f"{dataset.images.shape}|{every}".encode())
    for start in range(0, len(dataset), BATCH * every):
        content.update(dataset.images[start : start + BATCH * every : every].tobytes())
    return content.hexdigest()
