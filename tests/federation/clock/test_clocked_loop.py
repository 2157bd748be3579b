"""Rounds whose server does not wait for all: by hand, under both fleets, and stopped at any round."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.method import Method, Task
from promptfed.core.protocols import Data, Rng
from promptfed.core.tree import Tree
from promptfed.federation.clock.loop import ClockedLoop
from promptfed.federation.clock.options import filled
from promptfed.federation.clock.rebasing import rebase
from promptfed.federation.loop import Loop
from promptfed.methods.fedavg import FedAvg
from promptfed.methods.fedbabu import FedBABU
from promptfed.methods.local_only import Local
from promptfed.methods.pfedpt import PFedPT
from support.loops import METHODS, make

PLAIN = {"down_mbit": 1e30, "up_mbit": 1e30, "latency_ms": 0, "slowness": 1, "spread": 0, "jitter": 0, "dropout": 0}
BY_HAND = {**PLAIN, "hours": 24, "image_ms": 1000, "mode": "fedbuff", "buffer": 2}
# everyone is there, and takes up to minutes
MOBILE = {"profile": "mobile", "hours": 24, "image_ms": 1000, "mode": "fedbuff", "buffer": 2}
SEMI = MOBILE | {"mode": "semi", "deadline_minutes": 5}


def go(loop: Loop) -> Loop:
    loop.run(lambda: loop.save("recipe", "partition"), lambda line: None)
    return loop


def clocked(method: Method, folder: Path, table: dict[str, Any], fleet: str = "one-by-one", **keys: Any) -> Loop:
    return make(method, folder, fleet, clock=filled(table), **keys)


@dataclass(frozen=True)
class Halfway(FedAvg):
    """One number w; client i goes half of the way from it to 2^(i + 1): one step of least squares at rate 1/2."""

    name: ClassVar[str] = "halfway"

    def init_server(self, task: Task, rng: Rng) -> Tree:
        return {"w": torch.zeros(1)}

    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        target = 2.0 ** (data.facts["client"] + 1).unsqueeze(-1)
        return {"w": down["w"] + (target - down["w"]) / 2}, personal

    def predict(self, task: Task, params: Tree, batch: Tree) -> torch.Tensor:
        return params["w"].unsqueeze(-1).expand(*batch["x"].shape[:-3], len(task.classes))


@pytest.mark.parametrize("fleet", ["one-by-one", "stacked"])
def test_two_of_three_by_hand(fleet: str, tmp_path: Path) -> None:
    # 1, 2 and 5 images, a second each: see test_arrivals for who is there when
    loop = clocked(Halfway(), tmp_path / "run", BY_HAND, fleet, sizes=(1, 2, 5), tests=(1, 1, 1), rounds=4)
    found = []
    for t in range(4):
        loop.server, _ = loop.round(t)
        found.append(loop.server["w"].item())
    # of 0 and 1, from 0: to 1 and 2, counting 1 and 2 images
    first = (1 * 1 + 2 * 2) / 3
    # of 0 and 1, from the first
    second = first + (1 * (2 - first) / 2 + 2 * (4 - first) / 2) / 3
    # of 0 from the second, and of 2 from 0, two rounds ago: half of the way to 8 is 4, which counts 1/√3
    third = second + (1 * (2 - second) / 2 + 5 * 4 / 3**0.5) / 6
    # of 0 from the third, and of 1 from the second, one round ago
    fourth = third + (1 * (2 - third) / 2 + 2 * (4 - second) / 2 / 2**0.5) / 3
    assert found == pytest.approx([first, second, third, fourth], rel=1e-6)


def test_the_round_says_when_it_ended_and_how_late_its_answers_were(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"sizes": (1, 2, 5), "tests": (1, 1, 1), "rounds": 3}
    lines = go(clocked(Halfway(), tmp_path / "run", BY_HAND, **keys)).record.rounds
    assert [line["clock"] for line in lines] == [2.0, 4.0, 5.0]
    assert [line["clients"] for line in lines] == [[0, 1], [0, 1], [0, 2]]
    assert [line["measures"]["staleness"] for line in lines] == [0, 0, 1]
    plain = go(clocked(Halfway(), tmp_path / "plain", BY_HAND | {"mode": "sync"}, **keys)).record.rounds
    assert [(line["clock"], line["measures"]) for line in plain] == [(5.0, {}), (10.0, {}), (15.0, {})]


def test_a_late_change_is_added_to_the_present_model() -> None:
    down, now, up = ({"w": torch.tensor([[one], [two]])} for one, two in ((1.0, 2.0), (3.0, 3.0), (1.1, 6.0)))
    found = rebase(down, now, up, [True, False], [1.0, 0.5])["w"]
    assert found[0].equal(up["w"][0])  # fresh: bit for bit
    assert found[1].item() == 3 + 0.5 * (6 - 2)
    with pytest.raises(PromptFedError, match="sends delta, which clients do not receive"):
        rebase(down, now, {"delta": up["w"]}, [True, False], [1.0, 0.5])


@pytest.mark.parametrize("table", [{"mode": "sync"}, {"mode": "fedbuff", "buffer": 3}], ids=lambda table: table["mode"])
def test_who_waits_for_all_is_a_synchronous_run_bit_for_bit(table: dict[str, Any], tmp_path: Path) -> None:
    keys: dict[str, Any] = {"per_round": 3, "rounds": 4}
    one = go(make(METHODS[2], tmp_path / "one", **keys))
    other = go(clocked(METHODS[2], tmp_path / "other", {"profile": "mobile"} | table, **keys))
    assert isinstance(other, ClockedLoop)
    for first, second in zip(one.record.rounds, other.record.rounds, strict=True):
        same = first.keys() - {"seconds", "measures"}
        assert {key: first[key] for key in same} == {key: second[key] for key in same}
    assert_same(one, other)


def assert_same(one: Loop, other: Loop) -> None:
    for first, second in ((one.server, other.server), *zip(personal(one), personal(other), strict=True)):
        assert first.keys() == second.keys()
        assert all(first[name].equal(second[name]) for name in first)


def personal(loop: Loop) -> list[Tree]:
    return [loop.store.get(client) for client in range(len(loop.shards))]


@pytest.mark.parametrize("table", [MOBILE, SEMI], ids=lambda table: str(table["mode"]))
@pytest.mark.parametrize("method", [METHODS[0], METHODS[2]], ids=lambda method: str(method.name))
def test_both_fleets_agree(method: Method, table: dict[str, Any], tmp_path: Path) -> None:
    one = go(clocked(method, tmp_path / "one", table, rounds=6))
    many = go(clocked(method, tmp_path / "many", table, "stacked", rounds=6))
    late = [line["measures"]["staleness"] for line in one.record.rounds]
    assert max(late) > 0
    for first, second in zip(one.record.rounds, many.record.rounds, strict=True):
        for key in ("clients", "clock", "traffic", "images"):
            assert first[key] == second[key]
        assert first["loss"] == pytest.approx(second["loss"], rel=1e-4)
    torch.testing.assert_close(one.server, many.server, rtol=1e-4, atol=1e-5)
    for first, second in zip(personal(one), personal(many), strict=True):
        torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("table", [MOBILE, SEMI], ids=lambda table: str(table["mode"]))
def test_stopped_after_every_round_it_ends_as_a_straight_run(table: dict[str, Any], tmp_path: Path) -> None:
    method, rounds = PFedPT(lr=0.05, epochs=1, prompt_epochs=1, batch=8), 7
    straight = go(clocked(method, tmp_path / "straight", table, rounds=rounds))
    kept = 0
    for stop in range(1, rounds):
        loop = clocked(method, tmp_path / "run", table, rounds=rounds)
        if stop > 1:
            loop.restore(loop.record.state("recipe", "partition") or {})
        with pytest.raises(KeyboardInterrupt):
            loop.run(partial(loop.save, "recipe", "partition"), press)
        assert loop.finished == stop
        files = {path.name for path in (tmp_path / "run" / "checkpoint").glob("version-*")}
        assert files == set((loop.record.state("recipe", "partition") or {}).get("versions", {}))
        kept = max(kept, len(files))
    assert kept > 1
    again = clocked(method, tmp_path / "run", table, rounds=rounds)
    again.restore(again.record.state("recipe", "partition") or {})
    assert_same(straight, go(again))
    first, second = ([{**line, "seconds": 0} for line in one.record.rounds] for one in (straight, again))
    assert first == second


def press(line: dict[str, Any]) -> None:
    """Press Ctrl-C after a round."""
    raise KeyboardInterrupt


def test_a_lost_model_of_those_at_work_is_refused(tmp_path: Path) -> None:
    loop = go(clocked(METHODS[0], tmp_path / "run", MOBILE, rounds=3))
    versions = sorted((tmp_path / "run" / "checkpoint").glob("version-*"))
    assert versions
    versions[0].unlink()
    with pytest.raises(PromptFedError, match=f"{versions[0].name} is missing"):
        loop.restore(loop.record.state("recipe", "partition") or {})


def test_nobody_waits_for_those_who_send_nothing(tmp_path: Path) -> None:
    with pytest.raises(PromptFedError, match=r"Method local sends nothing .* set clock.mode=sync"):
        clocked(Local(), tmp_path / "run", MOBILE)
    line = go(clocked(Local(epochs=1), tmp_path / "other", {"profile": "mobile"}, rounds=1)).record.rounds[0]
    devices = [line["clock"] / (20 * 0.01 * size) for size in (9, 40, 3, 24, 1)]
    assert min(devices) < 1.5 * 2.0**0.7 * 3  # training of the largest alone: nobody is asleep or away


def test_a_guard_on_the_server_sees_answers_to_one_model(tmp_path: Path) -> None:
    # the median of two is their plain mean, whatever their images
    keys: dict[str, Any] = {"sizes": (1, 2, 5), "tests": (1, 1, 1), "rounds": 3, "guards": {"robust": "median"}}
    loop = clocked(Halfway(), tmp_path / "run", BY_HAND, **keys)
    found = [0.0]
    for t in range(3):
        loop.server, _ = loop.round(t)
        found.append(loop.server["w"].item())
    fresh, late = (2 - found[2]) / 2, 4 / 3**0.5
    assert found[3] == pytest.approx(found[2] + (fresh + late) / 2)


def test_the_bytes_on_the_clock_are_the_methods_own(tmp_path: Path) -> None:
    loop = clocked(FedBABU(epochs=1), tmp_path / "run", MOBILE)
    assert isinstance(loop, ClockedLoop)
    sizes, body = loop.arrivals.sizes, tree.drop(loop.server, ["head.weight", "head.bias"])
    assert (sizes.down, sizes.once, sizes.up) == (tree.nbytes(loop.server), 0, tree.nbytes(body))
