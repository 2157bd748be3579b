"""Every client's own model on other images: which ones, with which names, and what the scores come to."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from promptfed.core.method import Method, Task, Traits, dual
from promptfed.core.prompts.text import match
from promptfed.core.protocols import Batch, Data
from promptfed.core.tree import Tree
from promptfed.data.batches import Pool, Shards
from promptfed.federation.beyond import Beyond
from promptfed.federation.fleet import Fleet, OneByOne, Stacked
from promptfed.federation.store import Store
from promptfed.federation.tested_sets import SETS
from support.toys import TinyDual, dataset

# classes 0 and 1 are trained on, 2 and 3 are new; a feature is along the axis of its class but for images 3 and 8
LABELS = [0, 1, 0, 1, 1, 2, 3, 2, 3]
AXES = [0, 1, 0, 0, 1, 2, 3, 2, 2]
TRAIN = (np.array([0]), np.array([0, 1]))  # the first client knows class 0 alone
TEST = (np.array([2, 3]), np.array([4]))
NOVEL = np.array([5, 6, 7, 8])


@dataclass(frozen=True)
class ByName(Method):
    """Answers by the classes' names; `sharp` multiplies what it is sure of."""

    name: ClassVar[str] = "by-name"
    traits = Traits(reads="features", open=True)

    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        return {}, personal

    def predict(self, task: Task, params: Tree, batch: Batch) -> Tensor:
        assert "y" not in batch
        return match(batch["x"], dual(task).zero_shot, dual(task).scale)


def task() -> Task:
    return Task(TinyDual(width=4, names=("no", "yes")), ("no", "yes"), 2)


def shards() -> Shards:
    images = dataset([0] * len(LABELS), LABELS, classes=2)
    return Shards(Pool(images, torch.device("cpu"), torch.eye(4)[AXES]), TRAIN, TEST, 0, {})


def fleet(kind: str, folder: Path) -> Fleet:
    store = Store(lambda client: {}, folder)
    if kind == "stacked":
        return Stacked(ByName(), task(), shards(), store, 2)
    return OneByOne(ByName(), task(), shards(), store)


@pytest.mark.parametrize("kind", ["stacked", "one-by-one"])
def test_every_set_by_hand(kind: str, tmp_path: Path) -> None:
    beyond = Beyond.of(SETS, task(), TEST, ("maybe", "never"), NOVEL)
    clients, download = torch.arange(2), partial(ByName().download, task(), {})
    sums = fleet(kind, tmp_path).evaluate(0, clients, download, adapt=False, sets=beyond.sets)
    assert sums["correct"].tolist() == [1, 1]  # of two, and of one
    found = beyond.scores(sums)
    each = {name: part["per_client"] for name, part in found["sets"].items()}
    # the first client knows class 0 alone, so of its images (classes 0 and 1) one is called right
    assert each == {"own-names": [0.5, 1.0], "neighbour": [1.0, 0.5], "base": [2 / 3, 2 / 3], "novel": [0.75, 0.75]}
    hm = 2 * (2 / 3) * 0.75 / (2 / 3 + 0.75)
    assert found["hm"] == pytest.approx(hm)
    assert found["cm"] == pytest.approx((0.75 + hm) / 2)  # the own mean is (1/2 + 1) / 2


def test_own_names_take_away_the_wrong_ones(tmp_path: Path) -> None:
    own = shards()
    own.rows["test"] = [np.array([3]), np.array([4])]  # an image of class 1 that looks like class 0
    beyond = Beyond.of(("own-names",), task(), own.rows["test"], (), np.zeros(0, np.int64))
    found = OneByOne(ByName(), task(), own, Store(lambda client: {}, tmp_path)).evaluate(
        0, torch.arange(2), partial(ByName().download, task(), {}), adapt=False, sets=beyond.sets
    )
    assert found["own-names.correct"].tolist() == [0, 1]
    swapped = Shards(own.pool, TRAIN[::-1], own.rows["test"], 0, {})
    looks_like_one = swapped.pool.x.clone()
    looks_like_one[4] = torch.tensor([0.9, 1.0, 0, 0])
    swapped.pool.x = looks_like_one
    swapped.pool.y = swapped.pool.y.clone()
    swapped.pool.y[4] = 0  # its client now knows class 0 alone: wrong with all names, right with its own
    found = OneByOne(ByName(), task(), swapped, Store(lambda client: {}, tmp_path)).evaluate(
        0, torch.arange(2), partial(ByName().download, task(), {}), adapt=False, sets=beyond.sets
    )
    assert found["correct"].tolist() == [0, 0]
    assert found["own-names.correct"].tolist() == [0, 1]


def test_what_can_be_added_up_is_not_looked_at_again() -> None:
    nothing = np.zeros(0, np.int64)
    assert [one.name for one in Beyond.of(("base",), task(), TEST, (), nothing).sets] == ["neighbour"]
    assert Beyond.of(("base",), task(), TEST, (), nothing).images == 3
    assert Beyond().sets == ()
    assert Beyond().scores({"correct": torch.ones(1), "count": torch.ones(1)}) == {}


def test_means_need_base_and_novel_images() -> None:
    sums = {"correct": torch.tensor([1.0]), "count": torch.tensor([2.0])}
    novel = {"novel.correct": torch.tensor([0.0]), "novel.count": torch.tensor([4.0])}
    rest = {"neighbour.correct": torch.tensor([0.0]), "neighbour.count": torch.tensor([2.0])}
    assert Beyond(("novel",)).scores(sums | novel).keys() == {"sets"}
    found = Beyond(("base", "novel")).scores(sums | novel | rest)
    assert (found["hm"], found["cm"]) == (0.0, 0.25)
    assert found["sets"]["base"]["mean"] == 0.25
    assert "neighbour" not in found["sets"]
