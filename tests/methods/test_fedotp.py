"""FedOTP: its transport by hand and against plain iterations, a round by hand, and what travels."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.method import Task
from promptfed.core.options import make
from promptfed.core.prompts.text import match
from promptfed.methods.fedotp import FedOTP
from promptfed.methods.promptfl import PromptFL
from support.toy_clip import NAMES, NET, normal
from support.toys import TinyDual, featured, rng, task

TASK = task(TinyDual())
CLIP = Task(NET, NAMES, 3)
LIKENESS = (0.25 + 0.15 * normal(5, 3, 49, 2)).clamp(-1, 1)  # as CLIP's cosines are


def rows(plan: Tensor) -> Tensor:
    return plan.sum(-1)


def columns(plan: Tensor) -> Tensor:
    return plan.sum(-2)


def test_a_plan_by_hand() -> None:
    # both contexts like the first patch best. It gives all it has, 1/2; the second fills up to 0.8
    unequal = torch.tensor([[1.0, 1.0], [0.0, 0.0]])
    torch.testing.assert_close(FedOTP(steps=200).plan(unequal), torch.tensor([[0.25, 0.25], [0.15, 0.15]]))
    # each likes its own: at ε = 1/2 the pairs are 1 : e⁻² of the context's 0.4
    e, near = math.exp(-2), 0.4 / (1 + math.exp(-2))
    found = FedOTP(epsilon=0.5).plan(torch.eye(2))
    torch.testing.assert_close(found, torch.tensor([[near, near * e], [near * e, near]]))
    balanced = FedOTP(epsilon=0.5, transport="balanced").plan(torch.eye(2))
    torch.testing.assert_close(balanced, found / 0.8)
    assert FedOTP(transport="none").plan(torch.eye(2)).tolist() == [[0.25, 0.25], [0.25, 0.25]]


def test_a_patch_that_nothing_is_like_is_left_out() -> None:
    # the fifth of five: the others hold just 0.8
    likeness = torch.tensor([[0.9, 0.8], [0.8, 0.9], [0.9, 0.9], [0.8, 0.8], [-0.9, -0.9]])
    given = rows(FedOTP(epsilon=0.05, steps=200).plan(likeness))
    torch.testing.assert_close(given, torch.tensor([0.2, 0.2, 0.2, 0.2, 0.0]), rtol=0, atol=1e-4)


@pytest.mark.parametrize("mass", [0.5, 0.8, 1.0])
def test_what_a_plan_keeps_to(mass: float) -> None:
    plan = FedOTP(mass=mass, steps=50).plan(LIKENESS)
    assert (plan >= 0).all()
    torch.testing.assert_close(columns(plan), torch.full((5, 3, 2), mass / 2))
    assert (rows(plan) <= 1 / 49 + 1e-4).all()


def test_all_of_the_mass_is_the_balanced_transport() -> None:
    balanced = FedOTP(transport="balanced", steps=50).plan(LIKENESS)
    torch.testing.assert_close(rows(balanced), torch.full((5, 3, 49), 1 / 49))
    assert FedOTP(mass=1.0, steps=50).plan(LIKENESS).equal(balanced)
    nearly = FedOTP(mass=0.999, steps=2000).plan(LIKENESS)
    torch.testing.assert_close(nearly, balanced, rtol=0, atol=1e-3)  # what is missing may be missing in one place


@pytest.mark.parametrize("mass", [0.6, 0.8, 0.95])
def test_logarithms_give_what_plain_iterations_give(mass: float) -> None:
    kernel = torch.exp((LIKENESS.double() - 1) / 0.1)
    u, v = torch.ones_like(kernel[..., 0]), torch.ones_like(kernel[..., 0, :])
    for _ in range(20):
        u = ((1 / 49) / (kernel @ v.unsqueeze(-1)).squeeze(-1)).clamp(max=1)
        v = (mass / 2) / (kernel.mT @ u.unsqueeze(-1)).squeeze(-1)
    wanted = u.unsqueeze(-1) * kernel * v.unsqueeze(-2)
    torch.testing.assert_close(FedOTP(mass=mass, steps=20).plan(LIKENESS), wanted.float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("epsilon", [0.01, 0.001])
def test_a_small_entropy_is_no_trouble(epsilon: float) -> None:
    plan = FedOTP(epsilon=epsilon, steps=100).plan(LIKENESS)
    assert plan.isfinite().all()
    torch.testing.assert_close(columns(plan), torch.full((5, 3, 2), 0.4), rtol=1e-3, atol=0)


def test_a_round_by_hand() -> None:
    # of one patch each context gets γ / 2 = 0.4: logits are 0.8 times the cosines, the wrong class has 1 / (1 + e^0.8)
    method = FedOTP(tokens=1, lr=1.0, momentum=0.0, weight_decay=0.0)
    patches = torch.tensor([[[9.0, 9.0], [2.0, 0.0]], [[9.0, 9.0], [0.0, 5.0]], [[9.0, 9.0], [0.0, 1.0]]])
    own = featured(patches, [0, 1, 1], [1, 2])
    start, clients = {"context": torch.zeros(1, 2)}, torch.arange(2)
    personal = {"own": torch.zeros(2, 1, 2)}
    up, kept = method.fit(TASK, method.download(TASK, start, clients), personal, own.data([0, 1], 0, stacked=True))
    moved = -0.4 / (1 + math.exp(0.8)) * torch.eye(2).unsqueeze(-2)
    torch.testing.assert_close(up["context"], moved)
    torch.testing.assert_close(kept["own"], moved)
    after = method.aggregate(TASK, start, clients, up, method.weight(own.facts([0, 1])))
    torch.testing.assert_close(after["context"], (moved[0] + 2 * moved[1]) / 3)  # by images


def test_of_one_patch_it_is_the_mean_of_both_contexts() -> None:
    params, x = {"context": normal(3, 12), "own": normal(3, 12, seed=1)}, normal(4, 2, 10)
    texts = [NET.text(params[name], per_class=False) for name in ("context", "own")]
    mean = sum(match(x[:, 1], text, NET.scale) for text in texts) / 2
    torch.testing.assert_close(FedOTP(mass=0.7).predict(CLIP, params, {"x": x}), 0.7 * mean, rtol=1e-4, atol=1e-3)
    plain = FedOTP(transport="none").predict(CLIP, params, {"x": x})
    torch.testing.assert_close(plain, mean, rtol=1e-4, atol=1e-3)


def test_the_servers_model_is_one_context() -> None:
    server, x = {"context": normal(3, 12)}, normal(4, 2, 10)
    found = FedOTP(mass=1.0).predict(CLIP, FedOTP().deploy(CLIP, server), {"x": x})
    torch.testing.assert_close(found, PromptFL(csc=False).predict(CLIP, server, {"x": x[:, 1]}), rtol=1e-4, atol=1e-3)


def test_the_plan_has_no_gradient() -> None:
    text = torch.nn.functional.normalize(normal(2, 3, 10), dim=-1).requires_grad_()
    x = normal(4, 6, 10, seed=1)
    FedOTP().predict(CLIP, {"text": text}, {"x": x}).sum().backward()
    unit = torch.nn.functional.normalize(x[:, 1:], dim=-1)
    plan = FedOTP().plan(torch.einsum("bmd,ncd->bcmn", unit, text.detach()))
    wanted = NET.scale * torch.einsum("bcmn,bmd->ncd", plan, unit)
    assert text.grad is not None
    torch.testing.assert_close(text.grad, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("preset", "floats"), [("", 8192), ("few-shot", 8192), ("cifar", 2048)])
def test_what_travels_and_what_stays(preset: str, floats: int) -> None:
    wide = Task(TinyDual(10, 512), tuple(map(str, range(10))), 4)
    one = featured(torch.eye(10, 512).unsqueeze(1).repeat(1, 3, 1), list(range(10)), [10]).data([0], 0, stacked=False)
    method = make(FedOTP, FedOTP.presets[preset] if preset else {}, "method")
    down, personal = method.init_server(wide, rng()), method.init_client(wide, one, rng(0))
    up, kept = method.fit(wide, down, personal, one)
    assert (tree.floats(down), tree.floats(up), tree.floats(kept)) == (floats, floats, floats)


@pytest.mark.parametrize("options", [{}, {"transport": "balanced"}, {"transport": "none"}, {"epsilon": 0.01}])
def test_a_client_alone_does_what_it_does_in_the_stack(options: dict[str, Any]) -> None:
    data = featured(normal(13, 6, 10), [n % 3 for n in range(13)], [5, 1, 7])
    method = make(FedOTP, {"tokens": 2, "batch": 3, "epochs": 2, "lr": 0.02, **options}, "method")
    down = method.init_server(CLIP, rng())
    starts = [method.init_client(CLIP, data.data([n], 0, stacked=False), rng(n)) for n in range(3)]
    up, kept = method.fit(CLIP, tree.repeat(down, 3), tree.stack(starts), data.data(range(3), 0, stacked=True))
    for client in range(3):
        alone = method.fit(CLIP, down, starts[client], data.data([client], 0, stacked=False))
        torch.testing.assert_close((tree.row(up, client), tree.row(kept, client)), alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mass", [0.0, 1.5])
def test_more_than_all_and_nothing_are_refused(mass: float) -> None:
    with pytest.raises(PromptFedError, match=r"method\.mass must be"):
        make(FedOTP, {"mass": mass}, "method")
