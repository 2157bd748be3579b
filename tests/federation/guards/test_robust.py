"""Robust rules: exact small numbers, and what poisoned answers can no longer do."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from promptfed.federation.guards.guard import Guard
from promptfed.federation.guards.robust import Krum, Median, NormBound, TrimmedMean, trimmed
from support.toy_round import apply, rows


def test_the_trimmed_mean_leaves_out_both_ends_of_every_number() -> None:
    sent = rows([1.0, 50.0], [2.0, 40.0], [3.0, 30.0], [4.0, 20.0], [100.0, -900.0])
    clients, up, weights = apply(TrimmedMean(0.2), sent, weights=torch.tensor([9.0, 1, 1, 1, 1]))
    assert up["w"].tolist() == [[3.0, 30.0]]  # (2 + 3 + 4) / 3 and (20 + 30 + 40) / 3, each client once
    assert (clients.tolist(), weights.tolist()) == ([0, 1, 2, 3, 4], [1.0])


@pytest.mark.parametrize(
    ("clients", "trim", "count"),
    [(10, 0.2, 2), (9, 0.2, 1), (100, 0.29, 29), (10, 0.5, 4), (5, 0.5, 2), (1, 0.5, 0), (4, 0.2, 0)],
)
def test_how_many_are_left_out(clients: int, trim: float, count: int) -> None:
    assert trimmed(clients, trim) == count


def test_the_median_is_the_middle_or_between_two() -> None:
    assert apply(Median(), rows([1.0, -5.0], [100.0, 0.0], [3.0, 7.0]))[1]["w"].tolist() == [[3.0, 0.0]]
    clients, up, weights = apply(Median(), rows([1.0], [100.0], [3.0], [4.0]))
    assert up["w"].tolist() == [[3.5]]
    assert (clients.tolist(), weights.tolist()) == ([0, 1, 2, 3], [1.0])


def test_krum_keeps_the_answer_closest_to_its_neighbours() -> None:
    # with f = 1 of five the two nearest count: 0: 1 + 4; 1: 1 + 1; 2: 1 + 4; 5: 9 + 16; 100: far off
    sent = rows([0.0], [1.0], [2.0], [5.0], [100.0])
    clients, up, weights = apply(Krum(1), sent, weights=torch.tensor([5.0, 6, 7, 8, 9]))
    assert (clients.tolist(), up["w"].tolist(), weights.tolist()) == ([1], [[1.0]], [1.0])
    clients, up, _ = apply(Krum(1, keep=3), sent)
    assert (clients.tolist(), up["w"].tolist()) == ([0, 1, 2], [[0.0], [1.0], [2.0]])


def test_krum_looks_at_all_names_and_at_the_change_since_down() -> None:
    up = {"w": torch.tensor([[0.0], [0.0], [9.0], [0.0], [0.0]]), "v": torch.tensor([0.0, 8.0, 0.0, 0.0, 0.5])}
    down = {"w": torch.zeros(5, 1)}
    assert apply(Krum(1, keep=3), up, down)[0].tolist() == [0, 3, 4]
    start = {"w": torch.tensor([[10.0], [20.0], [30.0], [40.0], [50.0]])}
    moved = {"w": start["w"] + torch.tensor([[1.0], [1.0], [1.0], [-7.0], [1.0]])}
    assert apply(Krum(1, keep=4), moved, start)[0].tolist() == [0, 1, 2, 4]


def test_near_neighbours_are_told_apart_beside_one_that_is_far_off() -> None:
    sent = rows([1000.0], [1000.25], [1000.5], [1000.75], [1e6])
    assert apply(Krum(1), sent)[0].tolist() == [1]


def test_norm_bound_shortens_to_the_bound_or_to_the_median_length() -> None:
    sent = rows([3.0, 4.0], [0.6, 0.8], [30.0, 40.0])
    clients, up, weights = apply(NormBound(1.0), sent, weights=torch.tensor([1.0, 2, 30]))
    assert up["w"].flatten().tolist() == pytest.approx([0.6, 0.8, 0.6, 0.8, 0.6, 0.8])
    assert (clients.tolist(), weights.tolist()) == ([0, 1, 2], [1.0, 1.0, 1.0])
    assert apply(NormBound(), sent)[1]["w"].flatten().tolist() == pytest.approx([3.0, 4.0, 0.6, 0.8, 3.0, 4.0])


def test_norm_bound_starts_at_down() -> None:
    down = {"w": torch.full((3, 1), 10.0)}
    assert apply(NormBound(2.0), rows([11.0], [20.0], [-5.0]), down)[1]["w"].tolist() == [[11.0], [12.0], [8.0]]


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize("guard", [TrimmedMean(0.2), Median(), Krum(1), NormBound()], ids=lambda guard: str(guard.name))
def test_numbers_that_are_none_do_not_get_through(guard: Guard, poison: float) -> None:
    _, up, weights = apply(guard, rows([1.0], [1.1], [poison], [0.9], [1.0]))
    mean = float((up["w"] * weights.unsqueeze(1)).sum() / weights.sum())
    assert 0.5 < mean < 1.3


honest = st.lists(st.floats(-1, 1, width=32), min_size=8, max_size=8)


@settings(deadline=None)
@given(honest, st.lists(st.floats(-1e6, 1e6, width=32), min_size=2, max_size=2))
def test_two_of_ten_cannot_leave_the_range_of_the_others(values: list[float], poison: list[float]) -> None:
    sent = rows(*([value] for value in [*values, *poison]))
    for guard in (TrimmedMean(0.2), Median(), Krum(2)):
        found = apply(guard, sent)[1]["w"]
        assert min(values) - 1e-6 <= float(found.min())
        assert float(found.max()) <= max(values) + 1e-6


@settings(deadline=None)
@given(honest, st.permutations(range(8)))
def test_the_order_of_clients_does_not_matter(values: list[float], order: list[int]) -> None:
    sent = rows(*([value, value * value] for value in values))
    mixed = {"w": sent["w"][order]}
    for guard in (TrimmedMean(0.25), Median(), NormBound()):
        first, second = (apply(guard, one)[1]["w"].mean(0) for one in (sent, mixed))
        torch.testing.assert_close(first, second)
