"""Prompt tokens: their shape, their scale, their source."""

import math

import pytest
import torch

from promptfed.errors import PromptFedError
from promptfed.prompts.tokens import init_tokens


def test_shape_and_scale() -> None:
    tokens = init_tokens(500, 40, torch.Generator().manual_seed(0))["tokens"]
    assert tokens.shape == (40, 500)
    scaled = tokens.double() / 0.02
    assert abs(scaled.mean()) < 5 / math.sqrt(20_000)
    assert abs((scaled**2).mean() - 1) < 5 * math.sqrt(2 / 20_000)


def test_the_generator_decides() -> None:
    first, again, other = (init_tokens(8, 2, torch.Generator().manual_seed(seed))["tokens"] for seed in (0, 0, 1))
    assert first.equal(again)
    assert not first.equal(other)


@pytest.mark.parametrize("count", [0, -1])
def test_at_least_one(count: int) -> None:
    with pytest.raises(PromptFedError, match=rf"^{count} prompt tokens were asked for; at least 1 is needed\.$"):
        init_tokens(8, count, torch.Generator())
