"""Prompt tokens: their shape, their scale, their source."""

import math

import pytest
import torch

from promptfed.core.errors import PromptFedError
from promptfed.core.prompts.tokens import init_prompt, init_tokens


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


@pytest.mark.parametrize(("layers", "shape"), [(None, (40, 768)), (3, (3, 40, 768))])
def test_a_prompt_is_uniform_within_vpts_bound(layers: int | None, shape: tuple[int, ...]) -> None:
    prompt = init_prompt(768, 40, torch.Generator().manual_seed(0), layers)
    assert prompt.shape == shape
    # √(6 / (3·16·16 + 768)) = 1/16; a uniform number's square is a third of its bound's on average
    scaled = prompt.double() * 16
    assert 0.999 < scaled.abs().max() <= 1
    assert abs(scaled.mean()) < 5 / math.sqrt(3 * prompt.numel())
    assert abs((scaled**2).mean() - 1 / 3) < 5 * math.sqrt(4 / 45 / prompt.numel())


def test_the_bound_follows_the_width() -> None:
    narrow = init_prompt(192, 2000, torch.Generator().manual_seed(0))
    assert narrow.abs().max().item() == pytest.approx(math.sqrt(6 / 960), rel=1e-3)


def test_a_prompt_comes_from_its_generator() -> None:
    first, again, other = (init_prompt(8, 2, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert first.equal(again)
    assert not first.equal(other)


def test_a_prompt_has_at_least_one_token() -> None:
    with pytest.raises(PromptFedError, match=r"^0 prompt tokens were asked for; at least 1 is needed\.$"):
        init_prompt(8, 0, torch.Generator())
