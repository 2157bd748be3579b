"""CLIP-FC on a toy dual encoder: a step by hand."""

import math

import torch

from promptfed.core import tree
from promptfed.methods.clip_fc import CLIPFC
from support.toys import TinyDual, featured, rng, task

TASK = task(TinyDual())
EYE = {"adapter.weight": torch.eye(2), "adapter.bias": torch.zeros(2)}


def test_a_step_by_hand() -> None:
    method = CLIPFC(lr=1.0, batch=1, weight_decay=0.0)
    data = featured(torch.tensor([[2.0, 0.0]]), [1], [1]).data([0], 0, stacked=False)
    up, personal = method.fit(TASK, EYE, {}, data)
    # logits (1, 0) and label 1; the direction of g = W f + b = (2, 0) turns by ∂g_2 / 2, which only logit 1 sees, so
    # ∂L/∂g = (0, −r / 2) with r = e / (1 + e); ∂g_2/∂W = f, ∂g_2/∂b = 1
    right = math.e / (1 + math.e)
    torch.testing.assert_close(up["adapter.weight"], torch.tensor([[1.0, 0.0], [right, 1.0]]))
    torch.testing.assert_close(up["adapter.bias"], torch.tensor([0.0, right / 2]))
    assert personal == {}


def test_the_map_comes_before_the_cosine() -> None:
    params = {"adapter.weight": torch.tensor([[0.0, 3.0], [4.0, 0.0]]), "adapter.bias": torch.zeros(2)}
    found = CLIPFC().predict(TASK, params, {"x": torch.tensor([[1.0, 1.0]])})
    torch.testing.assert_close(found, torch.tensor([[0.6, 0.8]]))


def test_a_client_alone_does_what_it_does_in_the_stack() -> None:
    method, draw = CLIPFC(batch=2, epochs=2), torch.Generator().manual_seed(0)
    own = featured(torch.randn(9, 2, generator=draw), [n % 2 for n in range(9)], [5, 1, 3])
    down = method.init_server(TASK, rng())
    up, _ = method.fit(TASK, tree.repeat(down, 3), {}, own.data(range(3), 0, stacked=True))
    for client in range(3):
        alone, _ = method.fit(TASK, down, {}, own.data([client], 0, stacked=False))
        torch.testing.assert_close(tree.row(up, client), alone, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(method.weight(own.facts([0, 1, 2])), torch.ones(3))
