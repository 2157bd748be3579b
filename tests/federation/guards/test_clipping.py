"""Clipping: exact lengths, on a stack and on one row alone."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from promptfed.core import tree
from promptfed.core.tree import Tree
from promptfed.federation.guards.clip import Clip
from promptfed.federation.guards.guard import changes, norms
from support.toy_round import apply, rows


def test_a_long_change_is_scaled_to_the_bound_a_short_one_stays() -> None:
    clients, up, weights = apply(Clip(5.0), rows([6.0, 8.0], [3.0, 4.0], [0.0, 0.0]), weights=torch.tensor([1.0, 2, 3]))
    assert up["w"].tolist() == [[3.0, 4.0], [3.0, 4.0], [0.0, 0.0]]
    assert (clients.tolist(), weights.tolist()) == ([0, 1, 2], [1.0, 2.0, 3.0])


def test_it_is_the_change_since_down_that_is_clipped() -> None:
    down = {"w": torch.tensor([[10.0, 0.0]])}
    _, up, _ = apply(Clip(1.0), rows([14.0, 3.0]), down)
    assert up["w"].tolist() == [[pytest.approx(10.8), pytest.approx(0.6)]]


def test_what_is_not_in_down_is_clipped_itself_and_all_names_together() -> None:
    up = {"w": torch.tensor([[13.0]]), "delta": torch.tensor([[0.0, 4.0]])}
    _, found, _ = apply(Clip(1.0), up, {"w": torch.tensor([[10.0]]), "other": torch.zeros(1, 7)})
    assert found["w"].item() == pytest.approx(10.6)
    assert found["delta"].tolist() == [[0.0, pytest.approx(0.8)]]


def test_even_hides_how_much_data_a_client_has() -> None:
    assert apply(Clip(1.0, even=True), rows([1.0], [2.0]), weights=torch.tensor([7.0, 9.0]))[2].tolist() == [1.0, 1.0]


def test_numbers_without_dimensions_have_a_length_too() -> None:
    up = {"scale": torch.tensor([3.0, 0.5])}  # one number per client
    assert apply(Clip(1.0), up)[1]["scale"].tolist() == [1.0, 0.5]


stacks = st.lists(st.lists(st.floats(-100, 100, width=32), min_size=3, max_size=3), min_size=1, max_size=5)


@settings(deadline=None)
@given(stacks, st.floats(0.01, 50))
def test_nobody_is_longer_than_the_bound_and_who_is_shorter_stays(values: list[list[float]], bound: float) -> None:
    sent = rows(*values)
    clients, up, _ = apply(Clip(bound), sent)
    before, after = (norms(clients, changes({}, one)) for one in (sent, up))
    assert bool((after <= bound * 1.0001).all())
    short = before <= bound
    assert up["w"][short].equal(sent["w"][short])


@settings(deadline=None)
@given(stacks, st.floats(0.01, 50))
def test_one_row_alone_gives_what_it_gives_in_the_stack(values: list[list[float]], bound: float) -> None:
    sent: Tree = rows(*values) | {"b": torch.ones(len(values), 2, 2)}
    down: Tree = {"w": torch.full((len(values), 3), 0.25)}
    weights = torch.ones(len(values))
    _, stacked, _ = Clip(bound)(0, torch.arange(len(values)), down, sent, weights)
    for number in range(len(values)):
        alone = Clip(bound)(0, torch.tensor(number), tree.row(down, number), tree.row(sent, number), weights[number])
        torch.testing.assert_close(alone[1], tree.row(stacked, number))
