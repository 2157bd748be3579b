"""Pictures from a finished run's word, the global one or a client's own, all from the same starting latents."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from promptfed.core import keys
from promptfed.core.errors import PromptFedError
from promptfed.core.progress import Advance, bar
from promptfed.core.protocols import TextToImage
from promptfed.core.tree import Tree
from promptfed.runs.finished import FinishedRun, Words, inverted

PROMPT = "a photo of a {}"
MARGIN = 2  # white pixels between the pictures of a grid
AT_ONCE, ON_GPU = 4, 32  # pictures drawn together: a progress bar wants few, a GPU many


@dataclass(frozen=True)
class Sampler:
    """How pictures are drawn. The n-th picture of a seed starts from the same latents whatever the word."""

    prompt: str = PROMPT
    count: int = 8
    seed: int = 0
    steps: int = 30
    guidance: float = 7.5

    def __post_init__(self) -> None:
        """Refuse what cannot be drawn."""
        if not math.isfinite(self.guidance):
            raise PromptFedError(f"--guidance must be a finite number, not {self.guidance}.")


# -- words ------------------------------------------------------------------------------------------------------------


def global_word(run: FinishedRun | Words, after: int | None = None) -> Tensor:
    """Return u [v, W], which the server has, or had after so many rounds."""
    method, _ = inverted(run)
    if not method.shared:
        raise PromptFedError(
            f"In {run.folder} every client has a word of its own and the server has none; add --client 0."
        )
    if isinstance(run, Words):
        return run.word(run.rounds if after is None else after)
    return run.loop.server["word"] if after is None else run.words.word(after)


def with_clients(run: FinishedRun | Words) -> FinishedRun:
    """Return the run if it is open with all its clients, or say that it is not."""
    if isinstance(run, Words):
        raise PromptFedError(
            f"Only the server's words of {run.folder} are open; a client's own word needs the whole run."
        )
    return run


def client_word(run: FinishedRun, client: int, prompt: str) -> Tensor:
    """Return û [v, W] of one client in a prompt: u made its own by its branches, if it has any."""
    down, personal = run.own(client)
    return spoken(run, down | personal, prompt)


def spoken(run: FinishedRun, params: Tree, prompt: str) -> Tensor:
    """Return the word [v, W] that `params` make for a prompt, which need not be one of the templates."""
    method, _ = inverted(run)
    first = torch.zeros(1, dtype=torch.long, device=run.loop.device)
    with torch.no_grad():
        return method.spoken(run.task, params, first, templates=[prompt])[0]


# -- pictures ---------------------------------------------------------------------------------------------------------


def starts(model: TextToImage, sampler: Sampler, device: torch.device) -> Tensor:
    """Return the starting latents [count, c, h, w]; the first ones are the same however many there are."""
    salts = torch.tensor([keys.key("latents", sampler.seed, number) for number in range(sampler.count)], device=device)
    return keys.normal(salts, model.latent_shape)


def draw(run: FinishedRun | Words, word: Tensor, sampler: Sampler, advance: Advance | None = None) -> Tensor:
    """Return pictures [count, 3, H, W] in −1 … 1 of a word [v, W] in the sampler's prompt, on the host."""
    _, model = inverted(run)
    first = torch.zeros(1, dtype=torch.long, device=word.device)
    with torch.no_grad():
        states, _ = model.encode([sampler.prompt], first, word[None])
        drawn = []
        for some in starts(model, sampler, word.device).split(ON_GPU if word.is_cuda else AT_ONCE):
            found = model.sample(states.expand(len(some), -1, -1), some, steps=sampler.steps, guidance=sampler.guidance)
            drawn.append(found.cpu())
            if advance is not None:
                advance(len(some))
    return torch.cat(drawn)


def draw_all(run: FinishedRun | Words, words: Mapping[str, Tensor], sampler: Sampler) -> dict[str, Tensor]:
    """Return the pictures of every word by its name, with a progress bar: drawing is slow."""
    with bar("pictures", len(words) * sampler.count) as advance:
        return {name: draw(run, word, sampler, advance) for name, word in words.items()}


def generate(
    run: FinishedRun | Words,
    sampler: Sampler,
    out: Path,
    *,
    kind: Literal["global", "client"] | None = None,
    client: int | None = None,
    rounds: Sequence[int] = (),
) -> dict[str, Tensor]:
    """Draw the global word, or one client's, or with kind "client" alone every client's; write them as a grid.

    With `rounds` the global word is drawn as it was after each of them.
    The grid has a row for each word, in the order of what is returned.
    """
    if out.suffix.lower() not in Image.registered_extensions():
        raise PromptFedError(f"{out} does not end like a picture file, such as .png.")
    if kind == "global" and client is not None:
        raise PromptFedError("The global word belongs to no client; leave out --client or --kind global.")
    if rounds and (client is not None or kind == "client"):
        raise PromptFedError("Only the global word is kept for every round; leave out --client and --kind, or --round.")
    if rounds:
        words = {f"global after round {number}": global_word(run, number) for number in rounds}
    elif client is not None:
        words = {f"client {client}": client_word(with_clients(run), client, sampler.prompt)}
    elif kind == "client":
        run = with_clients(run)
        everyone = run.loop.everyone.tolist()
        words = {f"client {number}": client_word(run, number, sampler.prompt) for number in everyone}
    else:
        words = {"global": global_word(run)}
    pictures = draw_all(run, words, sampler)
    out.parent.mkdir(parents=True, exist_ok=True)
    save_picture(grid(list(pictures.values())), out)
    return pictures


def grid(rows: Sequence[Tensor]) -> Tensor:
    """Return rows of pictures [N, 3, H, W] as one picture [3, …, …], white between them."""
    count, (height, width) = max(len(row) for row in rows), rows[0].shape[-2:]
    down, across = height + MARGIN, width + MARGIN
    sheet = torch.ones(3, len(rows) * down + MARGIN, count * across + MARGIN)
    for y, row in enumerate(rows):
        for x, picture in enumerate(row):
            top, left = MARGIN + y * down, MARGIN + x * across
            sheet[:, top : top + height, left : left + width] = picture
    return sheet


def save_picture(picture: Tensor, path: Path) -> None:
    """Write a picture [3, H, W] in −1 … 1 to a file whose ending says the format."""
    pixels = ((picture.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
    Image.fromarray(np.ascontiguousarray(pixels.permute(1, 2, 0).numpy())).save(path)
