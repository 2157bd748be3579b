"""Captions for pretraining the embedded dual encoder, and a tokenizer that knows every word of them."""

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from promptfed.backbones.clip import OPENING
from promptfed.backbones.tokenizer import END, LAST, START, Tokenizer, letters, words
from promptfed.data.shops import CLASSES

ALSO = (
    ("t-shirt", "top", "tee"),
    ("trousers", "pants"),
    ("sweater", "jumper"),
    ("gown", "frock"),
    ("jacket",),
    ("sandals", "open shoe"),
    ("blouse", "button-up shirt"),
    ("sneakers", "trainer", "running shoe"),
    ("handbag", "purse"),
    ("boot", "boots"),
)
TEMPLATES = (
    f"{OPENING} {{}}.",
    "a photo of the {}.",
    "a picture of a {}.",
    "an image of a {}.",
    "a {}.",
    "the {}.",
    "{}",
    "a small {} in a shop.",
    "a {} for sale.",
    "a cropped photo of a {}.",
    "a drawing of a {}.",
    "a sketch of a {}.",
    "a studio photo of a {}.",
    "a {} from a catalogue.",
    "a street photo of a {}.",
    "a blurry photo of a {}.",
)
COLOURED = (
    "a photo of a {} on a {} wall.",
    "a {} in front of a {} wall.",
    "a {} on {} paper.",
    "a picture of a {}, {} background.",
    "a {} against {}.",
)
COLOURS = {
    "black": (0.0, 0.0, 0.0),
    "white": (1.0, 1.0, 1.0),
    "grey": (0.5, 0.5, 0.5),
    "red": (0.85, 0.2, 0.2),
    "green": (0.2, 0.75, 0.3),
    "blue": (0.2, 0.3, 0.85),
    "yellow": (0.9, 0.9, 0.3),
    "purple": (0.6, 0.25, 0.75),
    "brown": (0.45, 0.3, 0.15),
    "pink": (0.95, 0.65, 0.75),
    "cyan": (0.4, 0.85, 0.9),
}
FILLERS = (
    "photo",
    "of",
    "a",
    "the",
    "in",
    "shop",
    "style",
    "clothes",
    "fashion",
    "picture",
    "this",
    "is",
    "new",
    "nice",
)
CORNERS = slice(0, 4), slice(-4, None)


@dataclass(frozen=True)
class Captions:
    """Every caption: its tokens [P, M] up to the end token at `end` [P], its class [P], and its colour or −1 [P]."""

    tokens: Tensor
    end: Tensor
    label: Tensor
    colour: Tensor


def captions() -> list[tuple[str, int, int]]:
    """Return every caption with the number of its class and of its colour, −1 if it names none."""
    made = []
    for label, name in enumerate(CLASSES):
        for called in (name, name, *ALSO[label]):  # the class's own name counts twice
            # as many times as there are colours, or colours would be all that is learned at first
            made += [(template.format(called), label, -1) for template in TEMPLATES] * len(COLOURS)
            for number, colour in enumerate(COLOURS):
                made += [(template.format(called, colour), label, number) for template in COLOURED]
    return made


def learn_tokenizer(texts: list[str]) -> Tokenizer:
    """Return byte-pair encoding with as many merges as make every word of the texts one token, frequent pairs first."""
    counts = Counter(word for one in texts for word in words(one))
    spelled = {word: [*word[:-1], word[-1] + LAST] for word in counts}  # all of it is ASCII
    merges: list[tuple[str, str]] = []
    while True:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, parts in spelled.items():
            for pair in pairwise(parts):
                pairs[pair] += counts[word]
        if not pairs:
            break
        merges.append(max(pairs, key=lambda pair: (pairs[pair], pair)))
        known = Tokenizer({}, {pair: rank for rank, pair in enumerate(merges)})
        spelled = {word: known.pieces(word) for word in spelled}
    single = list(letters().values())
    pieces = [*single, *(letter + LAST for letter in single), *("".join(pair) for pair in merges), START, END]
    return Tokenizer(
        {piece: number for number, piece in enumerate(pieces)}, {pair: rank for rank, pair in enumerate(merges)}
    )


def tokenized(tokenizer: Tokenizer, device: torch.device) -> Captions:
    """Return the tokens of every caption."""
    texts, labels, colours = zip(*captions(), strict=True)
    stop = tokenizer.vocabulary[END]
    rows = [[*tokenizer(one), stop] for one in texts]
    longest = max(map(len, rows))
    padded = [row + [stop] * (longest - len(row)) for row in rows]
    end = [len(row) - 1 for row in rows]
    return Captions(*(torch.tensor(value, device=device) for value in (padded, end, labels, colours)))


def behind(views: Tensor) -> Tensor:
    """Return the number of the colour in the corners of images [N, 3, H, W] in −1 … 1."""
    corners = torch.cat([views[..., rows, columns].flatten(-2) for rows in CORNERS for columns in CORNERS], -1)
    seen = corners.mean(-1) / 2 + 0.5
    known = torch.tensor(list(COLOURS.values()), device=views.device)
    return torch.cdist(seen, known).argmin(1)
