"""From a recipe's table to a dataclass: every mistake is one sentence that names the key."""

import re
from dataclasses import dataclass
from typing import ClassVar, Literal

import pytest

from promptfed.core.errors import PromptFedError, choice
from promptfed.core.options import Count, NonNegative, Positive, Range, Share, Whole, defaults, hints, make, typed


@dataclass(frozen=True)
class Inks:
    """What the tests configure."""

    name: ClassVar[str] = "inks"
    pages: Count = 1
    margin: Whole = 0
    rate: Positive = 1.0
    decay: NonNegative = 0.0
    part: Share = 0.5
    colour: Literal["red", "blue"] = "red"
    bold: bool = False
    title: str = ""
    widths: tuple[int, ...] = (1, 2)
    limit: int | None = None


@dataclass(frozen=True)
class Sheet:
    """One field is the engine's own, one has no default."""

    size: tuple[int, int]
    grain: float
    title: str = "plain"


def test_every_type_is_taken_over() -> None:
    given: dict[str, object] = {
        "pages": 3, "margin": 0, "rate": 0.5, "decay": 0.0, "part": 1.0, "colour": "blue", "bold": True, "title": "t",
        "widths": [4, 5, 6], "limit": 7,
    }  # fmt: skip
    assert make(Inks, given, "inks") == Inks(3, 0, 0.5, 0.0, 1.0, "blue", True, "t", (4, 5, 6), 7)
    assert make(Inks, {}, "inks") == Inks()


def test_a_whole_number_may_stand_for_a_number() -> None:
    made = make(Inks, {"rate": 2, "part": 0}, "inks")
    assert (made.rate, made.part) == (2.0, 0.0)
    assert type(made.rate) is type(made.part) is float


def test_nothing_is_a_value_where_it_is_allowed() -> None:
    assert make(Inks, {"limit": None}, "inks").limit is None


def test_fixed_fields_are_no_keys() -> None:
    assert make(Sheet, {"grain": 2.0}, "sheet", {"size": (1, 2)}) == Sheet((1, 2), 2.0, "plain")
    with pytest.raises(PromptFedError, match=r'Unknown key "sheet\.size" in the recipe'):
        make(Sheet, {"size": [1, 2], "grain": 2.0}, "sheet", {"size": (1, 2)})


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("pages", 0, "inks.pages must be at least 1, not 0."),
        ("margin", -1, "inks.margin must be at least 0, not -1."),
        ("rate", 0.0, "inks.rate must be above 0, not 0."),
        ("rate", -0.5, "inks.rate must be above 0, not -0.5."),
        ("decay", -1e-4, "inks.decay must be at least 0, not -0.0001."),
        ("part", 1.5, "inks.part must be at most 1, not 1.5."),
        ("pages", 1.0, "inks.pages must be a whole number, not 1.0."),
        ("pages", True, "inks.pages must be a whole number, not True."),
        ("rate", "fast", "inks.rate must be a number, not 'fast'."),
        ("rate", True, "inks.rate must be a number, not True."),
        ("bold", 1, "inks.bold must be true or false, not 1."),
        ("title", 3, "inks.title must be a text, not 3."),
        ("widths", 3, "inks.widths must be a list, not 3."),
        ("widths", [1, "x"], "inks.widths must be a whole number, not 'x'."),
        ("limit", "x", "inks.limit must be a whole number, not 'x'."),
        ("colour", "bleu", 'Unknown inks.colour "bleu"; did you mean "blue"?'),
        ("colour", 7, 'Unknown inks.colour "7"; valid: blue, red.'),
        ("colour", "xyz", 'Unknown inks.colour "xyz"; valid: blue, red.'),
        ("page", 1, 'Unknown key "inks.page" in the recipe; did you mean "inks.pages"?'),
    ],
)
def test_mistakes_are_sentences(key: str, value: object, sentence: str) -> None:
    with pytest.raises(PromptFedError, match=f"^{re.escape(sentence)}$"):
        make(Inks, {key: value}, "inks")


@pytest.mark.parametrize("key", ["rate", "decay", "part"])
def test_not_a_number_is_refused(key: str) -> None:
    with pytest.raises(PromptFedError, match=f"inks.{key} must be"):
        make(Inks, {key: float("nan")}, "inks")


def test_a_missing_key_without_a_default_is_a_sentence() -> None:
    with pytest.raises(PromptFedError, match="grain"):
        make(Sheet, {}, "sheet", {"size": (1, 2)})


def test_a_range_without_limits_takes_anything() -> None:
    Range().check("any", -1e9)
    with pytest.raises(PromptFedError, match="at most 3"):
        Range(most=3).check("any", 4)


def test_hints_and_defaults_leave_out_what_is_no_option() -> None:
    assert "name" not in hints(Inks)
    assert list(hints(Sheet)) == ["size", "grain", "title"]
    assert defaults(Sheet) == {"title": "plain"}
    assert defaults(Inks)["widths"] == (1, 2)


def test_typed_alone() -> None:
    assert typed("x", [1, 2], tuple[int, ...]) == (1, 2)
    assert typed("x", 1, float) == 1.0


def test_choice_names_the_nearest_or_all() -> None:
    assert str(choice("method", "fedavgg", ["fedavg", "local"])) == 'Unknown method "fedavgg"; did you mean "fedavg"?'
    assert str(choice("method", "zzz", ["b", "a"], "r.toml")) == 'Unknown method "zzz" in r.toml; valid: a, b.'
    assert str(choice("method", "zzz", [])) == 'Unknown method "zzz"; valid: none.'


def test_what_is_right_already_makes_no_choice_near() -> None:
    keys = ["partition.name", "partition.classes_per_client", "rounds"]
    assert str(choice("key", "partition.nam", keys)) == 'Unknown key "partition.nam"; did you mean "partition.name"?'
    assert str(choice("key", "partition.alpha", keys)).endswith(
        "; valid: partition.classes_per_client, partition.name."
    )
    assert str(choice("key", "partitoin.name", keys)).endswith('did you mean "partition.name"?')
