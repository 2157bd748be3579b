"""CLIP's byte-pair encoding: from a text to the numbers of its tokens, read from a folder in the model hub's layout."""

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from promptfed.backbones.checkpoint import read_json
from promptfed.core.errors import PromptFedError

FILES = ["vocab.json", "merges.txt", "tokenizer.json"]
START, END = "<|startoftext|>", "<|endoftext|>"
LAST = "</w>"  # closes the last piece of a word
CONTRACTIONS = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d")


@dataclass(frozen=True)
class Tokenizer:
    """The pieces of words by number, and which neighbours are joined first."""

    vocabulary: dict[str, int] = field(repr=False)
    ranks: dict[tuple[str, str], int] = field(repr=False)

    def __call__(self, text: str) -> list[int]:
        """Return the tokens of a text, without those of start and end; what is not in the vocabulary is an end."""
        unknown = self.vocabulary[END]
        return [self.vocabulary.get(piece, unknown) for word in words(text) for piece in self.pieces(word)]

    def pieces(self, word: str) -> list[str]:
        """Join the bytes of a word, the neighbours of the lowest rank first, until no two are known together."""
        parts = [letters()[byte] for byte in word.encode("utf-8")]
        parts[-1] += LAST
        while len(parts) > 1:
            pairs = list(pairwise(parts))
            best = min(pairs, key=lambda pair: self.ranks.get(pair, len(self.ranks)))
            if best not in self.ranks:
                break
            joined, at = [], 0
            while at < len(parts):
                both = tuple(parts[at : at + 2]) == best
                joined.append("".join(best) if both else parts[at])
                at += 2 if both else 1
            parts = joined
        return parts


def read_tokenizer(folder: Path) -> Tokenizer:
    """Return the tokenizer in a folder: vocab.json with merges.txt, or else tokenizer.json."""
    if (folder / "vocab.json").is_file():
        where, vocabulary, merges = folder / "vocab.json", read_json(folder / "vocab.json"), _lines(folder)
    elif (folder / "tokenizer.json").is_file():
        where = folder / "tokenizer.json"
        model = read_json(where).get("model")
        given = model if isinstance(model, dict) else {}
        vocabulary, merges = given.get("vocab", {}), given.get("merges", [])
    else:
        raise PromptFedError(f"{folder} has no tokenizer: neither vocab.json nor tokenizer.json.")
    for token in (START, END):
        if not isinstance(vocabulary.get(token), int):
            raise PromptFedError(f"{where} is not a CLIP vocabulary: it has no {token}.")
    pairs = [_pair(where, merge) for merge in merges]
    return Tokenizer(vocabulary, {pair: rank for rank, pair in enumerate(pairs)})


def _lines(folder: Path) -> list[str]:
    try:
        lines = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise PromptFedError(f"{folder} has a vocab.json but no readable merges.txt.") from error
    return [line for line in lines if line.strip() and not line.startswith("#version")]


def _pair(where: Path, merge: Any) -> tuple[str, str]:
    parts = merge.split() if isinstance(merge, str) else merge
    if not isinstance(parts, list) or len(parts) != 2:
        raise PromptFedError(f"{where} has a merge that is not a pair: {merge!r}.")
    return str(parts[0]), str(parts[1])


def words(text: str) -> Iterator[str]:
    """Cut a text, in lower case, into runs of letters, single digits, runs of other signs, and English endings."""
    plain = "".join(character.lower() for character in unicodedata.normalize("NFC", text))
    at = 0
    while at < len(plain):
        kind = _kind(plain[at])
        end = at + len(next((ending for ending in CONTRACTIONS if plain.startswith(ending, at)), " "))
        if end == at + 1 and kind in "LS":
            while end < len(plain) and _kind(plain[end]) == kind:
                end += 1
        if kind != " ":
            yield plain[at:end]
        at = end


def _kind(character: str) -> str:
    """Return L for a letter, N for a numeral, a space for white space, and S for any other sign."""
    group = unicodedata.category(character)[0]
    if group == "Z" or character in "\t\n\v\f\r\x85":
        return " "
    return group if group in "LN" else "S"


@cache
def letters() -> dict[int, str]:
    """Return a visible letter for every byte: itself where it is one, and letters from 256 on for all others."""
    visible = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {byte: chr(byte) for byte in visible} | {byte: chr(256 + number) for number, byte in enumerate(hidden)}
