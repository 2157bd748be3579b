"""Fed-CoCoOp on a toy dual encoder: the shift of the context by hand, and one image after another as all at once."""

import math

import torch

from promptfed.core import ops, tree
from promptfed.core.prompts.text import match_each
from promptfed.methods.fed_cocoop import FedCoCoOp
from support.toys import TinyDual, featured, rng, task

TASK = task(TinyDual())


def test_the_context_shifts_with_the_image() -> None:
    params = {
        "context": torch.tensor([[1.0, 0.0], [0.0, 1.0]]),
        "meta1.weight": torch.tensor([[1.0, 0.0]]),
        "meta1.bias": torch.tensor([-0.5]),
        "meta2.weight": torch.tensor([[10.0], [0.0]]),
        "meta2.bias": torch.tensor([0.0, 0.25]),
    }
    # of unit features (0.6, 0.8) and (0, 1): relu(0.6 − 0.5) = 0.1 and relu(−0.5) = 0
    found = FedCoCoOp().contexts(params, torch.tensor([[3.0, 4.0], [0.0, 7.0]]))
    torch.testing.assert_close(found[0], torch.tensor([[2.0, 0.25], [1.0, 1.25]]))
    torch.testing.assert_close(found[1], torch.tensor([[1.0, 0.25], [0.0, 1.25]]))


def test_the_loss_by_hand() -> None:
    params = FedCoCoOp(tokens=1).init_server(TASK, rng())
    params = tree.map(torch.zeros_like, params) | {"meta2.bias": torch.tensor([0.0, 1.0])}
    batch = {"x": torch.tensor([[2.0, 0.0]]), "y": torch.tensor([0]), "mask": torch.ones(1)}
    # the context (0, 1) moves class 0 to (1, 1) / √2 and leaves class 1 on its axis
    value = FedCoCoOp().loss(TASK, {}, params, batch)
    torch.testing.assert_close(value, torch.tensor(math.log(1 + math.exp(-math.sqrt(0.5)))))


def test_all_parts_learn_and_travel() -> None:
    method = FedCoCoOp(tokens=2, lr=0.1, batch=2)
    data = featured(torch.tensor([[2.0, 1.0], [0.5, 1.0]]), [0, 1], [2]).data([0], 0, stacked=False)
    down = method.init_server(TASK, rng())
    up, personal = method.fit(TASK, down, {}, data)
    assert set(up) == {"context", "meta1.weight", "meta1.bias", "meta2.weight", "meta2.bias"}
    assert not torch.equal(up["context"], down["context"])
    assert not torch.equal(up["meta2.bias"], down["meta2.bias"])
    assert personal == {}


def test_testing_one_image_after_another_changes_nothing() -> None:
    method, wide = FedCoCoOp(tokens=3), task(TinyDual(classes=2, width=32))
    draw = torch.Generator().manual_seed(0)
    params = tree.repeat(method.init_server(wide, rng()), 2)
    x = torch.randn(2, 5, 32, generator=draw)
    whole = match_each(x, TinyDual(2, 32).text(method.contexts(params, x), per_class=False), torch.tensor(1.0))
    found = method.predict(wide, params, {"x": x})
    torch.testing.assert_close(found, whole)
    y, mask = torch.randint(2, (2, 5), generator=draw), torch.ones(2, 5)
    value = method.loss(wide, {}, params, {"x": x, "y": y, "mask": mask})
    torch.testing.assert_close(value, ops.cross_entropy(found, y, mask))


def test_the_hidden_layer_is_sixteen_times_narrower() -> None:
    server = FedCoCoOp().init_server(task(TinyDual(width=512)), rng())
    assert server["meta1.weight"].shape == (32, 512)
    assert server["meta2.weight"].shape == (512, 32)
    assert server["context"].shape == (16, 512)


def test_a_client_alone_does_what_it_does_in_the_stack() -> None:
    method, draw = FedCoCoOp(tokens=2, batch=2, epochs=2, lr=0.1), torch.Generator().manual_seed(0)
    own = featured(torch.randn(9, 2, generator=draw), [n % 2 for n in range(9)], [5, 1, 3])
    down = method.init_server(TASK, rng())
    up, _ = method.fit(TASK, tree.repeat(down, 3), {}, own.data(range(3), 0, stacked=True))
    for client in range(3):
        alone, _ = method.fit(TASK, down, {}, own.data([client], 0, stacked=False))
        torch.testing.assert_close(tree.row(up, client), alone, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(method.weight(own.facts([0, 1, 2])), torch.ones(3))
