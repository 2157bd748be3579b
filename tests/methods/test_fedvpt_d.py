"""FedVPT-D on a frozen toy transformer of two layers: each layer's prompt by hand, and layers·K·D numbers to send."""

import math

import pytest
import torch

from promptfed.backbones.cnn import ConvNet
from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.tree import Tree
from promptfed.methods.fedvpt_d import FedVPTDeep
from support.toys import BLACK, FrozenTokens, dataset, numbered, rng, shards, task

TASK = task(FrozenTokens(layers=2))
LN3 = math.log(3)
ONE_STEP = FedVPTDeep(tokens=1, lr=1.0, epochs=1, batch=4, weight_decay=0.0)


def head() -> Tree:
    return {"head.weight": torch.tensor([[1.0] * 3, [0.0] * 3]), "head.bias": torch.zeros(2)}


def prompt(first: float, second: float) -> Tree:
    return {"prompt": torch.tensor([first, second]).view(2, 1, 1).repeat(1, 1, 3)}


def test_one_step_by_hand() -> None:
    data = shards(dataset([BLACK], [0]), [1]).data([0], 0, stacked=False)
    up, personal = ONE_STEP.fit(TASK, prompt(5 / 3 * LN3, 0.0), head(), data)
    # the class token is 1 · P₁ / 5 + 2 · P₂ / 5 = ln 3 / 3, so the logits are (ln 3, 0) and p = 3/4;
    # ∂/∂class token = −1/4, a fifth of which reaches P₁ and two fifths P₂
    torch.testing.assert_close(up, prompt(5 / 3 * LN3 + 0.05, 0.1))
    torch.testing.assert_close(personal["head.weight"], torch.tensor([[1 + LN3 / 12] * 3, [-LN3 / 12] * 3]))
    torch.testing.assert_close(personal["head.bias"], torch.tensor([0.25, -0.25]))


def test_each_layer_has_its_own_prompt() -> None:
    x = torch.zeros(1, 3, 2, 2)
    found = ONE_STEP.predict(TASK, prompt(1.0, 10.0) | head(), {"x": x})
    assert found[0, 0].item() == pytest.approx(3 * (1 * 1 + 2 * 10) / 5)
    stacked = ONE_STEP.predict(
        TASK, tree.stack([prompt(1.0, 10.0) | head(), prompt(10.0, 1.0) | head()]), {"x": torch.zeros(2, 1, 3, 2, 2)}
    )
    torch.testing.assert_close(stacked[:, 0, 0], torch.tensor([12.6, 7.2]))


@pytest.mark.parametrize("tokens", [1, 10])
def test_exactly_the_prompts_travel(tokens: int) -> None:
    method, clients = FedVPTDeep(tokens=tokens, epochs=1, batch=2), torch.arange(3)
    own, where = numbered([5, 2, 3]), task(FrozenTokens(layers=4, spread=1.0), 3)
    server = method.init_server(where, rng())
    down = method.download(where, server, clients)
    start = method.init_client(where, own.data([0], 0, stacked=False), rng(0))
    up, personal = method.fit(where, down, tree.repeat(start, 3), own.data(range(3), 0, stacked=True))
    assert set(up) == set(down) == {"prompt"}
    assert tree.floats(up) == tree.floats(down) == 3 * 4 * tokens * 3
    assert set(personal) == set(start) == {"head.weight", "head.bias"}
    assert method.deploy(where, server) == {}


def test_a_client_alone_does_what_it_does_in_the_stack() -> None:
    method, own = FedVPTDeep(tokens=2, epochs=3, batch=2), numbered([5, 2, 9])
    where = task(FrozenTokens(layers=3, spread=1.0), 3)
    down = method.init_server(where, rng())
    start = method.init_client(where, own.data([0], 0, stacked=False), rng(0))
    up, personal = method.fit(where, tree.repeat(down, 3), tree.repeat(start, 3), own.data(range(3), 4, stacked=True))
    for client in range(3):
        alone = method.fit(where, down, start, own.data([client], 4, stacked=False))
        torch.testing.assert_close((tree.row(up, client), tree.row(personal, client)), alone, rtol=1e-4, atol=1e-5)


def test_prompts_need_a_transformer() -> None:
    with pytest.raises(PromptFedError, match="Prompt tokens need a transformer"):
        FedVPTDeep().init_server(task(ConvNet((3, 32, 32), 2)), rng())
