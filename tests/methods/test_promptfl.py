"""PromptFL on a toy dual encoder: a round by hand, with labels and without."""

import math

import pytest
import torch

from promptfed.core import tree
from promptfed.core.options import make
from promptfed.methods import _unlabelled as unlabelled
from promptfed.methods.promptfl import PromptFL
from support.toys import TinyDual, featured, rng, task

TASK = task(TinyDual())
SHARP = task(TinyDual(sharpness=math.log(9)))
ONE_STEP = PromptFL(tokens=1, lr=1.0, batch=4, weight_decay=0.0)
WITHOUT = PromptFL(mode="unsupervised", csc=False, tokens=1, lr=1.0, batch=4, weight_decay=0.0, stage1=1)
WRONG = 1 / (1 + math.e)  # what softmax (1, 0) gives to the second


def test_one_round_by_hand() -> None:
    own = featured(torch.tensor([[2.0, 0.0], [0.0, 5.0], [0.0, 5.0]]), [0, 1, 1], [1, 2])
    start, clients = {"context": torch.zeros(2, 1, 2)}, torch.arange(2)
    down = ONE_STEP.download(TASK, start, clients)
    up, personal = ONE_STEP.fit(TASK, down, {}, own.data([0, 1], 0, stacked=True))
    # the logits are (1, 0) for the first client: the text of class 1 turns away from the axis of class 0, and
    # the other way round for the second
    expected = torch.tensor([[[0.0, 0.0], [-WRONG, 0.0]], [[0.0, -WRONG], [0.0, 0.0]]])
    torch.testing.assert_close(up["context"].squeeze(-2), expected)
    assert personal == {}
    after = ONE_STEP.aggregate(TASK, start, clients, up, ONE_STEP.weight(own.facts([0, 1])))
    torch.testing.assert_close(after["context"].squeeze(-2), expected.mean(0))


def test_a_shared_context_moves_by_the_sum_over_classes() -> None:
    method = PromptFL(csc=False, tokens=1, lr=1.0, batch=1, weight_decay=0.0)
    data = featured(torch.tensor([[1.0, 0.0]]), [0], [1]).data([0], 0, stacked=False)
    up, _ = method.fit(TASK, {"context": torch.zeros(1, 2)}, {}, data)
    torch.testing.assert_close(up["context"], torch.tensor([[-WRONG, 0.0]]))


def test_the_text_tower_runs_once_before_testing() -> None:
    params = {"context": torch.tensor([[0.0, 1.0]])}
    prepared = PromptFL(csc=False).prepare(TASK, params)
    half = math.sqrt(0.5)
    torch.testing.assert_close(prepared["text"], torch.tensor([[half, half], [0.0, 1.0]]))
    found = PromptFL(csc=False).predict(TASK, prepared, {"x": torch.tensor([[0.0, 3.0]])})
    torch.testing.assert_close(found, torch.tensor([[half, 1.0]]))


def test_both_stages_without_labels_by_hand() -> None:
    views = torch.ones(2, unlabelled.VIEWS, 2)
    own = featured(torch.eye(2), [0, 1], [2], views=views, draws=unlabelled.DRAWS)
    (batch,) = own.data([0], 0, stacked=False).batches(size=2, ordered=True)
    params = {"context": torch.zeros(1, 2)}
    value = WITHOUT.self_training(SHARP, {}, params, batch)
    torch.testing.assert_close(value, torch.tensor(math.log(2)))
    scores = torch.tensor([[0.9, 0.1], [0.1, 0.9]])
    banks = {"bank.features": torch.eye(2), "bank.scores": scores}
    value, after = WITHOUT.comparison(SHARP, {}, params | banks, batch)
    # attraction and dispersion of two images that share 0.18, and views that are of either class
    expected = 0.09 - 0.18 + 0.9 * math.log(1.8) + 0.1 * math.log(0.2)
    torch.testing.assert_close(value, torch.tensor(expected))
    torch.testing.assert_close(after, {"bank.scores": scores})


@pytest.mark.parametrize("when", [0, 1])
def test_a_client_alone_does_what_it_does_in_the_stack(when: int) -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(13, 2, generator=draw)
    views = x.unsqueeze(1) + 0.1 * torch.randn(13, 4, 2, generator=draw)
    own = featured(x, [n % 2 for n in range(13)], [5, 1, 7], views=views, draws=unlabelled.DRAWS)
    for method in (WITHOUT, PromptFL(tokens=2, batch=3, epochs=2)):
        down = method.init_server(TASK, rng())
        start = method.init_client(TASK, own.data([0], 0, stacked=False), rng(0))
        data = own.data(range(3), when, stacked=True)
        up, personal = method.fit(TASK, tree.repeat(down, 3), tree.repeat(start, 3), data)
        for client in range(3):
            alone = method.fit(TASK, down, start, own.data([client], when, stacked=False))
            torch.testing.assert_close((tree.row(up, client), tree.row(personal, client)), alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("preset", PromptFL.presets)
def test_presets_are_options(preset: str) -> None:
    make(PromptFL, PromptFL.presets[preset], "method")
