"""FedCLIP on a toy dual encoder: both adapters, both losses and a step of each optimiser by hand."""

import math

import pytest
import torch
from torch import Tensor

from promptfed.core import tree
from promptfed.core.options import make
from promptfed.core.tree import Tree
from promptfed.methods import _unlabelled as unlabelled
from promptfed.methods.fedclip import FedCLIP
from support.toys import TinyDual, featured, rng, task

TASK = task(TinyDual())
BATCH = {"x": torch.tensor([[3.0, 4.0]]), "y": torch.tensor([1]), "mask": torch.ones(1)}


def adapter(first: float = 0.0, second: float = 0.0, bias: tuple[float, float] = (0.0, 0.0)) -> Tree:
    """Return W1 and W2, multiples of one, and the bias of the second."""
    eye = torch.eye(2)
    return {
        "adapter1.weight": first * eye,
        "adapter1.bias": torch.zeros(2),
        "adapter2.weight": second * eye,
        "adapter2.bias": torch.tensor(bias),
    }


def test_an_adapter_without_weights_keeps_directions() -> None:
    for kind, share in (("softmax", 0.5), ("sigmoid", 0.5)):
        method = make(FedCLIP, {"adapter": kind}, "method")
        torch.testing.assert_close(method.adapted(adapter(), BATCH["x"]), share * BATCH["x"])
        torch.testing.assert_close(method.predict(TASK, adapter(), BATCH), torch.tensor([[0.6, 0.8]]))


def test_adapters_by_hand() -> None:
    x = torch.tensor([[1.0, -1.0]])
    params = adapter(first=2.0, second=3.0)
    # softmax of ±3 tanh 2, so the second feature counts e^(−6 tanh 2) times as much as the first
    gap = math.exp(-6 * math.tanh(2))
    expected = torch.tensor([[1 / (1 + gap), -gap / (1 + gap)]])
    torch.testing.assert_close(FedCLIP().adapted(params, x), expected)
    # relu(±2) = (2, 0), then sigmoid(6) and sigmoid(0)
    expected = torch.tensor([[1 / (1 + math.exp(-6)), -0.5]])
    torch.testing.assert_close(FedCLIP(adapter="sigmoid").adapted(params, x), expected)


def test_the_loss_over_classes() -> None:
    value = FedCLIP().loss(TASK, {}, adapter(), BATCH)
    torch.testing.assert_close(value, torch.tensor(math.log(1 + math.exp(-0.2))))


def test_the_loss_over_pairs_is_symmetric_and_ignores_padding() -> None:
    batch = {
        "x": torch.tensor([[1.0, 0.0], [3.0, 4.0], [9.0, 9.0]]),
        "y": torch.tensor([0, 1, 0]),
        "mask": torch.tensor([1.0, 1.0, 0.0]),
    }
    # rows are images (1, 0) and (0.6, 0.8), columns the axes 0 and 1: [[1, 0], [0.6, 0.8]]
    images = (math.log(1 + math.exp(-1)) + math.log(1 + math.exp(-0.2))) / 2
    texts = (math.log(1 + math.exp(-0.4)) + math.log(1 + math.exp(-0.8))) / 2
    value = FedCLIP(against="batch").loss(TASK, {}, adapter(), batch)
    torch.testing.assert_close(value, torch.tensor((images + texts) / 2))


def first_step(method: FedCLIP) -> Tensor:
    data = featured(BATCH["x"], [1], [1]).data([0], 0, stacked=False)
    up, personal = method.fit(TASK, adapter(), {}, data)
    assert personal == {}
    return up["adapter2.bias"]


def test_a_step_of_each_optimiser_by_hand() -> None:
    # raising b_2 and lowering b_1 turns the feature to its class; Adam's first step has the length of the rate
    torch.testing.assert_close(first_step(FedCLIP(weight_decay=0.0)), torch.tensor([-5e-5, 5e-5]), rtol=1e-3, atol=0)
    # with f = (0.6 a, 0.8 b), cosines (0.6 a, 0.8 b) / √(0.36 a² + 0.64 b²), at a = b = ½ times a derivative of ½ in
    # b_2 (softmax: ∂b/∂b_2 = ¼, ∂a/∂b_2 = −¼): the angle turns by 0.6 · 0.8 · (¼ + ¼) / ½ = 0.48, that is the cosines
    # by (−0.8, 0.6) · 0.48; the loss by wrong · (−0.8 − 0.6) · 0.48
    wrong = 1 / (1 + math.exp(0.2))
    found = first_step(make(FedCLIP, {"optimiser": "sgd", "lr": 1.0, "weight_decay": 0.0}, "method"))
    torch.testing.assert_close(found, torch.tensor([-1.0, 1.0]) * wrong * 1.4 * 0.48)


def test_everyone_counts_once() -> None:
    facts = featured(torch.eye(2), [0, 1], [1, 1]).facts([0, 1]) | {"size": torch.tensor([1.0, 9.0])}
    torch.testing.assert_close(FedCLIP().weight(facts), torch.ones(2))


@pytest.mark.parametrize("when", [0, 1])
@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
@pytest.mark.parametrize("mode", ["supervised", "unsupervised"])
def test_a_client_alone_does_what_it_does_in_the_stack(when: int, optimiser: str, mode: str) -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(13, 2, generator=draw)
    views = x.unsqueeze(1) + 0.1 * torch.randn(13, 4, 2, generator=draw)
    own = featured(x, [n % 2 for n in range(13)], [5, 1, 7], views=views, draws=unlabelled.DRAWS)
    given = {"mode": mode, "optimiser": optimiser, "lr": 0.01, "batch": 3, "stage1": 1, "against": "batch"}
    method = make(FedCLIP, given, "method")
    down = method.init_server(TASK, rng())
    start = method.init_client(TASK, own.data([0], 0, stacked=False), rng(0))
    up, personal = method.fit(TASK, tree.repeat(down, 3), tree.repeat(start, 3), own.data(range(3), when, stacked=True))
    for client in range(3):
        alone = method.fit(TASK, down, start, own.data([client], when, stacked=False))
        torch.testing.assert_close((tree.row(up, client), tree.row(personal, client)), alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("preset", FedCLIP.presets)
def test_presets_are_options(preset: str) -> None:
    make(FedCLIP, FedCLIP.presets[preset], "method")
