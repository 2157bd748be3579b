"""FedVPT on a frozen toy transformer: one round by hand, and exactly K·D numbers on the way."""

import math

import pytest
import torch

from promptfed.backbones.cnn import ConvNet
from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.options import make
from promptfed.core.tree import Tree
from promptfed.methods.fedvpt import FedVPT
from support.toys import BLACK, WHITE, FrozenTokens, dataset, numbered, rng, shards, task

TASK = task(FrozenTokens())
ONE_STEP = FedVPT(tokens=1, lr=1.0, epochs=1, batch=4, weight_decay=0.0)


def head(weight: float = 1.0, bias: float = 0.0) -> Tree:
    return {"head.weight": torch.tensor([[weight] * 3, [0.0] * 3]), "head.bias": torch.tensor([bias, -bias])}


def prompt(value: float, count: int = 1) -> Tree:
    return {"prompt": torch.full((count, 3), value)}


def test_one_round_by_hand() -> None:
    own = shards(dataset([BLACK] * 4, [0, 1, 1, 1]), [1, 3])
    server, clients = prompt(0.0), torch.arange(2)
    down = ONE_STEP.download(TASK, server, clients)
    up, personal = ONE_STEP.fit(TASK, down, tree.repeat(head(), 2), own.data([0, 1], 0, stacked=True))
    # the class token is the mean of one prompt token and four black pixels, so P / 5 = 0 and p = 1/2;
    # ∂/∂logits = ∓1/2, ∂/∂class token = ∓1/2 · (1, 1, 1), ∂/∂P a fifth of that; the head's weight sees zeros
    torch.testing.assert_close(tree.row(up, 0), prompt(0.1))
    torch.testing.assert_close(tree.row(up, 1), prompt(-0.1))
    torch.testing.assert_close(tree.row(personal, 0), head(bias=0.5))
    torch.testing.assert_close(tree.row(personal, 1), head(bias=-0.5))
    # (1 · 0.1 − 3 · 0.1) / 4
    after = ONE_STEP.aggregate(TASK, server, clients, up, ONE_STEP.weight(own.facts([0, 1])))
    torch.testing.assert_close(after, prompt(-0.05))


def test_white_pixels_reach_the_head_through_the_class_token() -> None:
    data = shards(dataset([WHITE], [0]), [1]).data([0], 0, stacked=False)
    up, personal = ONE_STEP.fit(TASK, prompt(0.0), head(0.0), data)
    # class token (0 + 4 · 1) / 5 = 0.8; the head weighs nothing yet, so the prompt gets no gradient
    torch.testing.assert_close(up, prompt(0.0))
    torch.testing.assert_close(personal["head.weight"], torch.tensor([[0.4] * 3, [-0.4] * 3]))


def test_decay_and_momentum_by_hand() -> None:
    method = FedVPT(tokens=1, lr=1.0, epochs=2, batch=1, momentum=0.5, weight_decay=0.1)
    data = shards(dataset([BLACK], [0]), [1]).data([0], 0, stacked=False)
    up, personal = method.fit(TASK, prompt(0.0), head(), data)
    # step 1: v_P = −0.1, P = 0.1; v_W = 0.1, W = 0.9; v_b = ∓0.5, b = ±0.5
    # step 2: the gap of the logits is 0.9 · 3 · 0.1 / 5 + 1, so the wrong class has 1 / (1 + e^1.054)
    wrong = 1 / (1 + math.exp(1.054))
    torch.testing.assert_close(up, prompt(0.1 + 0.05 + wrong * 0.9 / 5 - 0.01))
    torch.testing.assert_close(personal["head.bias"][0].item(), 0.5 + 0.25 + wrong - 0.05, rtol=1e-5, atol=1e-6)
    assert set(personal) == {"head.weight", "head.bias"}  # momentum starts anew in every round


@pytest.mark.parametrize("tokens", [1, 10])
def test_exactly_the_prompt_travels(tokens: int) -> None:
    method, clients = FedVPT(tokens=tokens, epochs=1, batch=2), torch.arange(3)
    own, where = numbered([5, 2, 3]), task(FrozenTokens(spread=1.0), 3)
    server = method.init_server(where, rng())
    down = method.download(where, server, clients)
    start = method.init_client(where, own.data([0], 0, stacked=False), rng(0))
    up, personal = method.fit(where, down, tree.repeat(start, 3), own.data(range(3), 0, stacked=True))
    assert set(up) == set(down) == {"prompt"}
    assert tree.floats(up) == tree.floats(down) == 3 * tokens * 3
    assert set(personal) == set(start) == {"head.weight", "head.bias"}
    assert method.deploy(where, server) == {}


def test_a_client_alone_does_what_it_does_in_the_stack() -> None:
    method, own = FedVPT(tokens=2, epochs=3, batch=2), numbered([5, 2, 9])
    where = task(FrozenTokens(spread=1.0), 3)
    down = method.init_server(where, rng())
    start = method.init_client(where, own.data([0], 0, stacked=False), rng(0))
    up, personal = method.fit(where, tree.repeat(down, 3), tree.repeat(start, 3), own.data(range(3), 4, stacked=True))
    for client in range(3):
        alone = method.fit(where, down, start, own.data([client], 4, stacked=False))
        torch.testing.assert_close((tree.row(up, client), tree.row(personal, client)), alone, rtol=1e-4, atol=1e-5)


def test_every_client_starts_with_the_same_head() -> None:
    where, data = task(FrozenTokens(spread=1.0)), numbered([2]).data([0], 0, stacked=False)
    first, second = (FedVPT().init_client(where, data, rng(client)) for client in (0, 1))
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_predictions_are_those_of_prompted_images() -> None:
    x = torch.rand(4, 3, 2, 2)
    found = FedVPT().predict(TASK, prompt(5.0) | head(), {"x": x})
    torch.testing.assert_close(found[:, 0], (5.0 * 3 + x.sum((1, 2, 3))) / 5)
    torch.testing.assert_close(found[:, 1], torch.zeros(4))


def test_prompts_need_a_transformer() -> None:
    with pytest.raises(PromptFedError, match="Prompt tokens need a transformer"):
        FedVPT().init_server(task(ConvNet((3, 32, 32), 2)), rng())


@pytest.mark.parametrize(("key", "value"), [("tokens", 0), ("batch", 0), ("epochs", -1)])
def test_numbers_that_cannot_train_are_refused(key: str, value: int) -> None:
    with pytest.raises(PromptFedError, match=f"method.{key} must be at least"):
        make(FedVPT, {key: value}, "method")
