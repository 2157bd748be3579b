"""Per-FedAvg: the meta-gradient of both orders by hand and by finite differences, and the step before a test."""

import math
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import torch

from promptfed.backbones.cnn import ConvNet
from promptfed.core import ops, tree
from promptfed.core.errors import PromptFedError
from promptfed.core.options import make
from promptfed.core.protocols import Backbone
from promptfed.core.tree import Tree
from promptfed.methods.per_fedavg import PerFedAvg
from support.toys import BLACK, WHITE, FrozenTokens, Linear, dataset, graded, numbered, rng, shards, task

Order = Literal["first", "second"]
ORDERS: list[Order] = ["first", "second"]
TASK = task()
LN3 = math.log(3)
# black images of class 0 move only the bias ±x. The inner step from p = 1/2 goes to x = ln 3 / 2, where p = 3/4
BY_HAND = PerFedAvg(lr=1.0, alpha=LN3, epochs=1, batch=1, momentum=0.0, weight_decay=0.0)


def zeros() -> Tree:
    return {"head.weight": torch.zeros(2, 12), "head.bias": torch.zeros(2)}


def biased(x: float) -> Tree:
    return {"head.weight": torch.zeros(2, 12), "head.bias": torch.tensor([x, -x])}


@pytest.mark.parametrize(
    ("order", "moved"),
    [
        # the gradient at the adapted point is ∓1/4
        ("first", 1 / 4),
        # the Hessian at p = 1/2 is 1/4 · [[1, −1], [−1, 1]], so (I − ln 3 · H)(−1/4, 1/4) = ∓(1/4 − ln 3 / 8)
        ("second", 1 / 4 - LN3 / 8),
    ],
)
def test_one_step_by_hand(order: Order, moved: float) -> None:
    data = shards(dataset([BLACK] * 2, [0, 0]), [2]).data([0], 0, stacked=False)
    up, personal = replace(BY_HAND, order=order).fit(TASK, zeros(), {}, data)
    assert personal == {}
    torch.testing.assert_close(up, biased(moved), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("order", ORDERS)
def test_a_single_image_makes_a_plain_step(order: Order) -> None:
    data = shards(dataset([BLACK], [0]), [1]).data([0], 0, stacked=False)
    up, _ = replace(BY_HAND, order=order, batch=4).fit(TASK, zeros(), {}, data)
    torch.testing.assert_close(up, biased(1 / 2), rtol=1e-5, atol=1e-6)


def test_the_halves_share_no_image() -> None:
    where = task(Linear())
    x = torch.tensor([1.0, 2.0, 4.0, 8.0]).view(4, 1, 1, 1).expand(4, 3, 2, 2)
    batch = {"x": x, "y": torch.tensor([0, 1, 0, 1]), "index": torch.arange(4), "mask": torch.tensor([1.0, 1, 1, 0])}
    params = tree.map(torch.Tensor.requires_grad_, zeros())
    value = replace(BY_HAND, alpha=1.0).meta(where, {}, params, batch)
    # the inner step sees images 1 and 3, the latter padding: its weight is ∓1/2 · 2, its bias ∓1/2 for class 1.
    # the outer loss is that of images 0 and 2, both of class 0
    gaps = [2 * (12 * 1.0 * pixel + 0.5) for pixel in (1.0, 4.0)]
    assert value.item() == pytest.approx(sum(math.log1p(math.exp(gap)) for gap in gaps) / 2, rel=1e-5)


def test_second_order_is_the_derivative_of_what_is_minimised() -> None:
    where, method = task(FrozenTokens()), replace(BY_HAND, alpha=0.5, order="second")
    draw = torch.Generator().manual_seed(0)
    x, y = torch.rand(4, 3, 2, 2, generator=draw, dtype=torch.double), torch.tensor([0, 1, 1, 0])
    batch = {"x": x, "y": y, "index": torch.arange(4), "mask": torch.ones(4, dtype=torch.double)}
    names = {"scale": (3,), "head.weight": (2, 3), "head.bias": (2,)}
    params = {name: torch.randn(shape, generator=draw, dtype=torch.double) for name, shape in names.items()}

    def meta(*values: torch.Tensor) -> torch.Tensor:
        return method.meta(where, {}, dict(zip(names, values, strict=True)), batch)

    assert torch.autograd.gradcheck(meta, [value.requires_grad_() for value in params.values()])


@pytest.mark.parametrize(("steps", "x"), [(0, 0.0), (1, LN3 / 2), (2, LN3 / 2 + LN3 / 4)])
def test_a_client_adapts_on_its_training_images(steps: int, x: float) -> None:
    own = shards(dataset([BLACK] * 2, [0, 1]), [1], [np.array([1])])
    model = replace(BY_HAND, adapt_steps=steps).adapt(TASK, zeros(), {}, own.data([0], 3, stacked=False))
    torch.testing.assert_close(model, biased(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("drop_last", "trained", "adapted"), [(False, 2 * 7, 2 + 2 + 2 + 1), (True, 2 * 4, 4 * 2)])
def test_drop_last_leaves_out_what_fills_no_double_batch(drop_last: bool, trained: int, adapted: int) -> None:
    own, method = numbered([7]), PerFedAvg(epochs=2, batch=2, adapt_steps=4, drop_last=drop_last)
    method.fit(TASK, zeros(), {}, own.data([0], 0, stacked=False))
    assert own.pool.seen == trained  # 7 = 4 + 3 images in double batches of 4
    method.adapt(TASK, zeros(), {}, own.data([0], 0, stacked=False))
    assert own.pool.seen == trained + adapted  # four steps of 2: the fourth is short, or the first of another pass


CNN = ConvNet((3, 6, 6), 2, channels=(2,), kernel=3, hidden=(4,), pool_after=(1,), dropout=(0.5, 0.5))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("backbone", [CNN, Linear(shape=(3, 6, 6), scale=0.1)], ids=["cnn", "linear"])
def test_a_client_alone_does_what_it_does_in_the_stack(backbone: Backbone, order: Order) -> None:
    where = task(backbone, 3)
    method = PerFedAvg(lr=0.05, alpha=0.05, order=order, epochs=2, batch=2)
    own = graded([5, 1, 9], side=6, draws=method.draws(where))
    down = method.init_server(where, rng())
    together = own.data(range(3), 4, stacked=True)
    up, _ = method.fit(where, tree.repeat(down, 3), {}, together)
    adapted = method.adapt(where, tree.repeat(down, 3), {}, together)
    for client in range(3):
        data_alone = own.data([client], 4, stacked=False)
        alone, _ = method.fit(where, down, {}, data_alone)
        assert list(alone) == list(down)
        torch.testing.assert_close(tree.row(up, client), alone, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(
            tree.row(adapted, client), method.adapt(where, down, {}, data_alone), rtol=1e-4, atol=1e-5
        )


def test_a_round_makes_the_adapted_model_better() -> None:
    method = PerFedAvg(lr=0.05, alpha=0.05, epochs=5, batch=4)
    data = shards(dataset([WHITE, BLACK] * 8, [0, 1] * 8), [16]).data([0], 0, stacked=False)
    (batch,) = data.batches("test", size=16, ordered=True)

    def value(params: Tree) -> float:
        adapted = method.adapt(TASK, params, {}, data)
        return ops.cross_entropy(method.predict(TASK, adapted, batch), batch["y"], batch["mask"]).item()

    start = Linear(scale=0.1).init(rng())
    up, _ = method.fit(TASK, start, {}, data)
    assert value(up) < value(start)


def test_everything_is_shared() -> None:
    server = PerFedAvg().init_server(TASK, rng())
    assert set(server) == {"head.weight", "head.bias"}
    assert PerFedAvg().deploy(TASK, server) is server


def test_an_unknown_order_is_refused() -> None:
    with pytest.raises(PromptFedError, match='did you mean "first"'):
        make(PerFedAvg, {"order": "firts"}, "method")
