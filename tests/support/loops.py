"""Round loops of a few small clients."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from promptfed.core.method import Method
from promptfed.core.ranks import ALONE, Ranks
from promptfed.data.dataset import Dataset
from promptfed.data.shares import Partition
from promptfed.federation.loop import Loop
from promptfed.methods.fedavg import FedAvg
from promptfed.methods.local_only import Local
from promptfed.methods.pfedpt import PFedPT
from promptfed.results.folder.record import Follower, Record
from promptfed.runs.config import Recipe
from promptfed.runs.planning import Plan, make_loop, make_task
from support.toys import shares

SIZES, TESTS = (9, 40, 3, 24, 1), (4, 300, 0, 7, 5)
BACKBONE = {"name": "vit-tiny", "patch": 4, "width": 8, "depth": 1, "heads": 2}
METHODS: list[Method] = [
    FedAvg(lr=0.05, epochs=1, batch=8, momentum=0.5),
    Local(lr=0.05, epochs=1, batch=8, weight_decay=0.01),
    PFedPT(lr=0.05, epochs=1, prompt_epochs=1, batch=8),
    PFedPT(prompt="random-patch", size=3, lr=0.05, epochs=1, prompt_epochs=1, batch=8, drop_last=True),
]


def images(count: int, classes: int = 3, domains: int = 1) -> Dataset:
    rng = np.random.default_rng(1)
    labels = np.arange(count) % classes
    pattern = rng.integers(60, 196, (classes, 8, 8, 3))
    pixels = np.clip(pattern[labels] + rng.integers(-40, 41, (count, 8, 8, 3)), 0, 255).astype(np.uint8)
    names = tuple(f"place {number}" for number in range(domains))
    where = (np.arange(count) // classes) % domains
    return Dataset(
        "toy", pixels, labels, np.zeros(count, bool), tuple(f"class {c}" for c in range(max(classes, 2))), where, names
    )


def make(
    method: Method,
    folder: Path,
    fleet: str = "one-by-one",
    *,
    sizes: Sequence[int] = SIZES,
    tests: Sequence[int] = TESTS,
    width: int = 0,
    per_round: int = 0,
    rounds: int = 2,
    classes: int = 3,
    domains: int = 1,
    device: str = "cpu",
    memory_mb: float = 1024.0,
    ranks: Ranks = ALONE,
    **keys: object,
) -> Loop:
    """Return the round loop of clients with that many images; `folder` may hold its first rounds."""
    data = images(sum(sizes) + sum(tests), classes, domains)
    dealt = shares([*sizes, *tests])
    partition = Partition("toy", tuple(dealt[: len(sizes)]), tuple(dealt[len(sizes) :]))
    recipe = Recipe(
        rounds=rounds,
        clients=len(sizes),
        per_round=per_round,
        backbone=BACKBONE,
        fleet={"name": fleet, "width": width, "memory_mb": memory_mb, "precision": "fp32"},
        **keys,  # type: ignore[arg-type]
    )
    where = torch.device(device)
    plan = Plan(recipe, method, data, partition, make_task(recipe, data.sides, data.classes, where), where, ranks)
    if not ranks.leads:
        return make_loop(plan, Follower(folder))
    return make_loop(plan, Record.reopen(folder) if folder.exists() else Record.create(folder, "", {}))
