"""Seeded, padded batches of one client, or of a stack of clients whose tensors gain a leading C."""

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from promptfed.core import keys, memory
from promptfed.core.kernels import gpus
from promptfed.core.protocols import Backbone, Batch, Change, Draw
from promptfed.core.tree import Tree
from promptfed.data.dataset import Dataset, Indices
from promptfed.data.lists import ImageLists
from promptfed.data.training import PLAIN, Training

GROWING = ("data.size", "fleet.width")  # keys of a recipe that batches grow with, besides the method's own


class Pool:
    """Every image of a data set on one device, kept as bytes and normalised batch by batch.

    With `features` [N, D], or those of patches [N, 1 + M, D], these stand for the images; `extras` hold more of every
    example, by name.
    """

    def __init__(
        self, dataset: Dataset, device: torch.device, features: Tensor | None = None, extras: Tree | None = None
    ) -> None:
        self.classes = len(dataset.classes)
        self.raw = features is None
        images = torch.from_numpy(np.ascontiguousarray(dataset.images)) if features is None else features
        self.x = images.to(device)  # [N, H, W, 3] bytes, or [N, D]
        self.extras = extras or {}
        self.y = torch.from_numpy(dataset.labels).to(device)
        mean, std = (torch.tensor(part, device=device) for part in (dataset.mean, dataset.std))
        self.scale, self.shift = 1 / (255 * std), -mean / std
        self.labels, self.domains = dataset.labels, dataset.domains
        self.image_bytes = 4 * math.prod(self.x.shape[1:])  # of one image as a batch has it
        self.seen = 0  # training examples handed out so far

    def images(self, index: Tensor) -> Tensor:
        """Return the normalised images [*index.shape, 3, H, W], channels last in memory as convolutions like it."""
        if not self.raw:
            return self.x[index].float()  # patches are kept in 16 bits
        if gpus.has_triton(self.scale):
            from promptfed.core.kernels import image_kernels

            made = image_kernels.normalised(self.x, index.flatten(), self.scale, self.shift)
        else:
            made = torch.addcmul(self.shift, self.x.index_select(0, index.flatten()).float(), self.scale)
        return made.view(*index.shape, *self.x.shape[1:]).movedim(-1, -3)


class LatePool(Pool):
    """A pool that is made when it is first looked into: who has one need not have the images."""

    def __init__(self, make: Callable[[], Pool]) -> None:
        self._make = make

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copying and the like ask for these, and none is the pool's
            raise AttributeError(name)
        vars(self).update(vars(self._make()))
        return vars(self)[name]


@dataclass(frozen=True)
class ClientData:
    """The examples of one client, or of a stack of clients, in one round."""

    pool: Pool
    seed: int
    round: int
    clients: tuple[int, ...]
    rows: tuple[Indices, ...]  # the pool's indices of each client
    stacked: bool
    draws: Mapping[str, Draw]
    facts: Tree
    capacity: int
    changes: tuple[tuple[Change, Tree], ...] = ()
    training: Training = PLAIN

    def map(self, change: Change, tensors: Tree) -> "ClientData":
        """Return the same data with every batch passed through `change(tensors, batch)`."""
        return replace(self, changes=(*self.changes, (change, tensors)))

    @property
    def rate(self) -> Tensor:
        """Return what the schedule multiplies this round's learning rates by, [] or [C]."""
        schedule = self.training.schedule
        return torch.full_like(self.facts["size"], schedule.factor(self.round) if schedule else 1.0)

    def draw(self, name: str, shape: tuple[int, ...] = (), kind: Literal["uniform", "normal"] = "uniform") -> Tensor:
        """Return random numbers [*shape] or [C, *shape] that depend on the seed, the name, the client and the round."""
        salts = torch.tensor([keys.key(self.seed, "draw", name, client, self.round) for client in self.clients])
        salt = _send(salts if self.stacked else salts[0], self.pool.x.device)
        return (keys.uniform if kind == "uniform" else keys.normal)(salt, shape)

    def without_dropout(self, backbone: Backbone) -> "ClientData":
        """Return the same data for testing: the backbone's own draws are its dropout's, which is off then."""
        dropout = backbone.draws()
        return replace(self, draws={name: draw for name, draw in self.draws.items() if name not in dropout})

    def batches(
        self,
        purpose: str = "train",
        *,
        size: int,
        epochs: int = 1,
        steps: int | None = None,
        ordered: bool = False,
        drop_last: bool = False,
    ) -> "PlannedBatches":
        """Return the batches of `epochs` passes over the data, or exactly `steps` steps."""
        plans = []
        self._require_room(size, epochs, steps)
        for client, rows in zip(self.clients, self.rows, strict=True):
            shuffle = None if ordered else keys.generator(self.seed, "batches", purpose, client, self.round)
            plans.append(_plan(len(rows), size, epochs, steps, shuffle, drop_last))
        local = _side_by_side(plans, size)
        mask = local >= 0
        np.maximum(local, 0, out=local)
        index = np.empty_like(local)
        for column, rows in enumerate(self.rows):
            # a client without examples has no step of its own: any image may stand in for the padding
            index[:, column] = rows[local[:, column]] if len(rows) else 0
        self.pool.seen += int(np.count_nonzero(mask)) if purpose != "test" else 0
        lengths = tuple(len(plan) for plan in plans) if self.stacked else ()
        # a walk in order looks at the images as they are, and learns nothing
        data = replace(self, training=PLAIN) if ordered else self
        return data._planned(purpose, size, index, local, mask, lengths)

    def _require_room(self, size: int, epochs: int, steps: int | None) -> None:
        """Refuse batches that the machine has no room for: all their places, and the images of one of them."""
        longest = max(len(rows) for rows in self.rows)
        most = max(epochs * -(-longest // size), 1) if steps is None else steps
        places = 8 * most
        memory.require(
            len(self.rows) * size * (places + self.pool.image_bytes), "method.batch", "method.epochs", *GROWING
        )

    def _planned(
        self, purpose: str, size: int, index: Indices, local: Indices, mask: NDArray[np.bool_], lengths: tuple[int, ...]
    ) -> "PlannedBatches":
        device = self.pool.x.device
        augment, schedule = self.training.augment, self.training.schedule
        draws = {**self.draws, **(augment.draws() if augment else {})}
        salts = [[keys.key(self.seed, name, purpose, client, self.round) for client in self.clients] for name in draws]
        plan: dict[str, NDArray[Any]] = {
            "plan.pool": index,
            "plan.index": local,
            "plan.mask": mask.astype(np.float32),
        }
        tensors = {
            name: _send(torch.from_numpy(part if self.stacked else part[:, 0]), device) for name, part in plan.items()
        }
        for name, salt in zip(draws, salts, strict=True):
            tensors[f"salt.{name}"] = _send(torch.tensor(salt if self.stacked else salt[0]), device)
        if schedule:
            rates = torch.full((len(self.clients),), schedule.factor(self.round))
            tensors["rate"] = _send(rates if self.stacked else rates[0], device)
        tensors |= {f"fact.{name}": value for name, value in self.facts.items()}
        for number, (_, own) in enumerate(self.changes):
            tensors |= {f"change{number}.{name}": value for name, value in own.items()}
        key = (id(self.pool), size, self.training, tuple(draws.items()), tuple(change for change, _ in self.changes))
        return PlannedBatches(len(index), lengths, len(set(lengths)) > 1, tensors, key, self, draws)


def _send(value: Tensor, device: torch.device) -> Tensor:
    """Copy to the device; neither a GPU nor the host waits for it."""
    if device.type == "cuda":
        return value.pin_memory().to(device, non_blocking=True)
    return value if device.type == "cpu" else value.to(device)


def _side_by_side(plans: Sequence[Indices], size: int) -> Indices:
    """Return the plans of several clients [steps, C, size], -1 where one has no step left."""
    if len(plans) == 1:
        return plans[0][:, None]
    steps = np.full((max(map(len, plans)), len(plans), size), -1, dtype=np.int64)
    for column, plan in enumerate(plans):
        steps[: len(plan), column] = plan
    return steps


def _plan(
    count: int, size: int, epochs: int, steps: int | None, shuffle: torch.Generator | None, drop_last: bool
) -> Indices:
    """Return the examples of every step [steps, size], -1 where a batch is not full."""
    full = max(1, count // size if drop_last else -(-count // size))
    wanted = epochs if steps is None else -(-steps // full)
    plan = np.full((wanted, full * size), -1, dtype=np.int64)
    for epoch in range(wanted):
        order = np.arange(count) if shuffle is None else torch.randperm(count, generator=shuffle).numpy()
        kept = order[: full * size]
        plan[epoch, : len(kept)] = kept
    return plan.reshape(-1, size)[:steps]


@dataclass(frozen=True)
class PlannedBatches:
    """Batches as a function of the step."""

    steps: int
    lengths: tuple[int, ...]
    ragged: bool
    tensors: Tree
    key: Hashable
    data: ClientData
    draws: Mapping[str, Draw]

    @property
    def once(self) -> frozenset[str]:
        """Return the names of what a batch has once, not for each of its examples."""
        drawn = (name for name, draw in self.draws.items() if draw.per == "batch")
        return frozenset({"active", "rate", *self.data.facts, *drawn})

    def at(self, tensors: Tree, step: Tensor) -> Batch:
        """Return batch number `step`, computed from `tensors` alone."""
        plan = {name[5:]: tensors[name].index_select(0, step.view(1)).squeeze(0) for name in _PLAN}
        index, mask = plan["pool"], plan["mask"]
        pool, training = self.data.pool, self.data.training
        batch = {
            "x": pool.images(index),
            "y": pool.y[index],
            "index": plan["index"],
            "mask": mask,
            "active": mask.amax(-1),
        }
        batch |= {name: value[index] for name, value in pool.extras.items()}
        batch |= {name: tensors[f"fact.{name}"] for name in self.data.facts}
        for name, draw in self.draws.items():
            salt = tensors[f"salt.{name}"] + (step << 32)
            shape = (mask.shape[-1], *draw.shape) if draw.per == "sample" else draw.shape
            batch[name] = (keys.uniform if draw.kind == "uniform" else keys.normal)(salt, shape)
        if training.augment:
            batch["x"] = training.augment(batch["x"], batch, pool.scale, pool.shift)
        if training.weights:
            batch["mask"] = training.weights.weigh(mask, batch["y"], batch["counts"])
        if training.schedule:
            batch["rate"] = tensors["rate"]
        for number, (change, own) in enumerate(self.data.changes):
            batch = change({name: tensors[f"change{number}.{name}"] for name in own}, batch)
        return batch

    def __iter__(self) -> Iterator[Batch]:
        for step in range(self.steps):
            yield self.at(self.tensors, torch.tensor(step, device=self.data.pool.x.device))


_PLAN = ("plan.pool", "plan.index", "plan.mask")


def make_facts(sizes: Indices, counts: Indices, domains: Indices) -> Tree:
    """Return what all clients know of themselves: client [C], size [C], counts [C, classes], domain [C]."""
    return {
        "client": torch.arange(len(sizes)),
        "size": torch.from_numpy(sizes).float(),
        "counts": torch.from_numpy(counts).float(),
        "domain": torch.from_numpy(domains),
    }


class Shards:
    """Who holds what: hands out the training or test data of any clients, one or stacked."""

    def __init__(
        self,
        pool: Pool,
        train: Sequence[Indices],
        test: Sequence[Indices],
        seed: int,
        draws: Mapping[str, Draw],
        unseen: Sequence[Indices] = (),  # test images that no client holds
        training: Training = PLAIN,
    ) -> None:
        self.pool, self.seed, self.draws, self.training = pool, seed, draws, training
        held = ImageLists.of(train)
        self.rows: dict[str, Sequence[Indices]] = {"train": held, "test": ImageLists.of(test), "unseen": unseen}
        self.capacity = int(held.sizes.max())
        domains = held.tally(pool.domains, int(pool.domains.max(initial=0)) + 1)
        self._facts = make_facts(held.sizes, held.tally(pool.labels, pool.classes), domains.argmax(1))

    def __len__(self) -> int:
        return len(self.rows["train"])

    def tested(self) -> Indices:
        """Return all images that are tested on: those of every client, and those of none."""
        return np.concatenate([ImageLists.of(self.rows[split]).flat for split in ("test", "unseen")])

    def data(self, clients: Sequence[int], round: int, split: str = "train", *, stacked: bool) -> ClientData:  # noqa: A002
        """Return the data of one client, or of several stacked."""
        held = self.rows[split]
        rows = tuple(held[client] for client in clients)
        facts = self.facts(clients) if stacked else self._own_facts(clients[0])
        training, known = self.training if split == "train" else PLAIN, (self.draws, facts, self.capacity)
        return ClientData(self.pool, self.seed, round, tuple(clients), rows, stacked, *known, training=training)

    def facts(self, clients: Sequence[int]) -> Tree:
        """Return what each client knows of itself: client [C], size [C], counts [C, classes], domain [C]."""
        chosen = torch.tensor(list(clients))
        return {name: _send(value[chosen], self.pool.x.device) for name, value in self._facts.items()}

    def _own_facts(self, client: int) -> Tree:
        return {
            name: _send(_alone(value.numpy()[client, ...]), self.pool.x.device) for name, value in self._facts.items()
        }


def _alone(value: NDArray[Any]) -> Tensor:
    """Return a copy: a row lies elsewhere than within those of all clients, and matrix products notice where.

    For a single number, numpy's copy takes a fraction of the time of torch's.
    """
    return torch.tensor(value) if value.ndim else torch.from_numpy(value.copy())
