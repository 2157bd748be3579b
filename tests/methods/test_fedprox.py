"""FedProx: the proximal pull by hand, and what stays FedAvg."""

import math
from dataclasses import replace

import pytest
import torch

from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.options import make
from promptfed.core.tree import Tree
from promptfed.methods.fedavg import FedAvg
from promptfed.methods.fedprox import FedProx
from support.toys import BLACK, Linear, dataset, numbered, rng, shards, task

TASK = task()
LN3 = math.log(3)


def biased(bias: float = 0.0) -> Tree:
    return {"head.weight": torch.zeros(2, 12), "head.bias": torch.tensor([bias, -bias])}


@pytest.mark.parametrize(("mu", "bias"), [(0.0, 3 * LN3 / 4), (0.5, 3 * LN3 / 4 - LN3 * 0.5 * LN3 / 2)])
def test_the_second_step_is_pulled_back(mu: float, bias: float) -> None:
    data = shards(dataset([BLACK], [0]), [1]).data([0], 0, stacked=False)
    up, personal = FedProx(mu=mu, lr=LN3, epochs=2, batch=1).fit(TASK, biased(), {}, data)
    # a black image moves only the bias b = ±x. Step 1, from p = 1/2 and no distance: x = ln 3 / 2, so p = 3/4.
    # step 2: x grows by ln 3 · (1/4 − μ x)
    torch.testing.assert_close(up, biased(bias))
    assert personal == {}


def test_the_objective_by_hand() -> None:
    (batch,) = shards(dataset([BLACK], [0]), [1]).data([0], 0, stacked=False).batches(size=1)
    params = {"head.weight": torch.ones(2, 12), "head.bias": torch.tensor([0.0, 2.0])}
    # ‖w − w_g‖² = 24 · 1² + 2²; the logits of a black image are the bias
    expected = math.log(1 + math.exp(2)) + 0.1 / 2 * 28
    assert float(FedProx(mu=0.1).proximal(TASK, biased(), params, batch)) == pytest.approx(expected)
    stacked = FedProx(mu=0.1).proximal(
        TASK, tree.repeat(biased(), 2), tree.stack([params, biased()]), tree.repeat(batch, 2)
    )
    assert stacked.tolist() == pytest.approx([expected, math.log(2)])


def test_without_the_pull_it_is_fedavg() -> None:
    own, down = numbered([5, 2, 9]), Linear(scale=0.1).init(rng())
    data = own.data(range(3), 4, stacked=True)
    plain, _ = FedAvg(lr=0.5, batch=2).fit(TASK, tree.repeat(down, 3), {}, data)
    prox, _ = FedProx(mu=0.0, lr=0.5, batch=2).fit(TASK, tree.repeat(down, 3), {}, data)
    torch.testing.assert_close(prox, plain, rtol=0, atol=0)
    near, _ = FedProx(mu=1.0, lr=0.5, batch=2).fit(TASK, tree.repeat(down, 3), {}, data)
    for client in range(3):
        apart = [(sent["head.weight"][client] - down["head.weight"]).norm() for sent in (near, plain)]
        assert apart[0] < apart[1]


def test_a_client_alone_does_what_it_does_in_the_stack() -> None:
    method, own = FedProx(mu=0.3, lr=0.5, epochs=3, batch=2, tune_epochs=2), numbered([5, 2, 9])
    down, together = Linear(scale=0.1).init(rng()), own.data(range(3), 4, stacked=True)
    up, _ = method.fit(TASK, tree.repeat(down, 3), {}, together)
    adapted = method.adapt(TASK, tree.repeat(down, 3), {}, together)
    for client in range(3):
        data = own.data([client], 4, stacked=False)
        torch.testing.assert_close(tree.row(up, client), method.fit(TASK, down, {}, data)[0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(tree.row(adapted, client), method.adapt(TASK, down, {}, data), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", [FedAvg(lr=LN3, batch=1), FedProx(mu=9.0, lr=LN3, batch=1)])
def test_fine_tuning_is_by_the_plain_loss(method: FedAvg | FedProx) -> None:
    data = shards(dataset([BLACK], [0]), [1]).data([0], 0, stacked=False)
    # the two steps of the first test without a pull
    torch.testing.assert_close(replace(method, tune_epochs=2).adapt(TASK, biased(), {}, data), biased(3 * LN3 / 4))
    torch.testing.assert_close(method.adapt(TASK, biased(1.0), {}, data), biased(1.0), rtol=0, atol=0)


def test_a_negative_pull_is_refused() -> None:
    with pytest.raises(PromptFedError, match=r"method\.mu must be at least 0"):
        make(FedProx, {"mu": -1}, "method")
