"""Search spaces: what words stand for, and which settings are drawn from them."""

import math
from itertools import islice

import pytest

from promptfed.core.errors import PromptFedError
from promptfed.runs.search import Choices, Span, settings, split_words


def test_words_that_search_and_words_that_set() -> None:
    space, fixed = split_words(["a.b=[1,'x']", "rounds=3", "lr=log(1e-4,1)", "n=int(1,8)", "p=uniform(0,.5)"])
    assert space == {
        "a.b": Choices((1, "x")),
        "lr": Span(1e-4, 1.0, log=True),
        "n": Span(1.0, 8.0, whole=True),
        "p": Span(0.0, 0.5),
    }
    assert fixed == ["rounds=3"]


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("lr=[]", "lr=[] leaves nothing to try"),
        ("lr=[1,1]", "has a value twice"),
        ("lr=log(1,1e-4)", "the lower first"),
        ("lr=lgo(1e-4,1)", "lr=lgo(1e-4,1) is no range; write log(1e-4,1)"),
        ("lr=log(0,1)", "must start above 0"),
        ("lr=int(1,2.5)", "must be between whole numbers"),
        ("lr=uniform(1)", "is no range"),
        ("lr=uniform(0,inf)", "is no range"),
    ],
)
def test_words_that_stand_for_nothing_are_refused(word: str, sentence: str) -> None:
    with pytest.raises(PromptFedError) as refused:
        split_words([word])
    assert sentence in str(refused.value)


def test_values_along_a_span() -> None:
    assert [Span(1e-4, 1, log=True).at(share) for share in (0, 0.25, 0.5, 1)] == [1e-4, 1e-3, 1e-2, 1]
    assert [Span(1, 3).at(share) for share in (0, 0.5, 1 / 3)] == [1, 2, 1.67]
    assert [Span(1, 4, whole=True).at(share) for share in (0, 0.24, 0.25, 0.99, 1)] == [1, 1, 2, 4, 4]


def test_every_setting_of_a_finite_space_comes_once() -> None:
    space, _ = split_words(["a=[1,2,3]", "b=int(1,4)"])
    found = list(settings(space, seed=0))
    assert sorted((one["a"], one["b"]) for one in found) == [(a, b) for a in (1, 2, 3) for b in (1, 2, 3, 4)]
    assert found != list(settings(space, seed=1))


def test_settings_are_a_function_of_the_seed_and_never_repeat() -> None:
    space, _ = split_words(["lr=log(1e-4,1)", "b=[1,2]"])
    found, again, other = (list(islice(settings(space, seed), 200)) for seed in (0, 0, 1))
    assert found == again != other
    assert len({repr(one) for one in found}) == 200
    logs = [math.log10(one["lr"]) for one in found]
    assert -4 <= min(logs) < -3.9 < -0.1 < max(logs) <= 0
    assert abs(sum(logs) / 200 + 2) < 0.25  # three deviations of the mean of 200 even numbers over four decades


def test_a_space_that_is_nearly_empty_ends() -> None:
    space = {"a": Span(1.0, 1.01)}  # with three digits there are two values
    assert sorted(one["a"] for one in settings(space, 0)) == [1.0, 1.01]
