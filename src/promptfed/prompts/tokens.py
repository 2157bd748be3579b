"""Prompts in token space: learned tokens beside a transformer's patches."""

import torch

from promptfed.errors import PromptFedError
from promptfed.tree import Tree


def init_tokens(width: int, count: int, generator: torch.Generator) -> Tree:
    """Return `count` tokens, N(0, 0.02²), the scale of a transformer's own embeddings."""
    if count < 1:
        raise PromptFedError(f"{count} prompt tokens were asked for; at least 1 is needed.")
    return {"tokens": 0.02 * torch.randn(count, width, generator=generator)}
