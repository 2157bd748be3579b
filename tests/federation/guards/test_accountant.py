"""The accountant: between the exact Gaussian bound and the textbook one, and what a budget allows."""

import math

import pytest

from promptfed.core.errors import PromptFedError
from promptfed.federation.guards import accountant
from promptfed.federation.guards.accountant import Accountant, epsilon

DELTA = 1e-5


def phi(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


def exact(multiplier: float, delta: float) -> float:
    """Return the ε of one Gaussian mechanism by bisection of its exact δ(ε) (Balle and Wang 2018, Theorem 8)."""
    low, high = 0.0, 200.0
    for _ in range(100):
        middle = (low + high) / 2
        first, second = 1 / (2 * multiplier) - middle * multiplier, -1 / (2 * multiplier) - middle * multiplier
        here = phi(first) - math.exp(middle) * phi(second)
        low, high = (middle, high) if here > delta else (low, middle)
    return high


def textbook(multiplier: float, delta: float) -> float:
    """Return Mironov's own conversion (2017, Proposition 3) at the best order: 1/2σ² + √(2 log 1/δ) / σ."""
    return 1 / (2 * multiplier**2) + math.sqrt(2 * math.log(1 / delta)) / multiplier


@pytest.mark.parametrize(("noise", "times"), [(2.0, 1), (0.8, 1), (0.8, 10), (8.0, 100), (20.0, 7)])
def test_between_the_exact_bound_and_the_textbooks(noise: float, times: int) -> None:
    # `times` Gaussian mechanisms of multiplier z are one of multiplier z/√times
    multiplier = noise / 2 / math.sqrt(times)
    found = epsilon(noise, DELTA, times)
    assert exact(multiplier, DELTA) <= found <= textbook(multiplier, DELTA)


def test_the_textbook_numbers_themselves() -> None:
    assert textbook(1.0, DELTA) == pytest.approx(5.299, abs=1e-3)
    assert exact(1.0, DELTA) == pytest.approx(4.377, abs=1e-3)
    assert epsilon(2.0, DELTA, 1) == pytest.approx(4.7285, abs=1e-4)  # dp-accounting 0.6


def test_a_round_costs_nothing_before_it_is_run_and_more_every_time() -> None:
    spent = [epsilon(2.0, DELTA, times) for times in range(5)]
    assert spent[0] == 0
    assert spent == sorted(set(spent))


def test_being_drawn_costs_less_than_being_there_and_never_more() -> None:
    always = epsilon(8.0, DELTA, 100)
    assert epsilon(8.0, DELTA, 100, (20, 5)) == pytest.approx(6.425, abs=0.01)  # dp-accounting 0.6
    assert epsilon(8.0, DELTA, 100, (20, 5)) < always
    assert epsilon(8.0, DELTA, 100, (20, 19)) == always  # where the bound for drawn clients is loose
    assert epsilon(8.0, DELTA, 100, (20, 20)) == always


def make(place: str = "local", budget: float = 0.0, noise: float = 2.0, per_round: int = 2) -> Accountant:
    return Accountant(noise, DELTA, budget, place, founders=4, per_round=per_round)  # type: ignore[arg-type]


def test_locally_each_client_pays_for_its_own_rounds() -> None:
    found = make().spent([[0, 1], [1, 2], [1, 3]], [0, 1, 2, 3])
    assert found == [epsilon(2.0, DELTA, times) for times in (1, 3, 1, 1)]
    assert make().spent([[1, 2]], [0]) == [0.0]


def test_centrally_everyone_pays_for_every_round_drawn_or_not() -> None:
    found = make("central").spent([[0, 1], [1, 2], [1, 3]], [0, 1])
    assert found == [epsilon(2.0, DELTA, 3, (4, 2))] * 2


def test_newcomers_pay_for_their_own_rounds_undrawn() -> None:
    rounds = [[0, 1], [1, 2], [4, 5], [4, 5]]
    assert make("central").spent(rounds, [0, 4]) == [epsilon(2.0, DELTA, 2, (4, 2)), epsilon(2.0, DELTA, 2)]
    assert make("local").spent(rounds, [1, 4]) == [epsilon(2.0, DELTA, 2)] * 2


def test_a_budget_allows_the_rounds_before_anyone_goes_beyond() -> None:
    two = epsilon(2.0, DELTA, 2)
    tight = make(budget=two)
    assert tight.most(0) == 2
    assert tight.affordable([[0, 1], [2, 3], [0, 2], [1, 3], [0, 1], [2, 3]]) == 4
    assert tight.affordable([[0, 1], [2, 3]]) == 2
    assert make(budget=two - 1e-6).most(0) == 1
    assert make(budget=0.1).affordable([[0, 1]]) == 0


def test_a_central_budget_counts_rounds() -> None:
    three = epsilon(2.0, DELTA, 3, (4, 2))
    assert make("central", budget=three).affordable([[0, 1]] * 10) == 3


def test_a_budget_nobody_reaches_has_an_end() -> None:
    assert make(budget=1e9, noise=1e6).most(0) == accountant.LONGEST


def test_without_the_accountant_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accountant, "find_spec", lambda name: None)
    with pytest.raises(PromptFedError, match=r'guards\.noise needs an accountant.*pip install "promptfed\[dp\]"'):
        accountant.require_accountant()
