"""A run that several processes share is, to the last bit, the run of one process."""

from pathlib import Path

import numpy as np
import pytest

from promptfed.core.method import Method
from promptfed.core.ranks import Ranks
from promptfed.federation.ranked import deal
from promptfed.methods.fedapt import FedAPT
from promptfed.methods.fedavg import FedAvg
from promptfed.methods.local_only import Local
from promptfed.methods.pfedpg import PFedPG
from promptfed.methods.pfedpt import PFedPT
from promptfed.methods.pfedvpt import PFedVPT
from promptfed.methods.promptfl import PromptFL
from promptfed.methods.relic import RELIC
from promptfed.runs.checks import toy_loop
from support.loops import make
from support.ranked import Case, differences, together

SHARED: Method = FedAvg(lr=0.05, epochs=1, batch=8, momentum=0.5)
OWN: Method = PFedPT(lr=0.05, epochs=1, prompt_epochs=1, batch=8)
SAMPLE: tuple[Method, ...] = (
    PFedPG(tokens=2, epochs=1, batch=8, lr=0.05),
    FedAPT(domains=2, tokens=2, batch=8),
    PFedVPT(prompt="both", tokens=2, batch=8, lr=0.05),
    PromptFL(tokens=2, batch=8),
    RELIC(lr=0.05, epochs=1, repeats=1, batch=8),
)
CASES: dict[str, Case] = {
    **{method.name: (toy_loop, method, {"rounds": 2}) for method in SAMPLE},
    "models that are averaged": (make, SHARED, {}),
    "nothing is sent": (make, Local(lr=0.05, epochs=1, batch=8), {}),
    "sampling": (make, OWN, {"per_round": 2, "rounds": 4}),
    "sampling where clients keep nothing": (make, SHARED, {"per_round": 2, "rounds": 4}),
    "fewer clients in a round than processes": (make, OWN, {"per_round": 1, "rounds": 3}),
    "one per domain": (make, SHARED, {"per_round": 2, "sampling": "one-per-domain", "domains": 2}),
    "spilling": (make, OWN, {"memory_mb": 0.001, "per_round": 2, "rounds": 4, "checkpoint_seconds": 0.0}),
    "newcomers": (make, OWN, {"newcomers": 2, "join_rounds": 2}),
    "early stopping": (make, SHARED, {"rounds": 9, "stop": {"patience": 1, "min_delta": 1.0}}),
    "early stopping by loss": (make, OWN, {"rounds": 9, "stop": {"patience": 1, "min_delta": 9.0, "monitor": "loss"}}),
    "only the server's model": (make, SHARED, {"evaluate": {"personal": False}, "domains": 2, "rounds": 3}),
    "evaluated now and then": (make, OWN, {"evaluate": {"every": 2}, "rounds": 3}),
    "tests on others' images": (make, OWN, {"evaluate": {"sets": "own-names+neighbour"}, "per_round": 2}),
    "clip and local noise": (make, SHARED, {"guards": {"clip": 1.0, "noise": 0.1}}),
    "central noise": (make, SHARED, {"guards": {"clip": 1.0, "noise": 0.1, "place": "central"}}),
    "a median": (make, SHARED, {"guards": {"robust": "median"}}),
    "krum": (make, SHARED, {"guards": {"robust": "krum", "byzantine": 1}}),
    "a secure sum": (make, SHARED, {"guards": {"secure": True}}),
    "random changes of images": (make, SHARED, {"train": {"augment": "flip"}}),
    "falling rates": (make, SHARED, {"schedule": {"name": "cosine"}}),
}


QUICK = ("pfedpg", "sampling", "spilling", "newcomers", "early stopping", "clip and local noise", "a secure sum")


def test_some_things_are_as_in_one_process(tmp_path: Path) -> None:
    found = differences(2, {name: CASES[name] for name in QUICK}, tmp_path)
    assert {name: what for name, what in found.items() if what} == {}


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_everything_is_as_in_one_process(size: int, tmp_path: Path) -> None:
    found = differences(size, CASES, tmp_path)
    assert {name: what for name, what in found.items() if what} == {}


def test_the_leader_may_aggregate_for_all(tmp_path: Path) -> None:
    some = ("nothing is sent", "sampling where clients keep nothing", "only the server's model", "krum")
    found = differences(2, {name: CASES[name] for name in some}, tmp_path, alike=False)
    assert {name: what for name, what in found.items() if what} == {}


def secret_noise(ranks: Ranks, folder: Path) -> None:
    """Hold that all processes have the server's tree with the noise that only one of them has drawn."""
    guards = {"clip": 1.0, "noise": 0.1, "entropy": "system"}
    loop = make(SHARED, folder, ranks=ranks, guards=guards)
    loop.server, _ = loop.round(0)
    told = ranks.told({name: value.numpy() for name, value in loop.server.items()})
    assert all(np.array_equal(one[name], told[0][name]) for one in told for name in told[0])


def test_secret_noise_is_drawn_once(tmp_path: Path) -> None:
    assert together(2, secret_noise, tmp_path / "run") == [0, 0]


def test_a_comparison_sees_the_last_bit(tmp_path: Path) -> None:
    # two clients of different sizes in one stack, and each in one of its own
    more = {"fleet": "stacked", "per_round": 0, "width": 0, "rounds": 2}
    found = differences(2, {"a stack that is divided": (toy_loop, SAMPLE[3], more)}, tmp_path)
    assert "server" in found["a stack that is divided"]


def test_who_has_most_gets_nothing_more() -> None:
    assert deal([9, 40, 3, 24], 2) == [1, 0, 1, 1]
    assert deal([5, 5, 5, 5, 5], 3) == [0, 1, 2, 0, 1]
    assert deal([1, 2], 4) == [1, 0]
    assert deal([], 2) == []


def test_stacks_stay_together_where_there_are_enough() -> None:
    assert deal([1, 1, 1, 1, 1, 1], 2, 2) == [0, 0, 1, 1, 0, 0]
    assert deal([1, 1, 9, 9, 1], 2, 2) == [1, 1, 0, 0, 1]
    assert deal([1, 1, 1], 2, 2) == [0, 1, 0]
