"""Optional offers: what a method that makes none answers, and what a method around another one forwards."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from promptfed.core import extensions
from promptfed.core.extensions import HOOKS, OPTIONAL, Exhibits, Joins, LearnsWord, Measures, Pictures, SortsDomains
from promptfed.core.method import Method, Task, Traits, adapts
from promptfed.core.protocols import Data
from promptfed.core.tree import Tree
from promptfed.methods.fedapt import FedAPT
from promptfed.methods.fedavg import FedAvg
from promptfed.methods.fedbabu import FedBABU
from promptfed.methods.pfedpg import PFedPG
from promptfed.methods.pfedpt import PFedPT
from promptfed.methods.relic import RELIC
from support.toys import rng, task

SERVER = {"w": torch.ones(2)}
TASK = task()
ONE = torch.tensor([0])


def test_a_method_that_offers_nothing() -> None:
    method = FedAvg()
    for offer in (Joins, Measures, Exhibits, Pictures, SortsDomains, LearnsWord):
        assert not isinstance(method, offer)
    assert extensions.admit(method, TASK, SERVER, ONE, rng()) is SERVER
    assert extensions.join(method, TASK, SERVER, ONE, {}, torch.ones(1)) is SERVER
    assert extensions.measures(method, TASK, {}, {}) == {}
    assert extensions.exhibits(method, TASK, SERVER, ONE, {}) == {}
    assert extensions.pictures(method, TASK, {}) == {}
    assert extensions.sorter(method, TASK, SERVER) is None


def test_what_the_four_systems_offer() -> None:
    assert isinstance(PFedPG(), Joins)
    assert isinstance(PFedPG(), Exhibits)
    assert isinstance(PFedPT(), Measures)
    assert isinstance(PFedPT(), Pictures)
    assert isinstance(FedAPT(), SortsDomains)
    assert isinstance(RELIC(), LearnsWord)


def test_a_method_author_meets_few_members() -> None:
    members = [name for name in vars(Method) if not name.startswith("_")]
    hooks = [name for name in members if name not in ("name", "presets", "backbone", "recipe", "quick")]
    assert len(hooks) <= 15
    assert {*HOOKS, "traits"} == set(hooks)


@pytest.mark.parametrize(
    ("method", "changes"),
    [(FedAvg(), False), (FedAvg(tune_epochs=1), True), (FedBABU(), True), (PFedPT(), False)],
)
def test_a_method_adapts_if_it_says_how_and_its_options_do_not_rule_it_out(method: Method, changes: bool) -> None:
    assert adapts(method) is changes


@dataclass(frozen=True)
class Recorder(Method):
    """Answers every hook with its own name and what it was asked."""

    traits = Traits(needs_rows=True, once=("w",))


def answer(name: str) -> Any:
    def hook(self: Method, *given: Any, **named: Any) -> Any:
        return name, given, named

    return hook


for hook in HOOKS:
    setattr(Recorder, hook, answer(hook))


@extensions.forwards
@dataclass(frozen=True)
class Around(Method):
    """Changes `fit` alone."""

    inner: Method

    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        return {"own": torch.zeros(1)}, personal


@pytest.mark.parametrize("name", [name for name in HOOKS if name != "fit"])
def test_every_hook_is_the_inner_methods(name: str) -> None:
    assert getattr(Around(Recorder()), name)(1, two=2) == (name, (1,), {"two": 2})


def test_its_own_hook_stays() -> None:
    data: Any = None
    assert list(Around(Recorder()).fit(TASK, {}, {}, data)[0]) == ["own"]


def test_an_offer_is_the_inner_methods_too() -> None:
    inner = PFedPT(size=1)
    around: Any = Around(inner)
    data: Any = None
    personal = inner.init_client(TASK, data, rng())
    assert set(OPTIONAL) <= set(dir(around))
    assert around.pictures(TASK, personal)["prompt"].equal(inner.pictures(TASK, personal)["prompt"])
    assert float(around.measures(TASK, personal, personal)["prompt_drift"]) == 0


def test_an_offer_that_the_inner_method_does_not_make() -> None:
    around: Any = Around(FedAvg())
    assert around.admit(TASK, SERVER, ONE, rng()) is SERVER
    assert around.pictures(TASK, {}) == {}
