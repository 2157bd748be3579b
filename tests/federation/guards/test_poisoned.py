"""Two of ten clients send their change turned round and ten times as long: the mean breaks, robust rules hold."""

from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from promptfed.core.method import Task
from promptfed.data.dataset import Dataset
from promptfed.data.shares import Partition
from promptfed.results.folder.record import Record
from promptfed.runs.config import Recipe
from promptfed.runs.planning import Plan, make_loop
from support.scripts import load_script
from support.toys import Linear, shares

MARGIN = 0.05  # of accuracy: how far two poisoned clients of ten may move a run under a robust rule
CLASSES, CLIENTS, EACH = 4, 10, 24


def benchmark() -> ModuleType:
    return load_script("benchmarks/poisoned.py")


def images() -> Dataset:
    """Return noisy 4×4 pictures of four classes that a linear model tells apart well, not perfectly."""
    rng = np.random.default_rng(0)
    labels = np.arange(2 * CLIENTS * EACH) % CLASSES
    pattern = rng.integers(80, 176, (CLASSES, 4, 4, 3))
    pixels = np.clip(pattern[labels] + rng.normal(0, 60, (len(labels), 4, 4, 3)), 0, 255).astype(np.uint8)
    names = tuple(f"class {number}" for number in range(CLASSES))
    none = np.zeros(len(labels), np.int64)
    return Dataset("toy", pixels, labels, none.astype(bool), names, none, ("toy",))


@cache
def accuracy(robust: str, poisoned: int, fleet: str = "stacked") -> float:
    """Return the mean accuracy after the last round."""
    import tempfile

    data, dealt = images(), shares([EACH] * (2 * CLIENTS))
    partition = Partition("toy", tuple(dealt[:CLIENTS]), tuple(dealt[CLIENTS:]))
    guards: dict[str, Any] = {"robust": robust, "trim": 0.2, "byzantine": 2}
    recipe = Recipe(
        rounds=15,
        clients=CLIENTS,
        fleet={"name": fleet, "precision": "fp32"},
        evaluate={"every": 100, "after": False},
        guards=guards,
    )
    method = benchmark().Poisoned(lr=0.1, epochs=2, batch=8, poisoned=poisoned)
    task = Task(Linear((3, 4, 4), CLASSES), data.classes, CLIENTS)
    with tempfile.TemporaryDirectory() as folder:
        plan = Plan(recipe, method, data, partition, task, torch.device("cpu"))
        loop = make_loop(plan, Record.create(Path(folder) / "run", "", {}))
        loop.run(lambda: None, lambda line: None)
    return float(loop.record.rounds[-1]["received"]["mean"])


def test_the_plain_mean_breaks() -> None:
    assert accuracy("mean", 0) > 0.8
    assert accuracy("mean", 2) < 0.3  # no better than guessing one of four


@pytest.mark.parametrize("robust", ["trimmed-mean", "median", "krum", "norm-bound"])
def test_poison_does_not_move_a_robust_run_by_more_than_the_margin(robust: str) -> None:
    assert accuracy(robust, 0) > 0.8
    assert abs(accuracy(robust, 2) - accuracy(robust, 0)) < MARGIN


def test_krum_pays_for_hearing_one_client_alone() -> None:
    # not poison's doing: with a single answer a round the others' data are not learned from
    assert accuracy("krum", 0) < accuracy("mean", 0) - MARGIN


def test_the_rules_see_the_same_from_clients_one_by_one() -> None:
    assert accuracy("krum", 2, "one-by-one") == accuracy("krum", 2)
