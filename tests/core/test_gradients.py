"""Steps in which no example counts more than so much: by hand, and against plain steps."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from promptfed.core import local, tree
from promptfed.core.errors import PromptFedError
from promptfed.core.gradients import of_examples
from promptfed.core.method import Task
from promptfed.core.protocols import Batch
from promptfed.core.tree import Tree
from promptfed.methods.promptfl import PromptFL
from support.toy_clip import NAMES, NET, normal
from support.toys import featured, task

TASK, CLIP = task(), Task(NET, NAMES, 3)
ONCE = frozenset({"active", "weight"})


def slope(start: Tree, params: Tree, batch: Batch) -> Tensor:
    """The mean of w · x, times a client's own weight: an example's gradient is its x."""
    each = (params["w"].unsqueeze(-2) * batch["x"]).sum(-1) + params["b"].unsqueeze(-1)
    return batch["weight"] * (each * batch["mask"]).sum(-1) / batch["mask"].sum(-1).clamp(min=1e-4)


def batch() -> Batch:
    x = torch.tensor([[3.0, 0.0], [0.3, 0.0], [7.0, 7.0]])
    return {"x": x, "mask": torch.tensor([1.0, 1.0, 0.0]), "active": torch.ones(()), "weight": torch.tensor(2.0)}


def test_examples_are_shortened_one_by_one() -> None:
    params = {"w": torch.zeros(2), "b": torch.zeros(())}
    w, b = of_examples(slope, {}, {}, params, batch(), ONCE, 2.5, 0.0)
    # gradients 2 · (3, 0, 1) of length 2 √10, and 2 · (0.3, 0, 1) of length 2.088; the third is not there
    first = 2.5 / 10**0.5
    torch.testing.assert_close(w, torch.tensor([(3 * first + 0.6) / 3, 0.0]))
    torch.testing.assert_close(b, torch.tensor((first + 2.0) / 3))


def test_noise_is_in_units_of_the_clip_and_is_added_to_the_sum() -> None:
    params = {"w": torch.zeros(2), "b": torch.zeros(())}
    noisy = batch() | {"noise.w": torch.tensor([1.0, -1.0]), "noise.b": torch.tensor(0.5)}
    plain = of_examples(slope, {}, {}, params, batch(), ONCE, 2.5, 0.0)
    found = of_examples(slope, {}, {}, params, noisy, ONCE, 2.5, 0.4)
    torch.testing.assert_close(found[0] - plain[0], torch.tensor([1.0, -1.0]) / 3)
    torch.testing.assert_close(found[1] - plain[1], torch.tensor(0.5 / 3))


def test_a_client_without_a_batch_gets_no_noise_either() -> None:
    params = {"w": torch.zeros(2, 2), "b": torch.zeros(2)}
    stack = {name: torch.stack([value, value]) for name, value in batch().items()}
    stack |= {"active": torch.tensor([1.0, 0.0]), "mask": stack["mask"] * torch.tensor([[1.0], [0.0]])}
    stack |= {"noise.w": torch.ones(2, 2), "noise.b": torch.ones(2)}
    w, b = of_examples(slope, {}, {}, params, stack, ONCE, 2.5, 1.0)
    assert w[1].tolist() == [0, 0]
    assert b[1] == 0
    assert w[0].abs().min() > 0


def test_what_an_objective_hands_on_is_refused() -> None:
    with pytest.raises(PromptFedError, match=r"^With clip_each an objective hands nothing on"):
        of_examples(lambda *_: (torch.zeros(3), {}), {}, {}, {"w": torch.zeros(2)}, batch(), ONCE, 1.0, 0.0)


def test_a_clip_that_nothing_reaches_leaves_the_step_as_it_is() -> None:
    data = featured(normal(6, 10), [n % 3 for n in range(6)], [6]).data([0], 0, stacked=False)
    method, start = PromptFL(csc=False, tokens=3), {"context": normal(3, 12, seed=2)}

    def moved(clip_each: float) -> Tensor:
        batches = data.batches(size=3)
        step = {"start": start, "params": start, "lr": 0.1, "momentum": 0.9, "clip_each": clip_each}
        return local.sgd(method.loss, CLIP, batches, **step)["context"]  # type: ignore[arg-type]

    torch.testing.assert_close(moved(1e6), moved(0.0), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(moved(0.01), moved(0.0), atol=1e-4)


def test_a_stack_is_one_by_one_with_noise_of_each_clients_own() -> None:
    draws = local.noise_for({"context": (3, 12)})
    data = featured(normal(13, 10), [n % 3 for n in range(13)], [5, 1, 7], draws=draws)
    method, start = PromptFL(csc=False, tokens=3), {"context": normal(3, 12, seed=2)}

    def moved(clients: list[int], begin: Tree) -> Tree:
        batches = data.data(clients, 0, stacked=begin["context"].dim() == 3).batches(size=3)
        return local.sgd(method.loss, CLIP, batches, start=begin, params=begin, lr=0.1, clip_each=0.5, noise=0.3)

    together = moved([0, 1, 2], tree.repeat(start, 3))
    for client in range(3):
        torch.testing.assert_close(tree.row(together, client), moved([client], start), rtol=1e-4, atol=1e-5)
    quiet = replace(data.data([0], 0, stacked=False), draws={})
    plain = local.sgd(method.loss, CLIP, quiet.batches(size=3), start=start, params=start, lr=0.1, clip_each=0.5)
    assert not torch.allclose(plain["context"], together["context"][0], atol=1e-3)
