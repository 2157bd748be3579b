"""All the words a text tower knows, kept in the computer's own memory: how texts are spelled, and their embeddings."""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from promptfed.backbones.tokenizer import words
from promptfed.core.errors import PromptFedError
from promptfed.core.tree import Tree

Spelling = Callable[[str], list[int]]


@dataclass(frozen=True)
class Hashed:
    """A spelling without a vocabulary: every word is one of so many tokens, by its hash."""

    tokens: int

    def __call__(self, text: str) -> list[int]:
        """Return the token of every word."""
        return [zlib.crc32(word.encode()) % self.tokens for word in words(text)]


@dataclass(frozen=True)
class Lexicon:
    """A tokenizer with every token's embedding [V, W] in float32, and the numbers of the tokens of start and end."""

    spelling: Spelling
    token: Tensor = field(repr=False)
    start: int
    end: int

    def words(self, text: str) -> Tensor:
        """Return the embeddings [n, W] of a text's tokens, without those of start and end."""
        return self.token[self._numbers(self.spelling(text))]

    def spell(self, texts: Sequence[str], positions: int) -> Tree:
        """Return what a text tower needs to read texts, each closed by the end token.

        They are the embeddings `start` [W] and `ending` [texts, M, W], and `end` [texts]: where in its ending a text
        has its end token. What follows that is never looked at.
        """
        endings = [[*self.spelling(text), self.end] for text in texts]
        longest = max(map(len, endings))
        if longest >= positions:
            text = next(text for text, ending in zip(texts, endings, strict=True) if len(ending) == longest)
            raise PromptFedError(
                f'The text "{text}" has {longest + 1} tokens with those of start and end; '
                f"the text tower has positions for {positions}."
            )
        padded = self._numbers([ending + ending[-1:] * (longest - len(ending)) for ending in endings])
        end = self._numbers([len(ending) - 1 for ending in endings])
        return {"start": self.token[self.start], "ending": self.token[padded], "end": end}

    def _numbers(self, given: Sequence[int] | Sequence[list[int]]) -> Tensor:
        """Return numbers where the embeddings are: rows that are asked for elsewhere might be any."""
        return torch.tensor(given, dtype=torch.long, device=self.token.device)
