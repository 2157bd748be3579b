"""Which clients take part: how many, which, and always the same ones."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from promptfed.federation.sampling import choose


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 1000), st.integers(1, 40), st.data())
def test_exactly_as_many_different_clients_in_order(seed: int, round: int, clients: int, data: st.DataObject) -> None:  # noqa: A002
    per_round = data.draw(st.integers(1, clients))
    chosen = choose(seed, round, clients, per_round).tolist()
    assert len(chosen) == len(set(chosen)) == per_round
    assert chosen == sorted(chosen)
    assert set(chosen) <= set(range(clients))


@pytest.mark.parametrize("per_round", [0, 7])
def test_all_of_them(per_round: int) -> None:
    assert choose(0, 3, 7, per_round).equal(torch.arange(7))


def test_the_seed_and_the_round_decide() -> None:
    assert choose(1, 2, 100, 10).equal(choose(1, 2, 100, 10))
    assert not choose(1, 2, 100, 10).equal(choose(1, 3, 100, 10))
    assert not choose(1, 2, 100, 10).equal(choose(2, 2, 100, 10))


def test_no_client_is_preferred() -> None:
    rounds = 2_000
    counts = torch.zeros(10)
    for number in range(rounds):
        counts[choose(0, number, 10, 3)] += 1
    # a client takes part with probability 0.3; five standard deviations
    assert (counts - 0.3 * rounds).abs().max() < 5 * math.sqrt(rounds * 0.3 * 0.7)
