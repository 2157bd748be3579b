"""Local: every client for itself, by hand."""

import pytest
import torch

from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.options import make
from promptfed.methods.local_only import Local
from support.toys import BLACK, WHITE, Linear, dataset, numbered, rng, shards, task

TASK = task()


def test_one_step_by_hand() -> None:
    method = Local(lr=1.0, epochs=1, batch=4)
    own = shards(dataset([WHITE, BLACK, BLACK], [0, 1, 1]), [1, 2])
    personal = tree.repeat({"head.weight": torch.zeros(2, 12), "head.bias": torch.zeros(2)}, 2)
    up, after = method.fit(TASK, {}, personal, own.data([0, 1], 0, stacked=True))
    # p = 1/2 for both classes: the true class gains 1/2 on every white pixel and on the bias
    assert up == {}
    torch.testing.assert_close(after["head.bias"], torch.tensor([[0.5, -0.5], [-0.5, 0.5]]))
    torch.testing.assert_close(after["head.weight"][0, :, 5], torch.tensor([0.5, -0.5]))
    assert (after["head.weight"][1] == 0).all()
    assert (personal["head.bias"] == 0).all()


def test_nothing_travels() -> None:
    method, clients = Local(), torch.arange(3)
    server = method.init_server(TASK, rng())
    assert server == method.download(TASK, server, clients) == method.deploy(TASK, server) == {}
    assert method.aggregate(TASK, server, clients, {}, torch.ones(3)) == {}


def test_every_client_starts_alike() -> None:
    where = task(Linear(scale=1.0))
    data = numbered([2]).data([0], 0, stacked=False)
    first, second = (Local().init_client(where, data, rng(client)) for client in (0, 1))
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert first["head.weight"].abs().sum() > 0


def test_a_client_alone_arrives_where_it_does_in_the_stack() -> None:
    method, own = Local(lr=0.5, epochs=3, batch=2, momentum=0.5, weight_decay=0.01), numbered([5, 2, 9])
    start = Linear(scale=0.1).init(rng())
    _, together = method.fit(TASK, {}, tree.repeat(start, 3), own.data(range(3), 1, stacked=True))
    assert list(together) == list(start)
    for client in range(3):
        _, alone = method.fit(TASK, {}, start, own.data([client], 1, stacked=False))
        torch.testing.assert_close(tree.row(together, client), alone, rtol=1e-5, atol=1e-6)


def test_a_clients_model_is_its_personal_tree() -> None:
    own = Linear(scale=1.0).init(rng())
    data = numbered([2]).data([0], 0, stacked=False)
    assert Local().adapt(TASK, {}, own, data) == own
    assert Local().trained(TASK, {}, own, {}) == own


def test_drop_last_reaches_the_batches() -> None:
    own = numbered([5])
    start = Linear().init(rng())
    Local(epochs=2, batch=2, drop_last=True).fit(TASK, {}, start, own.data([0], 0, stacked=False))
    assert own.pool.seen == 8


@pytest.mark.parametrize(("key", "value"), [("batch", 0), ("batch", -1), ("epochs", -1)])
def test_numbers_that_cannot_train_are_refused(key: str, value: int) -> None:
    with pytest.raises(PromptFedError, match=f"method.{key} must be at least"):
        make(Local, {key: value}, "method")
