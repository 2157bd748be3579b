"""FedAvg on two clients of black and white images: every weight of a round by hand."""

import math

import pytest
import torch

from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.options import make
from promptfed.core.protocols import Batch
from promptfed.core.tree import Tree
from promptfed.data.batches import Shards
from promptfed.methods.fedavg import FedAvg
from support.toys import BLACK, WHITE, Linear, dataset, numbered, rng, shards, task

TASK = task()
LN3 = math.log(3)


def zeros() -> Tree:
    return {"head.weight": torch.zeros(2, 12), "head.bias": torch.zeros(2)}


def model(weight: tuple[float, float], bias: tuple[float, float]) -> Tree:
    """Return a model whose two classes weigh all pixels alike."""
    return {"head.weight": torch.tensor(weight)[:, None].repeat(1, 12), "head.bias": torch.tensor(bias)}


def pair() -> Shards:
    """Return a client with one white image of class 0 and one with three black images of class 1."""
    return shards(dataset([WHITE, BLACK, BLACK, BLACK], [0, 1, 1, 1]), [1, 3])


def test_one_round_by_hand() -> None:
    method, own = FedAvg(lr=1.0, epochs=1, batch=4), pair()
    server, clients = zeros(), torch.arange(2)
    down = method.download(TASK, server, clients)
    up, personal = method.fit(TASK, down, {}, own.data([0, 1], 0, stacked=True))
    assert personal == {}
    # with all logits 0 both classes have p = 1/2, so ∂/∂logits is −1/2 for the true class and +1/2 for the other;
    # the white image hands that to every weight, the black ones only to the bias
    torch.testing.assert_close(tree.row(up, 0), model((0.5, -0.5), (0.5, -0.5)), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(tree.row(up, 1), model((0.0, 0.0), (-0.5, 0.5)), rtol=1e-6, atol=1e-6)
    weights = method.weight(own.facts([0, 1]))
    assert weights.tolist() == [1.0, 3.0]
    # (1 · 0.5 + 3 · 0) / 4 = 0.125; (1 · 0.5 − 3 · 0.5) / 4 = −0.25
    after = method.aggregate(TASK, server, clients, up, weights)
    torch.testing.assert_close(after, model((0.125, -0.125), (-0.25, 0.25)), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(server, zeros(), rtol=0, atol=0)


def test_a_client_alone_sends_what_it_sends_in_the_stack() -> None:
    method, own = FedAvg(lr=0.5, epochs=3, batch=2, momentum=0.5, weight_decay=0.01), numbered([5, 2, 9])
    server = Linear(scale=0.1).init(rng())
    together, _ = method.fit(TASK, tree.repeat(server, 3), {}, own.data(range(3), 4, stacked=True))
    for client in range(3):
        alone, _ = method.fit(TASK, server, {}, own.data([client], 4, stacked=False))
        torch.testing.assert_close(tree.row(together, client), alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "bias"),
    [
        # one black image of class 0 moves only the bias b = ±x. Step 1 from p = 1/2: x = ln 3 / 2, so p = 3/4.
        # step 2 adds ln 3 · v: plain v = 1/4; momentum 1/2 · 1/2 + 1/4; decay 1/4 − 0.1 · ln 3 / 2
        ({}, LN3 / 2 + LN3 / 4),
        ({"momentum": 0.5}, LN3 / 2 + LN3 / 2),
        ({"weight_decay": 0.1}, LN3 / 2 + LN3 * (1 / 4 - 0.05 * LN3)),
        ({"epochs": 1}, LN3 / 2),
    ],
)
def test_options_by_hand(options: dict[str, float], bias: float) -> None:
    method = FedAvg(**({"lr": LN3, "epochs": 2, "batch": 1} | options))  # type: ignore[arg-type]
    up, _ = method.fit(TASK, zeros(), {}, shards(dataset([BLACK], [0]), [1]).data([0], 0, stacked=False))
    torch.testing.assert_close(up, model((0.0, 0.0), (bias, -bias)), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("drop_last", "images"), [(False, 15), (True, 12)])
def test_drop_last_and_epochs_decide_how_many_images_are_seen(drop_last: bool, images: int) -> None:
    own = numbered([5])
    FedAvg(epochs=3, batch=2, drop_last=drop_last).fit(TASK, zeros(), {}, own.data([0], 0, stacked=False))
    assert own.pool.seen == images


def test_everybody_receives_the_same_memory() -> None:
    server = zeros()
    down = FedAvg().download(TASK, server, torch.tensor([3, 1, 4]))
    assert down["head.weight"].shape == (3, 2, 12)
    assert down["head.weight"].data_ptr() == server["head.weight"].data_ptr()


def test_the_server_starts_with_the_backbone_and_clients_with_nothing() -> None:
    backbone = Linear(scale=1.0)
    method, own = FedAvg(), numbered([2])
    server = method.init_server(task(backbone), rng())
    torch.testing.assert_close(server, backbone.init(rng()), rtol=0, atol=0)
    assert method.init_client(task(backbone), own.data([0], 0, stacked=False), rng(0)) == {}
    assert method.draws(task(backbone)) == {}
    assert method.deploy(TASK, server) is server


def test_inputs_are_not_changed() -> None:
    down = Linear(scale=1.0).init(rng())
    FedAvg(lr=1.0).fit(TASK, down, {}, numbered([3]).data([0], 0, stacked=False))
    torch.testing.assert_close(down, Linear(scale=1.0).init(rng()), rtol=0, atol=0)


def test_right_answers_by_hand() -> None:
    # class 0 wins on white, class 1 on black; the last image is padding
    own = model((1.0, 0.0), (0.0, 0.5))
    x = torch.tensor([1.0, 1.0, 0.0, 0.0]).view(4, 1, 1, 1).expand(4, 3, 2, 2)
    batch: Batch = {"x": x, "y": torch.tensor([0, 1, 1, 1]), "mask": torch.tensor([1.0, 1.0, 1.0, 0.0])}
    found = FedAvg().evaluate(TASK, own, batch)
    # logits (12, 0.5), (12, 0.5), (0, 0.5): losses ln(1 + e^−11.5), ln(1 + e^11.5), ln(1 + e^−0.5)
    losses = [math.log1p(math.exp(gap)) for gap in (-11.5, 11.5, -0.5)]
    assert (float(found["correct"]), float(found["count"])) == (2.0, 3.0)
    assert float(found["loss"]) == pytest.approx(sum(losses), rel=1e-5)
    stacked = FedAvg().evaluate(TASK, tree.repeat(own, 2), tree.repeat(batch, 2))
    assert stacked["correct"].tolist() == [2.0, 2.0]


def test_rounds_make_the_model_better() -> None:
    method, clients = FedAvg(lr=0.1, epochs=2, batch=4), torch.arange(2)
    own = shards(dataset([WHITE, BLACK] * 8, [0, 1] * 8), [6, 10])
    server, correct = zeros(), []
    for number in range(3):
        up, _ = method.fit(TASK, method.download(TASK, server, clients), {}, own.data([0, 1], number, stacked=True))
        server = method.aggregate(TASK, server, clients, up, method.weight(own.facts([0, 1])))
        (batch,) = own.data([1], number, "test", stacked=False).batches("test", size=10, ordered=True)
        correct.append(float(method.evaluate(TASK, server, batch)["correct"]))
    assert correct[-1] == 10.0


def test_a_method_is_its_options() -> None:
    assert FedAvg(lr=0.1) == FedAvg(lr=0.1)
    assert hash(FedAvg(lr=0.1)) != hash(FedAvg(lr=0.2))
    with pytest.raises(AttributeError):
        FedAvg().lr = 0.1  # type: ignore[misc]


@pytest.mark.parametrize(("key", "value"), [("batch", 0), ("batch", -1), ("epochs", -1)])
def test_numbers_that_cannot_train_are_refused(key: str, value: int) -> None:
    with pytest.raises(PromptFedError, match=f"method.{key} must be at least"):
        make(FedAvg, {key: value}, "method")
