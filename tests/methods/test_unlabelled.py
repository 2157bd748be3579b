"""Learning without labels: every term of the losses and both banks by hand."""

import math

import pytest
import torch
from torch import Tensor

from promptfed.core.prompts.text import match
from promptfed.core.tree import Tree
from promptfed.methods import _unlabelled as unlabelled
from promptfed.methods._unlabelled import Intra
from support.toys import TinyDual, featured, task

SURE = task(TinyDual(sharpness=math.log(9)))  # an image along one axis is of that class with 9 : 1


def batch(x: list[list[float]], mask: list[float] | None = None, size: float = 3.0) -> Tree:
    count = len(x)
    return {
        "x": torch.tensor(x),
        "mask": torch.ones(count) if mask is None else torch.tensor(mask),
        "index": torch.arange(count),
        "size": torch.tensor(size),
    }


def bank() -> Tree:
    return {
        "bank.features": torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]),
        "bank.scores": torch.tensor([[0.8, 0.2], [0.4, 0.6], [0.5, 0.5]]),
    }


# -- the first stage ----------------------------------------------------------------------------------------------


def test_a_draw_chooses_the_view() -> None:
    views = torch.arange(12.0).view(2, 3, 2)
    chosen = unlabelled.view({"views": views, "view": torch.tensor([0.99, 0.34])})
    torch.testing.assert_close(chosen, torch.stack([views[0, 2], views[1, 1]]))


def test_only_confident_answers_are_labels() -> None:
    seen = batch([[2.0, 0.0], [1.0, 1.0], [0.0, 3.0]])
    logits = torch.tensor([[0.0, 0.0], [50.0, -50.0], [math.log(3), 0.0]])
    # the first is of class 0 (0.9), the second of either (0.5, left out), the third of class 1 (0.9), to which the
    # logits give 1/4: (ln 2 + ln 4) / 2
    torch.testing.assert_close(unlabelled.pseudo_loss(SURE, logits, seen, 0.75), torch.tensor(1.5 * math.log(2)))


def test_padding_is_no_label() -> None:
    seen = batch([[2.0, 0.0], [0.0, 3.0]], mask=[1.0, 0.0])
    logits = torch.tensor([[0.0, 0.0], [50.0, -50.0]])
    torch.testing.assert_close(unlabelled.pseudo_loss(SURE, logits, seen, 0.75), torch.tensor(math.log(2)))


def test_nobody_is_sure() -> None:
    logits = torch.zeros(1, 2, requires_grad=True)
    value = unlabelled.pseudo_loss(SURE, logits, batch([[2.0, 0.0]]), 0.95)
    (grad,) = torch.autograd.grad(value, logits)
    assert value == 0
    torch.testing.assert_close(grad, torch.zeros(1, 2))


# -- the second stage ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("neighbours", "size", "expected"),
    [
        # the nearest of both is row 2, whose scores (0.5, 0.5) have 0.5 in common with anything; the two images have
        # 0.8 · 0.4 + 0.2 · 0.6 = 0.44 in common with each other, of which λ = 0.5 counts
        (1, 3.0, 0.22 - 0.5),
        (2, 3.0, 0.22 - 0.5 - 0.44),
        (5, 3.0, 0.22 - 0.5 - 0.44),
        # row 2 is beyond what this client has
        (1, 2.0, 0.22 - 0.44),
        (5, 2.0, 0.22 - 0.44),
        (5, 1.0, 0.22 - 0.44 / 2),  # only the second image has a neighbour, the first
    ],
)
def test_attraction_and_dispersion_by_hand(neighbours: int, size: float, expected: float) -> None:
    seen = batch([[2.0, 0.0], [0.0, 3.0]], size=size)
    value = unlabelled.inter_loss(bank()["bank.scores"][:2], bank(), seen, neighbours, 0.5)
    torch.testing.assert_close(value, torch.tensor(expected))


def test_over_the_mean_of_the_rest_a_pair_counts_alike_in_every_batch() -> None:
    # three images with equal scores (0.8, 0.2), whose products are 0.68: two others each by the sum, one by the mean
    alike = torch.tensor([[0.8, 0.2]]).expand(3, 2)
    seen = batch([[2.0, 0.0], [0.0, 3.0], [1.0, 1.0]])
    attraction = unlabelled.inter_loss(alike, bank(), seen, 1, 0.0)
    summed = unlabelled.inter_loss(alike, bank(), seen, 1, 0.5, "sum") - attraction
    meant = unlabelled.inter_loss(alike, bank(), seen, 1, 0.5, "mean") - attraction
    torch.testing.assert_close(summed, torch.tensor(0.5 * 2 * 0.68))
    torch.testing.assert_close(meant, torch.tensor(0.5 * 0.68))


def test_an_image_alone_in_its_batch_has_no_rest() -> None:
    seen = batch([[2.0, 0.0], [0.0, 3.0]], mask=[1.0, 0.0])
    value = unlabelled.inter_loss(bank()["bank.scores"][:2], bank(), seen, 1, 0.5, "mean")
    torch.testing.assert_close(value, torch.tensor(-0.5))


def test_padding_neither_attracts_nor_disperses() -> None:
    seen = batch([[2.0, 0.0], [0.0, 3.0]], mask=[1.0, 0.0])
    value = unlabelled.inter_loss(bank()["bank.scores"][:2], bank(), seen, 1, 0.5)
    torch.testing.assert_close(value, torch.tensor(-0.5))


def test_scores_are_pulled_to_their_neighbours_and_from_the_rest() -> None:
    scores = bank()["bank.scores"][:2].clone().requires_grad_()
    value = unlabelled.inter_loss(scores, bank(), batch([[2.0, 0.0], [0.0, 3.0]]), 1, 0.5)
    (grad,) = torch.autograd.grad(value, scores)
    # −z_j / 2 from the attraction; λ · 2 z_m / 2 from the dispersion, in which every pair stands twice
    torch.testing.assert_close(grad, -torch.full((2, 2), 0.25) + 0.5 * scores.detach().flip(0))


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("kl", 0.8 * math.log(0.8 / 0.5) + 0.2 * math.log(0.2 / 0.5)),
        ("printed", 0.5 * math.log(0.5 / 0.8) + 0.5 * math.log(0.5 / 0.2)),
        ("double-softmax", math.log(2)),
    ],
)
def test_consistency_by_hand(form: Intra, expected: float) -> None:
    scores = torch.tensor([[0.8, 0.2], [1.0, 0.0]])
    value = unlabelled.intra_loss(torch.zeros(2, 2), scores, batch([[0.0, 0.0]] * 2, mask=[1.0, 0.0]), form)
    torch.testing.assert_close(value, torch.tensor(expected))


def test_certainty_in_the_bank_stays_finite() -> None:
    scores = torch.tensor([[1.0, 0.0]])
    for form in ("kl", "printed", "double-softmax"):
        logits = torch.tensor([[3.0, 1.0]], requires_grad=True)
        value = unlabelled.intra_loss(logits, scores, batch([[0.0, 0.0]]), form)
        (grad,) = torch.autograd.grad(value, logits)
        assert value.isfinite()
        assert grad.isfinite().all()


# -- the banks ----------------------------------------------------------------------------------------------------


def test_a_batch_is_written_at_its_places_and_padding_nowhere() -> None:
    seen = {"index": torch.tensor([2, 0, 0]), "mask": torch.tensor([1.0, 1.0, 0.0])}
    rows = torch.tensor([[1.0], [2.0], [9.0]])
    torch.testing.assert_close(unlabelled.written(torch.zeros(4, 1), seen, rows).T, torch.tensor([[2.0, 0, 1, 0]]))
    padded = seen | {"mask": torch.tensor([1.0, 0.0, 0.0])}
    torch.testing.assert_close(unlabelled.written(torch.zeros(4, 1), padded, rows).T, torch.tensor([[0.0, 0, 1, 0]]))


def answer(features: Tensor) -> Tensor:
    return match(features, torch.eye(2), torch.tensor(math.log(9)))


def test_banks_are_filled_once() -> None:
    x = torch.tensor([[3.0, 4.0], [0.0, 2.0], [5.0, 0.0]])
    data = featured(x, [0, 1, 0], [3]).data([0], 0, stacked=False)
    known = torch.tensor([[0.0, 0.0], [0.7, 0.3], [0.0, 0.0]])
    found = unlabelled.filled(known, data, 2, answer)
    torch.testing.assert_close(found["bank.features"], torch.tensor([[0.6, 0.8], [0.0, 1.0], [1.0, 0.0]]))
    first = 1 / (1 + 9**0.2)  # cosines 0.6 and 0.8
    expected = torch.tensor([[first, 1 - first], [0.7, 0.3], [0.9, 0.1]])
    torch.testing.assert_close(found["bank.scores"], expected)


def test_stacked_banks_are_those_of_each_client() -> None:
    draw = torch.Generator().manual_seed(0)
    own = featured(torch.randn(12, 2, generator=draw), [0, 1] * 6, [7, 1, 4])
    empty = torch.zeros(7, 2)
    many = unlabelled.filled(empty.expand(3, 7, 2), own.data(range(3), 0, stacked=True), 3, answer)
    for client in range(3):
        one = unlabelled.filled(empty, own.data([client], 0, stacked=False), 3, answer)
        torch.testing.assert_close({name: value[client] for name, value in many.items()}, one)
