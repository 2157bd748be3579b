"""Schedules: the factor of every round worked out by hand."""

import math
from typing import Any

import pytest

from promptfed.core.errors import PromptFedError
from promptfed.core.schedule import Schedule


def factors(rounds: int, joining: int = 0, **keys: Any) -> list[float]:
    schedule = Schedule(rounds, joining, **keys)
    schedule.check()
    return [schedule.factor(t) for t in range(rounds + joining)]


def test_constant_is_one_after_the_warm_up() -> None:
    assert factors(5, warmup=3) == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_cosine_falls_as_torch_has_it() -> None:
    # (1 + cos 0°, 45°, 90°, 135°) / 2
    half = math.sqrt(0.5)
    assert factors(4, name="cosine") == pytest.approx([1, (1 + half) / 2, 0.5, (1 - half) / 2])
    # floor + (1 − floor) of that, after two rounds of warm-up
    assert factors(4, name="cosine", warmup=2, floor=0.2) == pytest.approx([1 / 3, 2 / 3, 1, 0.6])


def test_linear_falls_evenly() -> None:
    assert factors(4, name="linear", floor=0.2) == pytest.approx([1, 0.8, 0.6, 0.4])


def test_steps_are_counted_from_the_first_round() -> None:
    found = factors(7, name="step", every=3, warmup=1, gamma=0.1, floor=0.05)
    assert found == pytest.approx([0.5, 1, 1, 0.1, 0.1, 0.1, 0.05])


def test_newcomers_go_through_it_on_their_own() -> None:
    assert factors(4, 2, name="linear") == pytest.approx([1, 0.75, 0.5, 0.25, 1, 0.5])


@pytest.mark.parametrize("joining", [0, 2])
def test_what_comes_after_the_last_round_has_its_factor(joining: int) -> None:
    schedule = Schedule(4, joining, "linear")
    assert schedule.factor(4 + joining) == schedule.factor(3 + joining) > 0


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"warmup": 4}, "schedule.warmup=4 must be less than rounds=4."),
        ({"warmup": 2, "joining": 2}, "schedule.warmup=2 must be less than join_rounds=2."),
        ({"name": "step"}, "schedule.name=step drops the rates every so many rounds; set schedule.every."),
        (
            {"name": "cosine", "every": 2},
            "schedule.every is of schedule.name=step, not of cosine; leave it out.",
        ),
    ],
)
def test_keys_that_do_not_go_together_are_refused(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PromptFedError) as refused:
        Schedule(4, **{"joining": 0} | keys).check()
    assert str(refused.value) == sentence
