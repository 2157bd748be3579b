"""FedPer: one step of body and head by hand, and exactly the body on the way."""

import math

import pytest
import torch

from promptfed.backbones.cnn import ConvNet
from promptfed.core import tree
from promptfed.methods.fedavg import FedAvg
from promptfed.methods.fedper import FedPer
from support.toys import WHITE, FrozenTokens, dataset, graded, rng, shards, task

TASK = task(FrozenTokens())
CNN = ConvNet((3, 6, 6), 2, channels=(2,), kernel=3, hidden=(4,), pool_after=(1,))
THIRD = math.log(3) / 3


def test_body_and_head_move_in_one_step() -> None:
    data = shards(dataset([WHITE], [0]), [1]).data([0], 0, stacked=False)
    head = {"head.weight": torch.tensor([[1.0] * 3, [0.0] * 3]), "head.bias": torch.zeros(2)}
    down = {"scale": torch.full((3,), THIRD)}
    up, personal = FedPer(lr=1.0, epochs=1, batch=1).fit(TASK, down, head, data)
    # the logits are (ln 3, 0) and p = 3/4: every weight sees the network as it was, none the other's step
    torch.testing.assert_close(up, {"scale": torch.full((3,), THIRD + 0.25)})
    torch.testing.assert_close(personal["head.weight"], torch.tensor([[1 + THIRD / 4] * 3, [-THIRD / 4] * 3]))
    torch.testing.assert_close(personal["head.bias"], torch.tensor([0.25, -0.25]))


def test_exactly_the_body_travels() -> None:
    method, where = FedPer(epochs=1, batch=2), task(CNN, 3)
    own = graded([5, 2, 3], side=6)
    server = method.init_server(where, rng())
    down = method.download(where, server, torch.arange(3))
    start = method.init_client(where, own.data([0], 0, stacked=False), rng(0))
    up, personal = method.fit(where, down, tree.repeat(start, 3), own.data(range(3), 0, stacked=True))
    assert list(up) == list(down) == ["conv1.weight", "conv1.bias", "fc1.weight", "fc1.bias"]
    # 2·3·3·3 + 2 of the convolution, 4·(2·2·2) + 4 of the dense layer
    assert tree.floats(up) == 3 * (54 + 2 + 32 + 4)
    assert set(personal) == {"head.weight", "head.bias"}
    assert method.deploy(where, server) == {}


@pytest.mark.parametrize("backbone", [CNN, FrozenTokens(spread=1.0)], ids=["cnn", "tokens"])
def test_alone_it_is_one_client_of_the_stack_and_a_step_of_fedavg(backbone: ConvNet | FrozenTokens) -> None:
    where, own = task(backbone, 3), graded([5, 2, 9], side=backbone.shape[1])
    method = FedPer(lr=0.05, epochs=2, batch=2, momentum=0.5, weight_decay=0.01)
    plain = FedAvg(lr=0.05, epochs=2, batch=2, momentum=0.5, weight_decay=0.01)
    down = method.init_server(where, rng())
    start = method.init_client(where, own.data([0], 0, stacked=False), rng(0))
    up, personal = method.fit(where, tree.repeat(down, 3), tree.repeat(start, 3), own.data(range(3), 4, stacked=True))
    for client in range(3):
        data = own.data([client], 4, stacked=False)
        alone = method.fit(where, down, start, data)
        torch.testing.assert_close((tree.row(up, client), tree.row(personal, client)), alone, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(alone[0] | alone[1], plain.fit(where, down | start, {}, data)[0], rtol=0, atol=0)
