"""Nested tables of plain values, written as TOML."""

import tomllib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from promptfed.runs.nested import literal, read_value

WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=12)


@given(st.one_of(st.booleans(), st.integers(-(2**60), 2**60), st.floats(allow_nan=False), WORDS, st.lists(WORDS)))
def test_a_literal_reads_back(value: object) -> None:
    assert tomllib.loads(f"value = {literal(value)}")["value"] == value


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.int64(3), 3),
        (np.float64(0.1), 0.1),
        (np.bool_(True), True),
        (np.arange(2), [0, 1]),
        (torch.tensor(0.5), 0.5),
    ],
)
def test_a_number_of_numpy_or_pytorch_is_a_plain_one(value: object, plain: object) -> None:
    assert tomllib.loads(f"value = {literal(value)}")["value"] == plain


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[iid,dirichlet]", ["iid", "dirichlet"]),
        ("[none, balanced, 3]", ["none", "balanced", 3]),
        ("[folder:a/b]", ["folder:a/b"]),
        ('["a b",c]', '["a b",c]'),  # neither TOML nor bare words
        ("[a,,b]", "[a,,b]"),
        ("[a", "[a"),
    ],
)
def test_a_list_may_hold_bare_words(text: str, value: object) -> None:
    assert read_value(text) == value
