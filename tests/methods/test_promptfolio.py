"""PromptFolio on a toy dual encoder: a step by hand, and what it is at either end of θ."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from promptfed.core import tree
from promptfed.core.method import Task
from promptfed.core.options import make
from promptfed.core.tree import Tree
from promptfed.methods.promptfl import PromptFL
from promptfed.methods.promptfolio import PromptFolio
from support.toy_clip import NAMES, NET, assert_close, normal
from support.toys import TinyDual, featured, rng, task

TASK = task(TinyDual())
CLIP = Task(NET, NAMES, 3)
STEP = PromptFolio(theta=0.25, tokens=1, lr=1.0, batch=4, weight_decay=0.0)
WRONG = 1 / (1 + math.e)  # what softmax (1, 0) gives to the second
RATES: dict[str, Any] = {"tokens": 3, "lr": 0.5, "batch": 4, "epochs": 2, "momentum": 0.9, "weight_decay": 1e-3}


@dataclass(frozen=True)
class Equal(PromptFolio):
    """Every client counts once, as in PromptFL."""

    name: ClassVar[str] = "equal-folio"

    def weight(self, facts: Tree) -> Tensor:
        return torch.ones_like(facts["size"])


def test_one_round_by_hand() -> None:
    own = featured(torch.tensor([[2.0, 0.0], [0.0, 5.0], [0.0, 5.0]]), [0, 1, 1], [1, 2])
    start, clients = {"context": torch.zeros(1, 2)}, torch.arange(2)
    personal = {"own": torch.zeros(2, 1, 2)}
    up, kept = STEP.fit(TASK, STEP.download(TASK, start, clients), personal, own.data([0, 1], 0, stacked=True))
    # the text of the wrong class turns away from the image: three quarters by the one context, a quarter by the other
    away = torch.tensor([[[-WRONG, 0.0]], [[0.0, -WRONG]]])
    torch.testing.assert_close(up["context"], 0.75 * away)
    torch.testing.assert_close(kept["own"], 0.25 * away)
    after = STEP.aggregate(TASK, start, clients, up, STEP.weight(own.facts([0, 1])))
    torch.testing.assert_close(after["context"], 0.75 * torch.tensor([[-WRONG / 3, -2 * WRONG / 3]]))  # by images


def test_logits_are_the_mixture_of_two_classifiers() -> None:
    params, x = {"context": normal(3, 12), "own": normal(3, 12, seed=1)}, normal(5, 10)
    mixed, first, second = (PromptFolio(theta=theta).predict(CLIP, params, {"x": x}) for theta in (0.3, 0.0, 1.0))
    assert_close(mixed, 0.7 * first + 0.3 * second, 1e-4)
    unit = PromptFolio(theta=0.3, renorm=True).prepare(CLIP, params)["text"]
    assert_close(unit.norm(dim=-1), torch.ones(3))
    assert PromptFolio(theta=0.3).prepare(CLIP, params)["text"].norm(dim=-1).max() < 0.999


def rounds(
    method: PromptFolio | PromptFL, server: Tree, personal: list[Tree], keep: Callable[[int, Tree], None]
) -> Tree:
    """Return the server's tree after two rounds of three unequal clients, one by one."""
    data = featured(normal(12, 10), [n % 3 for n in range(12)], [5, 1, 6])
    for t in range(2):
        sent = []
        for client in range(3):
            up, personal[client] = method.fit(CLIP, server, personal[client], data.data([client], t, stacked=False))
            keep(client, up)
            sent.append(up)
        weights = method.weight(data.facts(range(3)))
        server = method.aggregate(CLIP, server, torch.arange(3), tree.stack(sent), weights)
    return server


def test_without_a_share_of_its_own_it_is_promptfl_bit_for_bit() -> None:
    start = {"context": normal(3, 12, seed=2)}
    folio = rounds(
        Equal(theta=0.0, **RATES), start, [{"own": normal(3, 12, seed=n)} for n in range(3)], lambda *_: None
    )
    plain = rounds(PromptFL(csc=False, **RATES), start, [{}, {}, {}], lambda *_: None)
    assert folio["context"].equal(plain["context"])
    model, x = {"context": start["context"], "own": normal(3, 12)}, {"x": normal(4, 10)}
    found = PromptFolio(theta=0.0).predict(CLIP, model, x)
    assert found.equal(PromptFL(csc=False).predict(CLIP, start, x))
    assert PromptFolio().predict(CLIP, PromptFolio().deploy(CLIP, start), x).equal(found)  # the server's model


def test_with_all_of_its_own_it_is_a_local_coop_bit_for_bit() -> None:
    own = [{"own": normal(3, 12, seed=n)} for n in range(3)]
    alone = [{"context": one["own"]} for one in own]
    rounds(PromptFolio(theta=1.0, **RATES), {"context": normal(3, 12, seed=9)}, own, lambda *_: None)
    coop, data = PromptFL(csc=False, **RATES), featured(normal(12, 10), [n % 3 for n in range(12)], [5, 1, 6])
    for t in range(2):
        for client in range(3):
            alone[client], _ = coop.fit(CLIP, alone[client], {}, data.data([client], t, stacked=False))
    assert all(one["own"].equal(other["context"]) for one, other in zip(own, alone, strict=True))


def test_what_travels_and_what_stays() -> None:
    wide = Task(TinyDual(10, 512), tuple(map(str, range(10))), 4)
    one = featured(torch.eye(10, 512), list(range(10)), [10]).data([0], 0, stacked=False)
    for method, floats in ((PromptFolio(), 8192), (make(PromptFolio, PromptFolio.presets["code"], "method"), 4096)):
        down = method.init_server(wide, rng())
        personal = method.init_client(wide, one, rng(0))
        up, kept = method.fit(wide, down, personal, one)
        assert (tree.floats(down), tree.floats(up), tree.floats(kept)) == (floats, floats, floats)
    assert not personal["own"].equal(method.init_client(wide, one, rng(1))["own"])


def test_a_client_alone_does_what_it_does_in_the_stack() -> None:
    data = featured(normal(13, 10), [n % 3 for n in range(13)], [5, 1, 7])
    method = PromptFolio(tokens=2, batch=3, epochs=2, lr=0.02)
    down = method.init_server(CLIP, rng())
    starts = [method.init_client(CLIP, data.data([n], 0, stacked=False), rng(n)) for n in range(3)]
    up, kept = method.fit(CLIP, tree.repeat(down, 3), tree.stack(starts), data.data(range(3), 0, stacked=True))
    for client in range(3):
        alone = method.fit(CLIP, down, starts[client], data.data([client], 0, stacked=False))
        torch.testing.assert_close((tree.row(up, client), tree.row(kept, client)), alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("theta", [0.0, 1.0])
def test_a_context_without_a_share_is_left_alone(theta: float) -> None:
    data = featured(normal(4, 10), [0, 1, 2, 0], [4]).data([0], 0, stacked=False)
    method = replace(STEP, theta=theta, tokens=3, weight_decay=0.01)
    start = {"context": normal(3, 12), "own": normal(3, 12, seed=1)}
    up, kept = method.fit(CLIP, {"context": start["context"]}, {"own": start["own"]}, data)
    still, moved = (kept["own"], up["context"]) if theta == 0 else (up["context"], kept["own"])
    assert still.equal(start["own" if theta == 0 else "context"])
    assert not moved.equal(start["context" if theta == 0 else "own"])
