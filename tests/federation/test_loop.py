"""The round loop: whole rounds under both fleets, what is scored when, and Ctrl-C put off."""

import math
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.method import Method, Task, Traits
from promptfed.core.protocols import Data, Rng
from promptfed.core.tree import Tree
from promptfed.federation.evaluate import Score
from promptfed.federation.loop import Loop, rng_for, uninterrupted
from promptfed.federation.summarising import summarise
from promptfed.methods.fedavg import FedAvg
from promptfed.methods.local_only import Local
from promptfed.methods.pfedpt import PFedPT
from promptfed.results.folder.record import Record
from support.loops import METHODS, make


def go(loop: Loop) -> list[dict[str, Any]]:
    loop.run(lambda: loop.save("recipe", "partition"), lambda line: None)
    return loop.record.rounds


CASES: dict[str, dict[str, Any]] = {
    "unequal clients": {},
    "some take part": {"per_round": 2},
    "in chunks": {"per_round": 3, "width": 2},
    "one client": {"sizes": (7,), "tests": (4,)},
    "one class": {"sizes": (7, 4), "tests": (4, 3), "classes": 1},
    "smaller than a batch": {"sizes": (1, 2, 3), "tests": (2, 2, 2)},
    "nobody tests but one": {"sizes": (9, 8, 7), "tests": (0, 5, 0)},
}


@pytest.mark.parametrize("method", METHODS[:3], ids=lambda method: str(method.name))
@pytest.mark.parametrize("case", CASES)
def test_rounds_of_both_fleets_agree(case: str, method: Method, tmp_path: Path) -> None:
    options = CASES[case]
    one = make(method, tmp_path / "one", **{**options, "width": 0})
    many = make(method, tmp_path / "many", "stacked", **options)
    for first, second in zip(go(one), go(many), strict=True):
        assert first["clients"] == second["clients"]
        assert first["traffic"] == second["traffic"]
        assert first["images"] == second["images"]
        assert first["received"] == second["received"]
        assert first["trained"]["per_client"] == second["trained"]["per_client"]
        assert first["loss"] == pytest.approx(second["loss"], rel=1e-4)
    torch.testing.assert_close(one.server, many.server, rtol=1e-4, atol=1e-5)
    for client in range(len(one.shards)):
        torch.testing.assert_close(one.store.get(client), many.store.get(client), rtol=1e-4, atol=1e-5)


def test_a_client_without_test_images_has_no_score(tmp_path: Path) -> None:
    loop = make(METHODS[0], tmp_path / "run", sizes=(9, 8, 7), tests=(0, 5, 0))
    for line in go(loop):
        each = line["received"]["per_client"]
        assert (each[0], each[2]) == (None, None)
        assert line["received"]["mean"] == line["received"]["weighted"] == each[1]


@pytest.mark.parametrize("fleet", ["one-by-one", "stacked"])
def test_nobody_has_test_images(fleet: str, tmp_path: Path) -> None:
    lines = go(make(METHODS[0], tmp_path / "run", fleet, sizes=(9, 8), tests=(0, 0)))
    assert len(lines) == 2
    assert lines[-1]["received"]["per_client"] == [None, None]


@pytest.mark.parametrize(("method", "deployed"), [(FedAvg(), True), (Local(), False), (PFedPT(), False)])
def test_the_servers_model_is_scored_where_there_is_one(method: Method, deployed: bool, tmp_path: Path) -> None:
    lines = go(make(method, tmp_path / "run", sizes=(9, 8), tests=(3, 4)))
    assert (lines[-1]["deployed"] is not None) is deployed


def test_without_aggregation_nothing_happens_to_those_left_out(tmp_path: Path) -> None:
    loop = make(METHODS[1], tmp_path / "run", per_round=1, rounds=1)
    before = [tree.map(torch.clone, loop.store.get(client)) for client in range(5)]
    (line,) = go(loop)
    for client in range(5):
        changed = any(not loop.store.get(client)[name].equal(before[client][name]) for name in before[client])
        assert changed == (client in line["clients"])


@dataclass(frozen=True)
class Adapted(FedAvg):
    """Deploys a model of zeros: whatever it received, it answers with class 0."""

    traits = Traits()

    def adapt(self, task: Task, down: Tree, personal: Tree, data: Data) -> Tree:
        return tree.map(torch.zeros_like, down)


@pytest.mark.parametrize("fleet", ["one-by-one", "stacked"])
def test_the_deployed_models_are_scored_if_they_differ(fleet: str, tmp_path: Path) -> None:
    assert make(FedAvg(), tmp_path / "plain", sizes=(9, 8), tests=(3, 4)).adapted() is None
    loop = make(Adapted(epochs=1), tmp_path / "run", fleet, sizes=(9, 8), tests=(3, 6))
    go(loop)
    adapted = loop.adapted()
    assert adapted is not None
    assert adapted["per_client"] == [1 / 3, 1 / 3]  # the classes come in turn
    summary = summarise(loop.record, {}, adapted, loop.after())
    assert summary["accuracy"]["per_client"] == [1 / 3, 1 / 3]
    assert summary["accuracy"]["before"] == loop.record.rounds[-1]["received"]


def test_after_changes_nothing(tmp_path: Path) -> None:
    loop = make(METHODS[2], tmp_path / "run", sizes=(9, 8), tests=(3, 4))
    go(loop)
    before = [tree.map(torch.clone, loop.store.get(client)) for client in range(2)]
    assert loop.after() == loop.after()
    for client in range(2):
        torch.testing.assert_close(loop.store.get(client), before[client], rtol=0, atol=0)


def test_divergence_is_named(tmp_path: Path) -> None:
    loop = make(FedAvg(lr=1e30, epochs=3), tmp_path / "run")
    with pytest.raises(PromptFedError, match=r"diverged in round 1.*lower method\.lr"):
        go(loop)
    assert loop.finished == 0
    assert all(torch.isfinite(value).all() for value in loop.server.values())


def test_saved_when_asked_and_at_the_end(tmp_path: Path) -> None:
    loop, saved = make(METHODS[0], tmp_path / "run", rounds=3, sizes=(4,), tests=(2,)), list[int]()

    def save() -> None:
        saved.append(loop.finished)
        loop.save("r", "p")

    loop.run(save, lambda line: None)
    assert saved == [3]  # three rounds take less than the five seconds between checkpoints


def test_restored_trees_keep_their_order(tmp_path: Path) -> None:
    loop = make(METHODS[2], tmp_path / "run", sizes=(9, 8), tests=(3, 4))
    go(loop)
    again = make(METHODS[2], tmp_path / "again", sizes=(9, 8), tests=(3, 4))
    again.record = Record.reopen(tmp_path / "run")
    again.store._folder = again.record.checkpoint
    again.restore(again.record.state("recipe", "partition") or {})
    # methods may walk over a tree, and sums depend on the order
    assert list(again.server) == list(loop.server)
    assert list(again.store.get(0)) == list(loop.store.get(0))


# -- summary ------------------------------------------------------------------------------------------------------


def line(number: int, mean: float | None, weighted: float | None = None, seconds: float = 1.0) -> dict[str, Any]:
    received = None if mean is None else {"mean": mean, "weighted": weighted, "per_client": [mean]}
    traffic = {"down_floats": 5, "up_floats": 3, "down_bytes": 20, "up_bytes": 12}
    return {
        "round": number,
        "received": received,
        "trained": None,
        "deployed": None,
        "traffic": traffic,
        "images": 10,
        "seconds": seconds,
    }


def summary(means: Sequence[float | None], tmp_path: Path) -> dict[str, Any]:
    record = Record(tmp_path)
    record.rounds = [line(number, mean, mean) for number, mean in enumerate(means, 1)]
    return summarise(record, {"seed": 0}, None, None)


def test_summary_adds_up(tmp_path: Path) -> None:
    found = summary([0.2, 0.6, None, 0.5], tmp_path)
    assert (found["accuracy"]["best_round"], found["accuracy"]["best_mean"]) == (2, 0.6)
    assert (found["accuracy"]["mean"], found["accuracy"]["round"]) == (0.5, 4)
    assert found["traffic"] == {"down_floats": 5, "up_floats": 3, "down_bytes": 80, "up_bytes": 48}
    assert (found["seconds"], found["images_per_second"], found["seed"]) == (4.0, 10.0, 0)


def test_the_first_round_that_is_nearly_as_good_as_the_best(tmp_path: Path) -> None:
    assert summary([0.5, 0.76, None, 0.8, 0.7], tmp_path)["rounds95"] == 2  # 0.95 × 0.8 = 0.76
    assert summary([0.5, 0.75, None, 0.8, 0.7], tmp_path)["rounds95"] == 4


def test_where_only_the_servers_model_is_tested_it_is_that_ones(tmp_path: Path) -> None:
    record = Record(tmp_path)
    record.rounds = [line(1, None), line(2, None), line(3, 0.9, 0.9)]
    for number, value in enumerate((0.2, 0.58, 0.6)):
        record.rounds[number]["deployed"] = {"all": value}
    assert summarise(record, {}, None, None)["rounds95"] == 2


def test_the_first_of_equals_is_best(tmp_path: Path) -> None:
    assert summary([0.5, 0.6, 0.6], tmp_path)["accuracy"]["best_round"] == 2


def test_the_best_round_by_test_images_may_be_another(tmp_path: Path) -> None:
    record = Record(tmp_path)
    record.rounds = [line(1, 0.5, 0.9), line(2, 0.7, 0.8), line(3, None), line(4, 0.6, 0.85)]
    adapted: Score = {"mean": 0.95, "weighted": 0.96, "worst": 0.95, "p10": 0.95, "per_client": [0.95]}
    found = summarise(record, {}, adapted, None)["accuracy"]
    assert (found["best_weighted_round"], found["best_weighted"]) == (1, 0.9)
    assert (found["best_round"], found["best_mean"]) == (2, 0.7)
    assert (found["mean"], found["weighted"], found["before"]["weighted"]) == (0.95, 0.96, 0.85)


def test_no_score_at_all(tmp_path: Path) -> None:
    found = summary([math.nan, math.nan], tmp_path)["accuracy"]
    assert math.isnan(found["best_mean"])


# -- randomness and interruption ----------------------------------------------------------------------------------


def test_shared_randomness_is_shared() -> None:
    one, two = (torch.rand(3, generator=rng_for(0, who)("prompt", shared=True)) for who in (1, 2))
    assert one.equal(two)
    own = [
        torch.rand(3, generator=rng_for(seed, who)("prompt")) for seed, who in ((0, 1), (0, 2), (1, 1), (0, "server"))
    ]
    assert len({tuple(value.tolist()) for value in own}) == 4


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt even where the tests run in the background, whose shell ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_waits_for_the_block() -> None:
    done, before = [], signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012, SIM117
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGINT)
            done.append("rest of the block")
    assert done == ["rest of the block"]
    assert signal.getsignal(signal.SIGINT) is before


def test_without_ctrl_c_nothing_happens() -> None:
    before = signal.getsignal(signal.SIGINT)
    with uninterrupted():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_an_error_in_the_block_gets_out_and_the_handler_is_put_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ValueError, match="inside"), uninterrupted():
        raise ValueError("inside")
    assert signal.getsignal(signal.SIGINT) is before


def test_another_thread_is_left_alone() -> None:
    found: list[bool] = []

    def work() -> None:
        with uninterrupted():
            found.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [True]


@dataclass(frozen=True)
class SendsKeysOnce(FedAvg):
    """FedAvg that also sends ten numbers which never change."""

    traits = Traits(once=("keys",))

    def init_server(self, task: Task, rng: Rng) -> Tree:
        return super().init_server(task, rng) | {"keys": torch.zeros(10)}

    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        return super().fit(task, tree.drop(down, self.traits.once), personal, data)


@pytest.mark.parametrize("fleet", ["one-by-one", "stacked"])
def test_what_is_sent_once_counts_at_the_first_contact_alone(fleet: str, tmp_path: Path) -> None:
    plain = go(make(FedAvg(), tmp_path / "plain", fleet, per_round=2, rounds=3))
    lines = go(make(SendsKeysOnce(), tmp_path / "once", fleet, per_round=2, rounds=3))
    seen: set[int] = set()
    for line, other in zip(lines, plain, strict=True):
        new = set(line["clients"]) - seen
        assert line["traffic"]["down_bytes"] == other["traffic"]["down_bytes"] + 40 * len(new)
        assert {**line["traffic"], "down_bytes": 0} == {**other["traffic"], "down_bytes": 0}
        seen |= new
    assert 0 < len(seen) < 2 * len(lines)  # someone came twice


def test_the_best_local_round_by_hand(tmp_path: Path) -> None:
    record = Record(tmp_path)
    record.rounds = [line(1, 0.5, 0.5), line(2, 0.6, 0.6), line(3, 0.7, 0.7)]
    record.rounds[1]["local"] = {"weighted": 0.75, "mean": 0.1}
    record.rounds[2]["local"] = {"weighted": 0.7, "mean": 0.9}
    found = summarise(record, {}, None, None)["accuracy"]
    assert (found["best_local_round"], found["best_local"]) == (2, 0.75)
    del record.rounds[1:]  # lines of older versions, and a first round
    found = summarise(record, {}, None, None)["accuracy"]
    assert (found["best_local_round"], found["best_local"]) == (None, None)


@pytest.mark.parametrize("every", [1, 2])
def test_right_after_local_training_by_the_rounds_themselves(every: int, tmp_path: Path) -> None:
    tests = (3, 5, 4, 6)
    loop = make(METHODS[0], tmp_path / "run", sizes=(9, 8, 7, 6), tests=tests, per_round=2, rounds=4)
    loop.settings = replace(loop.settings, every=every)
    lines = go(loop)
    assert lines[0].get("local") is None
    for before, after in pairwise(lines):
        if not before["received"] or not after["trained"]:
            assert after["local"] is None
            continue
        pairs = zip(after["trained"]["per_client"], before["received"]["per_client"], strict=True)
        each = [new if new is not None else old for new, old in pairs]
        right = sum(value * count for value, count in zip(each, tests, strict=True))
        assert after["local"]["weighted"] == pytest.approx(right / 18)
    assert [line["round"] for line in lines if line["local"]] == ([2, 3, 4] if every == 1 else [])
