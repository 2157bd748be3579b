"""The two fleets against each other: unequal clients, chunks, a single client, clients without test images."""

from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

from promptfed.core import tree
from promptfed.core.method import Method, Task
from promptfed.core.protocols import Batch
from promptfed.core.tree import Tree
from promptfed.federation.fleet import Fleet, OneByOne, Stacked, score_deployed
from promptfed.federation.loop import Loop
from promptfed.methods.fedavg import FedAvg
from promptfed.methods.pfedpt import PFedPT
from support.loops import METHODS, TESTS, make


def fit(loop: Loop, clients: torch.Tensor) -> tuple[Tree, Tree, torch.Tensor, Tree]:
    down = loop.method.download(loop.task, loop.server, clients)
    fitted = loop.fleet.fit(0, clients, down)
    loop.store.seal()
    return fitted.up, fitted.tested, fitted.weights, fitted.measures


def assert_close(first: Tree, second: Tree) -> None:
    torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{method.name}-{getattr(method, 'prompt', '')}")
@pytest.mark.parametrize("chosen", [(0, 1, 2, 3, 4), (1, 4), (2,), (4, 0, 3)], ids=str)
def test_a_stack_equals_one_by_one(method: Method, chosen: tuple[int, ...], tmp_path: Path) -> None:
    one, many = make(method, tmp_path / "one"), make(method, tmp_path / "many", "stacked")
    clients = torch.tensor(chosen)
    for first, second in zip(fit(one, clients), fit(many, clients), strict=True):
        torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-5)
    for client in chosen:
        assert_close(one.store.get(client), many.store.get(client))


@pytest.mark.parametrize("width", [1, 2, 4])
def test_chunks_equal_the_whole_stack(width: int, tmp_path: Path) -> None:
    method, clients = METHODS[2], torch.arange(5)
    whole, parts = make(method, tmp_path / "a", "stacked"), make(method, tmp_path / "b", "stacked", width=width)
    assert isinstance(whole.fleet, Stacked)
    assert isinstance(parts.fleet, Stacked)
    assert (whole.fleet.width, parts.fleet.width) == (5, width)
    for first, second in zip(fit(whole, clients), fit(parts, clients), strict=True):
        torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-5)
    for client in range(5):
        assert_close(whole.store.get(client), parts.store.get(client))
    scores = [evaluate(loop.fleet, loop) for loop in (whole, parts)]
    assert scores[0]["correct"].tolist() == scores[1]["correct"].tolist()


def evaluate(fleet: Fleet, loop: Loop, adapt: bool = False) -> Tree:
    def download(clients: torch.Tensor) -> Tree:
        return loop.method.download(loop.task, loop.server, clients)

    return fleet.evaluate(0, torch.arange(len(loop.shards)), download, adapt=adapt)


@pytest.mark.parametrize("fleet", ["one-by-one", "stacked"])
@pytest.mark.parametrize("adapt", [False, True])
def test_every_test_image_counts_once(fleet: str, adapt: bool, tmp_path: Path) -> None:
    loop = make(METHODS[2], tmp_path / "run", fleet)
    sums = evaluate(loop.fleet, loop, adapt)
    assert sums["count"].tolist() == list(TESTS)
    assert (sums["correct"] <= sums["count"]).all()
    assert sums["correct"][2] == 0


class Placed(PFedPT):
    """Remembers where the patch was while it was tested."""

    seen: ClassVar[set[tuple[float, ...]]] = set()

    def evaluate(self, task: Task, params: Tree, batch: Batch) -> Tree:
        self.seen.update(tuple(where) for where in batch["where"].view(-1, 2).tolist())
        return super().evaluate(task, params, batch)


@pytest.mark.parametrize(("fleet", "width"), [("one-by-one", 0), ("stacked", 0), ("stacked", 2)])
def test_sixteen_test_images_share_a_place_whoever_is_tested_beside(fleet: str, width: int, tmp_path: Path) -> None:
    Placed.seen.clear()
    method = Placed(prompt="random-patch", size=3)
    loop = make(method, tmp_path / "run", fleet, sizes=(3, 4), tests=(40, 16), width=width)
    evaluate(loop.fleet, loop)
    alone = [loop.shards.data([client], 0, "test", stacked=False) for client in (0, 1)]
    expected = {
        tuple(batch["where"].tolist()) for data in alone for batch in data.batches("test", size=16, ordered=True)
    }
    assert len(expected) == 3 + 1
    assert Placed.seen >= expected
    assert len(Placed.seen) <= len(expected) + 2  # of padding: a client's steps beyond its last image


@pytest.mark.parametrize("method", [METHODS[2], METHODS[3]], ids=["frame", "random-patch"])
def test_fleets_score_the_same(method: Method, tmp_path: Path) -> None:
    one, many = make(method, tmp_path / "a"), make(method, tmp_path / "b", "stacked", width=2)
    first, second = evaluate(one.fleet, one), evaluate(many.fleet, many)
    assert first["correct"].tolist() == second["correct"].tolist()
    assert_close(first, second)


@pytest.mark.parametrize("fleet", ["one-by-one", "stacked"])
def test_without_keeping_nothing_changes(fleet: str, tmp_path: Path) -> None:
    loop = make(METHODS[2], tmp_path / "run", fleet)
    before = {client: tree.map(torch.clone, loop.store.get(client)) for client in range(5)}
    clients = torch.arange(5)
    loop.fleet.fit(0, clients, loop.method.download(loop.task, loop.server, clients), keep=False)
    loop.store.seal()
    for client in range(5):
        torch.testing.assert_close(loop.store.get(client), before[client], rtol=0, atol=0)


@pytest.mark.parametrize("fleet", ["one-by-one", "stacked"])
def test_without_testing_nothing_is_tested(fleet: str, tmp_path: Path) -> None:
    loop, clients = make(METHODS[0], tmp_path / "run", fleet), torch.arange(5)
    down = loop.method.download(loop.task, loop.server, clients)
    assert loop.fleet.fit(0, clients, down, test=False).tested == {}
    assert loop.fleet.fit(0, clients, down).tested["count"].tolist() == list(TESTS)


def test_stored_rows_do_not_hold_the_whole_stack_in_memory(tmp_path: Path) -> None:
    loop = make(METHODS[1], tmp_path / "run", "stacked")
    fit(loop, torch.arange(5))
    for value in loop.store.get(0).values():
        assert value.untyped_storage().nbytes() == value.numel() * value.element_size()


def test_weights_are_the_clients_sizes(tmp_path: Path) -> None:
    loop = make(METHODS[0], tmp_path / "run")
    assert fit(loop, torch.tensor([3, 0]))[2].tolist() == [24.0, 9.0]
    assert isinstance(loop.fleet, OneByOne)


def test_deployed_scores_per_domain(tmp_path: Path) -> None:
    loop = make(FedAvg(), tmp_path / "run", domains=2)
    scores = score_deployed(loop.method, loop.task, loop.server, loop.shards, ("place 0", "place 1"))
    rows = np.concatenate(loop.shards.rows["test"])
    counts = np.bincount(loop.shards.pool.domains[rows], minlength=2)
    assert set(scores) == {"all", "place 0", "place 1"}
    both = (scores["place 0"] * counts[0] + scores["place 1"] * counts[1]) / counts.sum()
    assert scores["all"] == pytest.approx(both)
    assert set(score_deployed(loop.method, loop.task, loop.server, loop.shards, ("place 0",))) == {"all"}
