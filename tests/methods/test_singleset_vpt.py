"""SingleSet-VPT on a frozen toy transformer: FedVPT's step by hand, and nothing travels."""

import pytest
import torch

from promptfed.backbones.cnn import ConvNet
from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.tree import Tree
from promptfed.methods.singleset_vpt import SingleSetVPT
from support.toys import BLACK, FrozenTokens, dataset, numbered, rng, shards, task

TASK = task(FrozenTokens())


def model(prompt: float, bias: float) -> Tree:
    weight = torch.tensor([[1.0] * 3, [0.0] * 3])
    return {"prompt": torch.full((1, 3), prompt), "head.weight": weight, "head.bias": torch.tensor([bias, -bias])}


def test_one_step_by_hand() -> None:
    method = SingleSetVPT(tokens=1, lr=1.0, epochs=1, batch=4, weight_decay=0.0)
    own = shards(dataset([BLACK] * 4, [0, 1, 1, 1]), [1, 3])
    up, after = method.fit(TASK, {}, tree.repeat(model(0.0, 0.0), 2), own.data([0, 1], 0, stacked=True))
    # p = 1/2, so ∂/∂bias = ∓1/2 and ∂/∂P a fifth of it: one prompt token among four black pixels
    assert up == {}
    torch.testing.assert_close(tree.row(after, 0), model(0.1, 0.5))
    torch.testing.assert_close(tree.row(after, 1), model(-0.1, -0.5))


def test_nothing_travels_and_everybody_starts_alike() -> None:
    method, where = SingleSetVPT(), task(FrozenTokens(spread=1.0))
    data = numbered([2]).data([0], 0, stacked=False)
    server = method.init_server(where, rng())
    assert server == method.download(where, server, torch.arange(3)) == method.deploy(where, server) == {}
    first, second = (method.init_client(where, data, rng(client)) for client in (0, 1))
    assert first["prompt"].shape == (10, 3)
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_a_client_alone_arrives_where_it_does_in_the_stack() -> None:
    method, own = SingleSetVPT(tokens=2, epochs=3, batch=2), numbered([5, 2, 9])
    where = task(FrozenTokens(spread=1.0), 3)
    start = method.init_client(where, own.data([0], 0, stacked=False), rng(0))
    _, together = method.fit(where, {}, tree.repeat(start, 3), own.data(range(3), 4, stacked=True))
    for client in range(3):
        _, alone = method.fit(where, {}, start, own.data([client], 4, stacked=False))
        assert set(alone) == set(start)
        torch.testing.assert_close(tree.row(together, client), alone, rtol=1e-4, atol=1e-5)


def test_predictions_are_those_of_prompted_images() -> None:
    found = SingleSetVPT().predict(TASK, model(5.0, 0.0), {"x": torch.ones(1, 3, 2, 2)})
    torch.testing.assert_close(found, torch.tensor([[3 * (5.0 + 4.0) / 5, 0.0]]))


def test_prompts_need_a_transformer() -> None:
    data = numbered([2]).data([0], 0, stacked=False)
    with pytest.raises(PromptFedError, match="Prompt tokens need a transformer"):
        SingleSetVPT().init_client(task(ConvNet((3, 32, 32), 2)), data, rng(0))
