"""A text-to-image model small enough to work out by hand, without weights: for checking methods, not for images.

Latents are the means of an image's quarters, 3 × 2 × 2. An embedding is as wide, twelve numbers, and a text describes
the one picture that is the mean of its pseudo-word's vectors plus a tenth of its template's: the j-th template (from 0)
is j in all numbers. The denoiser takes that picture for the truth, so it errs by as much as the image differs from it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NoReturn

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from promptfed.backbones.checkpoint import HALVES
from promptfed.core.errors import PromptFedError
from promptfed.core.protocols import Draw, Rng, Tokens
from promptfed.core.tree import Tree


@dataclass(frozen=True)
class Painter:
    """Draws the picture that a pseudo-word is."""

    shape: tuple[int, int, int]
    classes: int
    device: str = "cpu"
    statistics: ClassVar = HALVES
    fingerprint: ClassVar[str] = "painter"
    word_width: ClassVar[int] = 12
    visual_width: ClassVar[int] = 3
    latent_shape: ClassVar[tuple[int, int, int]] = (3, 2, 2)
    times: ClassVar[int] = 4

    def to(self, device: torch.device) -> "Painter":
        """Return it on another device."""
        return replace(self, device=str(device))

    # -- images --------------------------------------------------------------------
    def features(self, weights: Tree, x: Tensor, *, tokens: Tokens | None = None, noise: Tree | None = None) -> Tensor:
        """Return the quarters of images, those of their mirror images, and the mean of each channel [..., B, 27]."""
        quarters = F.adaptive_avg_pool2d(x.flatten(0, -4), 2)
        parts = [quarters.flatten(1), quarters.flip(-1).flatten(1), quarters.mean((-2, -1))]
        return torch.cat(parts, 1).view(*x.shape[:-3], -1)

    def unpack(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return latents [..., B, 2, 3, 2, 2] and channel means [..., B, 3]."""
        return x[..., :24].unflatten(-1, (2, 3, 2, 2)), x[..., 24:]

    # -- text ------------------------------------------------------------------------
    def word(self, text: str) -> Tensor:
        """Return ones, whatever the text."""
        return torch.ones(12, device=self.device)

    def context(self, templates: Sequence[str]) -> Tensor:
        """Return the number of each template, twelve times."""
        return torch.arange(len(templates), device=self.device).float()[:, None].expand(-1, 12)

    def encode(self, templates: Sequence[str], chosen: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
        """Return the pictures the texts describe, as one state each [..., B, 1, 12] and as the pseudo-word's own."""
        own = words.mean(-2) + 0.1 * chosen[..., None]
        return own.unsqueeze(-2), own

    # -- denoising -------------------------------------------------------------------
    def noised(self, latents: Tensor, noise: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        """Return noisy latents, and their noise."""
        left = _signal(time)
        return left.sqrt() * latents + (1 - left).sqrt() * noise, noise

    def denoise(self, noisy: Tensor, time: Tensor, states: Tensor) -> Tensor:
        """Return the noise there would be if the image were the picture described."""
        left = _signal(time)
        picture = states.squeeze(-2).unflatten(-1, self.latent_shape)
        noise: Tensor = (noisy - left.sqrt() * picture) / (1 - left).sqrt()
        return noise

    def sample(self, states: Tensor, start: Tensor, *, steps: int = 30, guidance: float = 7.5) -> Tensor:
        """Return the pictures described, enlarged to the images' size."""
        pictures = states.squeeze(-2).unflatten(-1, self.latent_shape).expand_as(start)
        enlarged = F.interpolate(pictures.flatten(0, -4), self.shape[1:]).clamp(-1, 1)
        return enlarged.view(*start.shape[:-3], *self.shape)

    # -- what it cannot do -------------------------------------------------------------
    @property
    def token_width(self) -> int:
        """Refuse: there are no visual prompt tokens."""
        _refuse()

    @property
    def layers(self) -> int:
        """Refuse: there are no visual prompt tokens."""
        _refuse()

    def draws(self) -> dict[str, Draw]:
        """Return nothing: there is no dropout."""
        return {}

    def init(self, rng: Rng) -> Tree:
        """Refuse: there are no weights."""
        _refuse()

    def head(self, rng: Rng) -> Tree:
        """Refuse: there is no classifier."""
        _refuse()

    def __call__(self, weights: Tree, x: Tensor, *, tokens: Tokens | None = None, noise: Tree | None = None) -> Tensor:
        """Refuse: there is no classifier."""
        _refuse()


def _signal(time: Tensor) -> Tensor:
    """Return what is left of the images' variance at `time` [..., B]: 0.8, 0.6, 0.4 or 0.2."""
    return (0.8 - 0.2 * time)[..., None, None, None]


def _refuse() -> NoReturn:
    raise PromptFedError("A text-to-image backbone draws images and does not classify.")
