"""MOON: one contrastive step by hand, the model a client remembers, and the first time it trains."""

import math
from dataclasses import replace

import pytest
import torch

from promptfed.backbones.cnn import ConvNet
from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.options import make
from promptfed.core.tree import Tree
from promptfed.methods.fedavg import FedAvg
from promptfed.methods.moon import Moon
from support.toys import WHITE, FrozenTokens, dataset, graded, numbered, rng, shards, task

TASK = task(FrozenTokens())
LN3 = math.log(3)


def model(*scale: float) -> Tree:
    """Return a network whose features of a white image are `scale`; its head is all zero."""
    return {"scale": torch.tensor(scale), "head.weight": torch.zeros(2, 3), "head.bias": torch.zeros(2)}


def remembering(*scale: float) -> Tree:
    return {"last.scale": torch.tensor(scale), "trained": torch.tensor(1.0)}


def test_one_step_by_hand() -> None:
    method = Moon(mu=2.0, temperature=1 / LN3, lr=1.0, epochs=1, batch=1)
    data = shards(dataset([WHITE], [0]), [1]).data([0], 0, stacked=False)
    up, personal = method.fit(TASK, model(1.0, 0.0, 0.0), remembering(0.0, 5.0, 0.0), data)
    # z = z_glob = (1, 0, 0) and z_prev = (0, 5, 0): the cosines are 1 and 0, so the last model's share is
    # 1 / (1 + e^{1/τ}) = 1/4; ∂cos(z, z_prev)/∂z = (0, 1, 0), ∂cos(z, z_glob)/∂z = 0: ∂ℓ_con/∂z = ln 3 / 4 (0, 1, 0)
    torch.testing.assert_close(up["scale"], torch.tensor([1.0, -2 * LN3 / 4, 0.0]))
    # the classifier sees FedAvg's gradient alone: p = 1/2
    torch.testing.assert_close(up["head.weight"], torch.tensor([[0.5, 0, 0], [-0.5, 0, 0]]))
    torch.testing.assert_close(up["head.bias"], torch.tensor([0.5, -0.5]))
    torch.testing.assert_close(personal, {"last.scale": up["scale"], "trained": torch.tensor(1.0)})


def test_the_objective_by_hand() -> None:
    (batch,) = shards(dataset([WHITE], [0]), [1]).data([0], 0, stacked=False).batches(size=1)
    params = {"last.scale": torch.tensor([0.0, 5.0, 0.0])} | model(3.0, 4.0, 0.0)
    # cos(z, z_glob) = 3/5, cos(z, z_prev) = 4/5
    expected = math.log(2) + 2 * math.log(1 + math.exp(0.2 / 0.5))
    found = Moon(mu=2.0, temperature=0.5).contrastive(TASK, model(1.0, 0.0, 0.0), params, batch)
    assert float(found) == pytest.approx(expected)


def test_padding_has_no_part_in_the_contrast() -> None:
    (batch,) = shards(dataset([WHITE], [0]), [1]).data([0], 0, stacked=False).batches(size=3)
    params = {"last.scale": torch.tensor([0.0, 5.0, 0.0])} | model(3.0, 4.0, 0.0)
    assert batch["mask"].tolist() == [1, 0, 0]
    whole = Moon().contrastive(TASK, model(1.0, 0.0, 0.0), params, batch)
    only = {name: value[:1] if value.shape[:1] == (3,) else value for name, value in batch.items()}
    torch.testing.assert_close(whole, Moon().contrastive(TASK, model(1.0, 0.0, 0.0), params, only))


def test_the_first_time_the_last_model_is_the_received_one() -> None:
    method, own = Moon(lr=0.5, epochs=1, batch=9), graded([5])
    data = own.data([0], 0, stacked=False)
    down = model(1.0, 2.0, 3.0)
    start = method.init_client(TASK, data, rng(0))
    assert start["trained"] == 0
    assert set(start) == {"last.scale", "trained"}
    # both cosines are the same function of z, so the contrast is flat, and a round of one step is FedAvg's
    up, personal = method.fit(TASK, down, start, data)
    plain, _ = FedAvg(lr=0.5, epochs=1, batch=9).fit(TASK, down, {}, data)
    torch.testing.assert_close(up, plain)
    # whatever lies in the room for the last model
    other, _ = method.fit(TASK, down, start | {"last.scale": torch.tensor([9.0, 9.0, -9.0])}, data)
    torch.testing.assert_close(other, up, rtol=0, atol=0)
    assert personal["trained"] == 1


def test_a_client_alone_does_what_it_does_in_the_stack() -> None:
    where = task(ConvNet((3, 6, 6), 2, channels=(2,), kernel=3, hidden=(4,), pool_after=(1,)), 3)
    method, own = Moon(mu=3.0, lr=0.05, epochs=2, batch=2, tune_epochs=1), graded([5, 2, 9], side=6)
    down, start = method.init_server(where, rng()), method.init_client(where, own.data([0], 0, stacked=False), rng(0))
    seasoned = {name: value + 0.1 for name, value in start.items()}  # a last model of its own
    personal, together = tree.stack([start, seasoned, start]), own.data(range(3), 4, stacked=True)
    up, after = method.fit(where, tree.repeat(down, 3), personal, together)
    adapted = method.adapt(where, tree.repeat(down, 3), personal, together)
    assert set(after) == set(start)
    for client in range(3):
        data = own.data([client], 4, stacked=False)
        alone = method.fit(where, down, tree.row(personal, client), data)
        torch.testing.assert_close((tree.row(up, client), tree.row(after, client)), alone, rtol=1e-4, atol=1e-5)
        tuned = method.adapt(where, down, tree.row(personal, client), data)
        torch.testing.assert_close(tree.row(adapted, client), tuned, rtol=1e-4, atol=1e-5)


def test_the_whole_model_travels_and_the_memory_stays() -> None:
    method, data = Moon(epochs=1), numbered([3]).data([0], 0, stacked=False)
    down, start = method.init_server(TASK, rng()), method.init_client(TASK, data, rng(0))
    up, personal = method.fit(TASK, down, start, data)
    assert set(up) == set(down) == {"scale", "head.weight", "head.bias"}
    assert not set(up) & set(personal)
    assert method.deploy(TASK, down) is down


def test_fine_tuning_is_by_the_plain_loss() -> None:
    method, data = Moon(mu=5.0, lr=0.5, batch=9), graded([5]).data([0], 0, stacked=False)
    down, memory = model(1.0, 2.0, 3.0), remembering(3.0, 2.0, 1.0)
    tuned = FedAvg(lr=0.5, batch=9, tune_epochs=2).adapt(TASK, down, {}, data)
    torch.testing.assert_close(replace(method, tune_epochs=2).adapt(TASK, down, memory, data), tuned, rtol=0, atol=0)
    torch.testing.assert_close(method.adapt(TASK, down, memory, data), down, rtol=0, atol=0)


@pytest.mark.parametrize(("key", "value"), [("temperature", 0), ("mu", -1)])
def test_numbers_without_sense_are_refused(key: str, value: int) -> None:
    with pytest.raises(PromptFedError, match=f"method.{key} must be"):
        make(Moon, {key: value}, "method")
