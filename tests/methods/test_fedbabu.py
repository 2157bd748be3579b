"""FedBABU: the body under a fixed head, and what fine-tuning moves, by hand."""

import math
from dataclasses import replace
from typing import Literal

import pytest
import torch

from promptfed.backbones.cnn import ConvNet
from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.options import make
from promptfed.core.tree import Tree
from promptfed.methods.fedavg import FedAvg
from promptfed.methods.fedbabu import FedBABU
from support.toys import WHITE, FrozenTokens, dataset, graded, numbered, rng, shards, task

Part = Literal["head", "body", "all"]
TASK = task(FrozenTokens())
THIRD = math.log(3) / 3
ONE_STEP = FedBABU(lr=1.0, epochs=1, batch=1, weight_decay=0.0, tune_epochs=1)


def model(scale: float = THIRD, first: float = 1.0, second: float = 0.0, bias: float = 0.0) -> Tree:
    return {
        "scale": torch.full((3,), scale),
        "head.weight": torch.tensor([[first] * 3, [second] * 3]),
        "head.bias": torch.tensor([bias, -bias]),
    }


def test_one_round_by_hand() -> None:
    own = shards(dataset([WHITE] * 4, [0, 1, 1, 1]), [1, 3])
    method, clients = replace(ONE_STEP, batch=4), torch.arange(2)
    down = method.download(TASK, model(), clients)
    up, personal = method.fit(TASK, down, {}, own.data([0, 1], 0, stacked=True))
    # the logits are (ln 3, 0) and p = (3/4, 1/4): ∂/∂scale = −1/4 for a client of class 0 and +3/4 for one of class 1
    assert personal == {}
    assert set(up) == {"scale"}
    torch.testing.assert_close(up["scale"], torch.tensor([[THIRD + 0.25] * 3, [THIRD - 0.75] * 3]))
    # (0.25 − 3 · 0.75) / 4 = −0.5; the head is as it was
    after = method.aggregate(TASK, model(), clients, up, method.weight(own.facts([0, 1])))
    torch.testing.assert_close(after, model(THIRD - 0.5))


@pytest.mark.parametrize(
    ("tune", "tuned"),
    [
        ("head", model(THIRD, 1 + THIRD / 4, -THIRD / 4, 0.25)),
        ("body", model(THIRD + 0.25)),
        ("all", model(THIRD + 0.25, 1 + THIRD / 4, -THIRD / 4, 0.25)),
    ],
)
def test_a_client_tunes_what_it_is_told(tune: Part, tuned: Tree) -> None:
    data = shards(dataset([WHITE], [0]), [1]).data([0], 0, stacked=False)
    torch.testing.assert_close(replace(ONE_STEP, tune=tune).adapt(TASK, model(), {}, data), tuned)
    alike = FedAvg(lr=1.0, batch=1, tune_epochs=1, tune=tune)  # whose tuning is the same
    torch.testing.assert_close(alike.adapt(TASK, model(), {}, data), tuned)


def test_epochs_of_tuning() -> None:
    own = numbered([5])
    FedBABU(batch=2, tune_epochs=3).adapt(TASK, model(), {}, own.data([0], 0, stacked=False))
    assert own.pool.seen == 15
    data = own.data([0], 0, stacked=False)
    torch.testing.assert_close(FedBABU(tune_epochs=0).adapt(TASK, model(), {}, data), model(), rtol=0, atol=0)


@pytest.mark.parametrize(("drop_last", "each"), [(False, 5), (True, 4)])
def test_drop_last_reaches_training_and_tuning(drop_last: bool, each: int) -> None:
    own, method = numbered([5]), FedBABU(batch=2, epochs=2, tune_epochs=3, drop_last=drop_last)
    method.fit(TASK, model(), {}, own.data([0], 0, stacked=False))
    assert own.pool.seen == 2 * each
    method.adapt(TASK, model(), {}, own.data([0], 0, stacked=False))
    assert own.pool.seen == (2 + 3) * each


def test_the_head_travels_down_and_never_up() -> None:
    where = task(ConvNet((3, 6, 6), 2, channels=(2,), kernel=3, hidden=(4,), pool_after=(1,)), 3)
    method = FedBABU(lr=0.05, epochs=2, batch=2, tune="all")
    own = graded([5, 2, 9], side=6)
    server, together = method.init_server(where, rng()), own.data(range(3), 4, stacked=True)
    down = method.download(where, server, torch.arange(3))
    up, _ = method.fit(where, down, {}, together)
    adapted = method.adapt(where, down, {}, together)
    assert set(down) - set(up) == {"head.weight", "head.bias"}
    assert method.deploy(where, server) is server
    for client in range(3):
        data = own.data([client], 4, stacked=False)
        alone, _ = method.fit(where, server, {}, data)
        torch.testing.assert_close(tree.row(up, client), alone, rtol=1e-4, atol=1e-5)
        alone = method.adapt(where, server, {}, data)
        torch.testing.assert_close(tree.row(adapted, client), alone, rtol=1e-4, atol=1e-5)


def test_the_whole_model_trained_is_the_body_sent_under_the_old_head() -> None:
    up = {"scale": torch.zeros(3)}
    torch.testing.assert_close(ONE_STEP.trained(TASK, model(), {}, up), model(0.0))


def test_an_unknown_part_is_refused() -> None:
    with pytest.raises(PromptFedError, match='did you mean "body"'):
        make(FedBABU, {"tune": "boddy"}, "method")
