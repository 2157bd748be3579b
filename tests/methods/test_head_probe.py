"""Head probe: a linear classifier on frozen features, by hand."""

import torch

from promptfed import tree
from promptfed.backbones.cnn import ConvNet
from promptfed.methods.head_probe import HeadProbe
from toys import BLACK, WHITE, FrozenTokens, dataset, graded, numbered, rng, shards, task

TASK = task(FrozenTokens(layers=2))


def test_one_step_by_hand() -> None:
    method = HeadProbe(lr=1.0, epochs=1, batch=4, weight_decay=0.0)
    own = shards(dataset([WHITE, BLACK, BLACK], [0, 1, 1]), [1, 2])
    start = {"head.weight": torch.zeros(2, 3), "head.bias": torch.zeros(2)}
    up, after = method.fit(TASK, {}, tree.repeat(start, 2), own.data([0, 1], 0, stacked=True))
    # p = 1/2; two layers make 1 + 2 = 3 of a white image and 0 of a black one
    assert up == {}
    torch.testing.assert_close(after["head.bias"], torch.tensor([[0.5, -0.5], [-0.5, 0.5]]))
    torch.testing.assert_close(after["head.weight"][0], torch.tensor([[1.5] * 3, [-1.5] * 3]))
    assert (after["head.weight"][1] == 0).all()


def test_of_a_pretrained_network_a_client_keeps_the_head_alone() -> None:
    data = numbered([2]).data([0], 0, stacked=False)
    first, second = (HeadProbe().init_client(task(FrozenTokens(spread=1.0)), data, rng(who)) for who in (0, 1))
    assert set(first) == {"head.weight", "head.bias"}
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_nothing_travels() -> None:
    method = HeadProbe()
    server = method.init_server(TASK, rng())
    assert server == method.download(TASK, server, torch.arange(3)) == method.deploy(TASK, server) == {}


def test_the_body_of_a_fresh_network_stays_as_it_was_drawn() -> None:
    where = task(ConvNet((3, 6, 6), 2, channels=(2,), kernel=3, hidden=(4,), pool_after=(1,)), 3)
    method = HeadProbe(epochs=3, batch=2)
    own = graded([5, 2, 9], side=6)
    start = method.init_client(where, own.data([0], 0, stacked=False), rng(0))
    _, together = method.fit(where, {}, tree.repeat(start, 3), own.data(range(3), 4, stacked=True))
    for client in range(3):
        _, alone = method.fit(where, {}, start, own.data([client], 4, stacked=False))
        torch.testing.assert_close(tree.row(together, client), alone, rtol=1e-4, atol=1e-5)
        assert list(alone) == list(start)
        assert {name for name in start if not alone[name].equal(start[name])} == {"head.weight", "head.bias"}
