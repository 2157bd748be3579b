"""Random changes of images: those that a recipe asks for in training, and views for learning without labels."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from promptfed.core.errors import choice
from promptfed.core.protocols import Draw

GREY = (0.299, 0.587, 0.114)
PADDING = 8  # a crop is moved by up to one in so many pixels: 4 of 32
AREA, SHAPE = (0.08, 1.0), (3 / 4, 4 / 3)  # of a resized crop: its share of the image, and its width over its height
STRENGTH = 0.4  # of a change of colour


@dataclass(frozen=True)
class Augment:
    """Random changes of training images, in this order; each image's own numbers decide."""

    kinds: tuple[str, ...]

    @classmethod
    def parse(cls, text: str, key: str) -> "Augment | None":
        """Return what a recipe's words such as "flip+crop" ask for; "none" is nothing."""
        kinds = tuple(part.strip() for part in text.split("+"))
        if kinds == ("none",):
            return None
        for kind in kinds:
            if kind not in _KINDS:
                raise choice(key, kind, ["none", *_KINDS])
        return cls(tuple(kind for kind in _KINDS if kind in kinds))

    def draws(self) -> dict[str, Draw]:
        """Return the random numbers that a batch must have."""
        return {f"augment.{kind}": Draw((_KINDS[kind][0],)) for kind in self.kinds}

    def __call__(self, images: Tensor, numbers: Mapping[str, Tensor], scale: Tensor, shift: Tensor) -> Tensor:
        """Return images [..., 3, H, W] changed; they are bytes · scale + shift, and `numbers` are the batch's draws."""
        black, white = shift.view(3, 1, 1), (255 * scale + shift).view(3, 1, 1)
        changed = images.flatten(0, -4)
        for kind in self.kinds:
            count, change = _KINDS[kind]
            changed = change(changed, numbers[f"augment.{kind}"].reshape(-1, count), black, white)
        return changed.reshape(images.shape)


def _flipped(images: Tensor, numbers: Tensor, black: Tensor, white: Tensor) -> Tensor:
    """Mirror every other image."""
    return torch.where(numbers[:, :, None, None] < 0.5, images.flip(-1), images)


def _cropped(images: Tensor, numbers: Tensor, black: Tensor, white: Tensor) -> Tensor:
    """Pad by black and crop to the old size, anywhere: images are moved by up to an eighth of their sides."""
    for dim, number in ((-2, numbers[:, 0]), (-1, numbers[:, 1])):
        side = images.shape[dim]
        most = max(1, side // PADDING)
        moved = (number * (2 * most + 1)).long() - most
        place = torch.arange(side, device=images.device) + moved[:, None]  # [N, side]
        place = place[:, None, :, None] if dim == -2 else place[:, None, None, :]
        inside = (place >= 0) & (place < side)
        images = torch.where(inside, images.take_along_dim(place.clamp(0, side - 1), dim), black)
    return images


def _resized(images: Tensor, numbers: Tensor, black: Tensor, white: Tensor) -> Tensor:
    """Crop to a part of random size, shape and place, and resize that to the whole."""
    low, high = map(math.log, SHAPE)
    area = AREA[0] + (AREA[1] - AREA[0]) * numbers[:, 0]
    shape = (low + (high - low) * numbers[:, 1]).exp()
    wide, tall = ((area * one).sqrt().clamp(max=1) for one in (shape, 1 / shape))
    theta = images.new_zeros(len(images), 2, 3)
    theta[:, 0, 0], theta[:, 0, 2] = wide, (1 - wide) * (2 * numbers[:, 2] - 1)
    theta[:, 1, 1], theta[:, 1, 2] = tall, (1 - tall) * (2 * numbers[:, 3] - 1)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


def _recoloured(images: Tensor, numbers: Tensor, black: Tensor, white: Tensor) -> Tensor:
    """Change brightness, contrast and saturation, each by up to two fifths."""
    bright, contrast, vivid = (1 + STRENGTH * (2 * numbers - 1))[..., None, None, None].unbind(1)
    x = ((images - black) / (white - black) * bright).clamp(0, 1)
    x = torch.lerp(_grey(x).mean((-2, -1), keepdim=True), x, contrast).clamp(0, 1)
    return black + torch.lerp(_grey(x), x, vivid).clamp(0, 1) * (white - black)


_Change = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
# the numbers of each change, and the change: the geometry first, so that colours are those of what is shown
_KINDS: dict[str, tuple[int, _Change]] = {
    "flip": (1, _flipped),
    "crop": (2, _cropped),
    "resized-crop": (4, _resized),
    "color": (3, _recoloured),
}


def augmented(images: Tensor, draw: torch.Generator) -> Tensor:
    """Return a random view of each image [N, 3, H, W] in 0 … 1.

    Mirrored half of the time; in four of five cases brightness, contrast and saturation change by up to 80 % and the
    hue by up to a fifth of the circle; one in five is grey, one in five blurred.
    """

    def uniform(low: float = 0.0, high: float = 1.0) -> Tensor:
        return torch.empty(len(images), 1, 1, 1, device=images.device).uniform_(low, high, generator=draw)

    x = torch.where(uniform() < 0.5, images.flip(-1), images)
    jittered = (x * uniform(0.2, 1.8)).clamp(0, 1)
    jittered = torch.lerp(_grey(jittered).mean((-2, -1), keepdim=True), jittered, uniform(0.2, 1.8)).clamp(0, 1)
    jittered = torch.lerp(_grey(jittered), jittered, uniform(0.2, 1.8)).clamp(0, 1)
    jittered = _turned(jittered, uniform(-0.2, 0.2))
    x = torch.where(uniform() < 0.8, jittered, x)
    x = torch.where(uniform() < 0.2, _grey(x).expand_as(x), x)
    return torch.where(uniform() < 0.2, _blurred(x, uniform(1, 2)), x)


def _grey(images: Tensor) -> Tensor:
    # with plain numbers: a tensor of them would be copied from the host, which a recorded step must not do
    parts = [share * colour for share, colour in zip(GREY, images.unbind(-3), strict=True)]
    return torch.stack(parts).sum(0).unsqueeze(-3)


def _turned(images: Tensor, turn: Tensor) -> Tensor:
    """Turn the hue by a share of the circle: a rotation about the grey axis."""
    angle = 2 * torch.pi * turn
    cos, sin = angle.cos(), angle.sin()
    same, left, right = (1 + 2 * cos) / 3, (1 - cos) / 3 - sin / 3**0.5, (1 - cos) / 3 + sin / 3**0.5
    red, green, blue = images.split(1, -3)
    parts = [
        same * red + left * green + right * blue,
        right * red + same * green + left * blue,
        left * red + right * green + same * blue,
    ]
    return torch.cat(parts, -3).clamp(0, 1)


def _blurred(images: Tensor, sigma: Tensor) -> Tensor:
    """Blur by a 3×3 Gaussian of each image's own width."""
    side = torch.exp(-0.5 / sigma**2)
    middle = 1 / (1 + 2 * side)
    padded = F.pad(images, (1, 1, 1, 1), mode="reflect")
    rows = middle * (padded[..., 1:-1, :] + side * (padded[..., :-2, :] + padded[..., 2:, :]))
    return middle * (rows[..., 1:-1] + side * (rows[..., :-2] + rows[..., 2:]))
