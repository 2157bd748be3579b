"""FedKgCoOp on a toy dual encoder: its loss by hand, and what it is at either end of its guide."""

import math

import pytest
import torch

from promptfed.core import tree
from promptfed.core.method import Task
from promptfed.core.options import make
from promptfed.core.prompts.text import said
from promptfed.methods.fedkgcoop import FedKgCoOp
from promptfed.methods.promptfl import PromptFL
from support.toy_clip import NAMES, NET, normal
from support.toys import TinyDual, featured, rng, task

TASK = task(TinyDual())
CLIP = Task(NET, NAMES, 3)
HALF = math.sqrt(0.5)
RATES = {"tokens": 3, "lr": 0.5, "batch": 4, "epochs": 2, "momentum": 0.9, "weight_decay": 1e-3}


def test_the_loss_by_hand() -> None:
    data = featured(torch.tensor([[0.0, 3.0]]), [1], [1]).data([0], 0, stacked=False)
    (batch,) = data.batches(size=1)
    # the context (1, 0) makes (1, 0) of class 0 and (√½, √½) of class 1: cosines of 1 and √½ with the names alone
    params = {"context": torch.tensor([[1.0, 0.0]])}
    entropy = math.log(1 + math.exp(-HALF))
    found = FedKgCoOp(guide=2.0).loss(TASK, {}, params, batch)
    torch.testing.assert_close(found, torch.tensor(entropy + 2 * (1 - (1 + HALF) / 2)))
    own = FedKgCoOp(guide=2.0, over="own").loss(TASK, {}, params, batch)  # of class 1 alone
    torch.testing.assert_close(own, torch.tensor(entropy + 2 * (1 - HALF)))


def test_the_sentence_may_be_another_one() -> None:
    data = featured(torch.tensor([[0.0, 3.0]]), [1], [1]).data([0], 0, stacked=False)
    (batch,) = data.batches(size=1)
    params = {"context": torch.zeros(1, 2)}
    near = FedKgCoOp(guide=1.0).loss(TASK, {}, params, batch)
    # "yes no" and "yes yes" are (√½, √½) and (0, 1)
    far = FedKgCoOp(guide=1.0, template="yes {}").loss(TASK, {}, params, batch)
    torch.testing.assert_close(far - near, torch.tensor(1 - (HALF + 1) / 2))


def test_without_a_guide_it_is_promptfl_bit_for_bit() -> None:
    data = featured(normal(12, 10), [n % 3 for n in range(12)], [12]).data([0], 0, stacked=False)
    start = {"context": normal(3, 12, seed=2)}
    guided, plain = FedKgCoOp(guide=0.0, **RATES), PromptFL(csc=False, **RATES)
    assert guided.fit(CLIP, start, {}, data)[0]["context"].equal(plain.fit(CLIP, start, {}, data)[0]["context"])
    x = {"x": normal(4, 10)}
    assert guided.predict(CLIP, start, x).equal(plain.predict(CLIP, start, x))


def test_a_strong_guide_leads_back_to_the_sentence() -> None:
    data = featured(normal(12, 10), [n % 3 for n in range(12)], [12]).data([0], 0, stacked=False)
    start = {"context": normal(3, 12, seed=2)}

    def cosine(guide: float) -> float:
        method = FedKgCoOp(guide=guide, tokens=3, lr=0.5 / max(guide, 1), batch=12, epochs=20, weight_decay=0.0)
        up, _ = method.fit(CLIP, start, {}, data)
        return float((method.prepare(CLIP, up)["text"] * said(CLIP, method.template)).sum(-1).mean())

    before = float((FedKgCoOp().prepare(CLIP, start)["text"] * said(CLIP, FedKgCoOp.template)).sum(-1).mean())
    assert cosine(1e4) > max(before, cosine(0.0)) + 0.01


def test_clients_count_by_images_or_once() -> None:
    facts = featured(normal(5, 10), [0, 1, 2, 0, 1], [4, 1]).facts([0, 1])
    assert FedKgCoOp().weight(facts).tolist() == [4, 1]
    assert FedKgCoOp(count="clients").weight(facts).tolist() == [1, 1]


@pytest.mark.parametrize(("preset", "floats"), [("", 8192), ("flip", 2048), ("fedtpg", 2048)])
def test_what_travels(preset: str, floats: int) -> None:
    wide = Task(TinyDual(10, 512), tuple(map(str, range(10))), 4)
    method = make(FedKgCoOp, FedKgCoOp.presets[preset] if preset else {}, "method")
    down = method.init_server(wide, rng())
    one = featured(torch.eye(10, 512), list(range(10)), [10]).data([0], 0, stacked=False)
    up, kept = method.fit(wide, down, {}, one)
    assert (tree.floats(down), tree.floats(up), kept) == (floats, floats, {})


@pytest.mark.parametrize("over", ["all", "own"])
def test_a_client_alone_does_what_it_does_in_the_stack(over: str) -> None:
    data = featured(normal(13, 10), [n % 3 for n in range(13)], [5, 1, 7])
    method = make(FedKgCoOp, {"over": over, "tokens": 2, "batch": 3, "epochs": 2, "lr": 0.02}, "method")
    down = method.init_server(CLIP, rng())
    up, _ = method.fit(CLIP, tree.repeat(down, 3), {}, data.data(range(3), 0, stacked=True))
    for client in range(3):
        alone, _ = method.fit(CLIP, down, {}, data.data([client], 0, stacked=False))
        torch.testing.assert_close(tree.row(up, client), alone, rtol=1e-4, atol=1e-5)
