"""FedRep: the head's phase and the body's by hand, and exactly the body on the way."""

import math

import pytest
import torch

from promptfed.backbones.cnn import ConvNet
from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.options import make
from promptfed.methods.fedrep import FedRep
from support.toys import WHITE, FrozenTokens, dataset, graded, numbered, rng, shards, task

TASK = task(FrozenTokens())
CNN = ConvNet((3, 6, 6), 2, channels=(2,), kernel=3, hidden=(4,), pool_after=(1,))
LN3 = math.log(3)


def test_first_the_head_then_the_body() -> None:
    rate = LN3 / 4
    method = FedRep(lr=1.6, epochs=1, head_lr=rate, head_epochs=1, batch=1, weight_decay=0.0)
    data = shards(dataset([WHITE], [0]), [1]).data([0], 0, stacked=False)
    zero = {"head.weight": torch.zeros(2, 3), "head.bias": torch.zeros(2)}
    up, personal = method.fit(TASK, {"scale": torch.ones(3)}, zero, data)
    # phase 1: p = 1/2 and the features are (1, 1, 1), so every weight of the head moves by ±rate / 2
    half = rate / 2
    torch.testing.assert_close(personal["head.weight"], torch.tensor([[half] * 3, [-half] * 3]))
    torch.testing.assert_close(personal["head.bias"], torch.tensor([half, -half]))
    # phase 2: the logits are ±4 · rate / 2, their gap is ln 3 and p = 3/4; ∂/∂scale = −1/4 · rate
    torch.testing.assert_close(up, {"scale": torch.full((3,), 1 + 1.6 * rate / 4)})


def test_only_the_body_moves_with_a_frozen_head() -> None:
    down = FedRep().init_server(TASK, rng())
    start = task(FrozenTokens(spread=1.0)).backbone.head(rng())
    data = numbered([5]).data([0], 0, stacked=False)
    up, personal = FedRep(head_epochs=0).fit(TASK, down, start, data)
    torch.testing.assert_close(personal, start, rtol=0, atol=0)
    assert not up["scale"].equal(down["scale"])
    up, personal = FedRep(epochs=0).fit(TASK, down, start, data)
    torch.testing.assert_close(up, down, rtol=0, atol=0)
    assert not personal["head.bias"].equal(start["head.bias"])


@pytest.mark.parametrize(("drop_last", "images"), [(False, 3 * 5 + 2 * 5), (True, 3 * 4 + 2 * 4)])
def test_drop_last_reaches_both_phases(drop_last: bool, images: int) -> None:
    own, method = numbered([5]), FedRep(head_epochs=3, epochs=2, batch=2, drop_last=drop_last)
    start = TASK.backbone.head(rng())
    method.fit(TASK, method.init_server(TASK, rng()), start, own.data([0], 0, stacked=False))
    assert own.pool.seen == images


def test_exactly_the_body_travels() -> None:
    method, where = FedRep(epochs=1, head_epochs=1, batch=2), task(CNN, 3)
    own = graded([5, 2, 3], side=6)
    server = method.init_server(where, rng())
    down = method.download(where, server, torch.arange(3))
    start = method.init_client(where, own.data([0], 0, stacked=False), rng(0))
    up, personal = method.fit(where, down, tree.repeat(start, 3), own.data(range(3), 0, stacked=True))
    body = ["conv1.weight", "conv1.bias", "fc1.weight", "fc1.bias"]
    assert list(up) == list(down) == body
    # 2·3·3·3 + 2 of the convolution, 4·(2·2·2) + 4 of the dense layer
    assert tree.floats(up) == 3 * (54 + 2 + 32 + 4)
    assert set(personal) == {"head.weight", "head.bias"}
    assert method.deploy(where, server) == {}


@pytest.mark.parametrize("backbone", [CNN, FrozenTokens(spread=1.0)], ids=["cnn", "tokens"])
def test_a_client_alone_does_what_it_does_in_the_stack(backbone: ConvNet | FrozenTokens) -> None:
    method, where = FedRep(lr=0.05, head_lr=0.1, epochs=2, head_epochs=3, batch=2), task(backbone, 3)
    own = graded([5, 2, 9], side=backbone.shape[1])
    down = method.init_server(where, rng())
    start = method.init_client(where, own.data([0], 0, stacked=False), rng(0))
    up, personal = method.fit(where, tree.repeat(down, 3), tree.repeat(start, 3), own.data(range(3), 4, stacked=True))
    for client in range(3):
        alone = method.fit(where, down, start, own.data([client], 4, stacked=False))
        torch.testing.assert_close((tree.row(up, client), tree.row(personal, client)), alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("key", "value"), [("batch", 0), ("epochs", -1), ("head_epochs", -1)])
def test_numbers_that_cannot_train_are_refused(key: str, value: int) -> None:
    with pytest.raises(PromptFedError, match=f"method.{key} must be at least"):
        make(FedRep, {key: value}, "method")
