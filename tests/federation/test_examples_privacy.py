"""What an example's privacy has cost: counted for each client by the rounds it was in."""

from dataclasses import dataclass
from typing import ClassVar

import pytest

from promptfed.core.method import Method
from promptfed.federation.examples_privacy import spent_on_examples
from promptfed.federation.guards.accountant import epsilon

pytest.importorskip("dp_accounting")


@dataclass(frozen=True)
class Hides(Method):
    """Says what it spends."""

    name: ClassVar[str] = "hides"
    noise: float = 4.0

    def spends(self) -> tuple[float, float, int]:
        return self.noise, 1e-5, 2


def test_every_round_a_client_is_in_costs_two_passes() -> None:
    found = spent_on_examples(Hides(), [[0, 1], [1], [1, 2]], [0, 1, 2, 3])
    wanted = [epsilon(4.0, 1e-5, 2), epsilon(4.0, 1e-5, 6), epsilon(4.0, 1e-5, 2), 0.0]
    assert found == {"epsilon": wanted, "delta": 1e-5}
    assert wanted[1] > wanted[0] > 0


def test_a_pass_is_a_gaussian_mechanism_with_half_the_multiplier() -> None:
    """Of sensitivity 2 and deviation 4: RDP of α / (2 · 2²) a pass, and ε at most its sum + ln(1 / δ) / (α − 1)."""
    (found,) = spent_on_examples(Hides(), [[0]], [0])["epsilon"]
    bound = min(2 * alpha / 8 + 11.512925 / (alpha - 1) for alpha in (1 + n / 10 for n in range(1, 300)))
    assert 0.7 * bound < found <= bound


def test_without_noise_there_is_nothing_to_say() -> None:
    assert spent_on_examples(Hides(noise=0.0), [[0]], [0]) == {}
    assert spent_on_examples(Method(), [[0]], [0]) == {}
