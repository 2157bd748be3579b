"""What tools/pretrain_diffusion.py teaches to draw: images, their captions, and the size of the model, by preset."""

import io
import lzma
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from promptfed.backbones.pipeline import Pipeline, fresh_pipeline
from promptfed.core.prompts.templates import OBJECT, STYLE
from promptfed.data import flowers
from promptfed.data.archives import read_idx
from promptfed.data.photos import decode
from promptfed.data.shops import CLASSES, SHOPS, SIDE, TRAIN, style
from promptfed.data.shops import EMBEDDED as SHOPS_FILE

NOUNS = ("tee", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")  # as in CLASSES
FAMILIES = {"top": ("tee", "pullover", "coat", "shirt"), "shoe": ("sandal", "sneaker", "boot")}
LARGE = 64  # the side of the flowers' images
UNSEEN = 10  # photographs of each kind on which the finished model is measured
FEW = 3  # the same of each kind of flower, of which there are many


@dataclass(frozen=True)
class Shown:
    """Images [N, 3, H, W] as bytes, the kind of thing each shows, and the shop that shows it."""

    images: Tensor
    kinds: Tensor
    shops: Tensor


@dataclass(frozen=True)
class Preset:
    """What is drawn, and how large the model is that draws it."""

    read: Callable[[Path, str], tuple[Shown, Shown]]  # a folder, without a noun -> for training, for measuring
    side: int
    nouns: tuple[str, ...]  # one for every kind
    wider: tuple[str, ...]  # a wider noun for every kind
    shops: tuple[str, ...]
    leave_out: str
    drawn: tuple[str, ...]  # nouns of which samples are drawn
    unet: Mapping[str, object]
    vae: Mapping[str, object]
    text: Mapping[str, object]
    seconds: float
    lr: float

    @property
    def all_nouns(self) -> tuple[str, ...]:
        """Return the kinds' nouns, then the wider ones."""
        return tuple(dict.fromkeys((*self.nouns, *self.wider)))


def leftover(source: Path, leave_out: str) -> tuple[Shown, Shown]:
    """Return the training photographs of which fashion-shops has no copy, in all styles, and a few kept for measuring.

    Of the kind left out only photographs kept for measuring remain.
    """
    images, labels = (read_idx(source / f"train-{name}-ubyte.gz") for name in ("images-idx3", "labels-idx1"))
    later = np.concatenate([np.flatnonzero(labels == label)[TRAIN * len(SHOPS) :] for label in range(len(CLASSES))])
    shops = np.load(io.BytesIO(lzma.decompress(SHOPS_FILE.read_bytes()))).reshape(-1, 28 * 28)
    taken = {photograph.tobytes() for photograph in shops}
    free = np.array([index for index in np.sort(later) if images[index].tobytes() not in taken])
    kept = np.concatenate([free[labels[free] == label][:UNSEEN] for label in range(len(CLASSES))])
    seen = np.setdiff1d(free[labels[free] != NOUNS.index(leave_out)], kept)
    return _styled(images, labels, seen), _styled(images, labels, kept)


def _styled(images: Any, labels: Any, chosen: Any) -> Shown:
    shown = np.concatenate([style(images[chosen], shop, chosen) for shop in range(len(SHOPS))])
    kinds = torch.from_numpy(np.tile(labels[chosen], len(SHOPS)).astype(np.int64))
    shops = torch.arange(len(SHOPS)).repeat_interleave(len(chosen))
    return Shown(torch.from_numpy(shown).permute(0, 3, 1, 2).contiguous(), kinds, shops)


def other_flowers(source: Path, leave_out: str) -> tuple[Shown, Shown]:
    """Return Flowers-102 without one kind, each photograph also mirrored, and a few photographs kept for measuring."""
    photos = flowers.find_photos(source)
    with ThreadPoolExecutor() as pool:
        decoded = list(pool.map(lambda photo: decode(photo.path, LARGE), photos))
    images = torch.from_numpy(np.stack(decoded)).permute(0, 3, 1, 2).contiguous()
    kinds = torch.tensor([flowers.CLASSES.index(photo.label) for photo in photos])
    kept = torch.cat([(kinds == kind).nonzero()[:FEW, 0] for kind in range(len(flowers.CLASSES))])
    seen = kinds != flowers.CLASSES.index(leave_out)
    seen[kept] = False
    twice = torch.cat([images[seen], images[seen].flip(-1)])
    return (
        Shown(twice, kinds[seen].repeat(2), torch.zeros(len(twice), dtype=torch.long)),
        Shown(images[kept], kinds[kept], torch.zeros(len(kept), dtype=torch.long)),
    )


@dataclass(frozen=True)
class Captions:
    """Every caption there is, as tokens [nouns, templates, shops + 1, length]: the last shop is none."""

    tokens: Tensor
    nothing: Tensor  # the tokens of the empty caption
    kin: Tensor  # [kinds]: the wider noun of each kind

    @classmethod
    def of(cls, parts: Pipeline, preset: Preset, device: torch.device) -> "Captions":
        """Write them all down once: words for half a thousand images a step would take longer than the step."""
        nouns = preset.all_nouns
        ends = [*(f" in the style of {shop}" for shop in preset.shops), ""]
        lines = [template.format(noun) + end for noun in nouns for template in OBJECT for end in ends]
        read = parts.tokenizer([*lines, ""], padding="max_length", return_tensors="pt").input_ids.to(device)
        kin = torch.tensor([nouns.index(name) for name in preset.wider], device=device)
        return cls(read[:-1].unflatten(0, (len(nouns), len(OBJECT), len(ends))), read[-1], kin)

    def draw(self, kinds: Tensor, shops: Tensor, generator: torch.Generator) -> Tensor:
        """Return a caption of each image: a template with its kind or kin, half of the time the shop, or nothing."""
        chance = torch.rand(3, len(kinds), device=kinds.device, generator=generator)
        noun = torch.where(chance[0] < 0.2, self.kin[kinds], kinds)
        template = torch.randint(self.tokens.shape[1], kinds.shape, device=kinds.device, generator=generator)
        shop = torch.where(chance[1] < 0.5, shops, self.tokens.shape[2] - 1)
        return torch.where((chance[2] < 0.1).unsqueeze(-1), self.nothing, self.tokens[noun, template, shop])


def vocabulary(preset: Preset) -> list[str]:
    """Return texts with every word that a caption or a template may have."""
    return [*OBJECT, *STYLE, *preset.all_nouns, *preset.shops]


CLOTHES = Preset(
    read=leftover,
    side=SIDE,
    nouns=NOUNS,
    wider=tuple(next((name for name, some in FAMILIES.items() if noun in some), "thing") for noun in NOUNS),
    shops=SHOPS,
    leave_out="boot",
    drawn=(*NOUNS, *FAMILIES),
    unet={
        "sample_size": SIDE // 2,
        "block_out_channels": (48, 96),
        "layers_per_block": 2,
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),  # attention at full size would take most time
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
        "norm_num_groups": 16,
        "attention_head_dim": 4,  # diffusers takes it for the number of heads
    },
    vae={
        "sample_size": SIDE,
        "block_out_channels": (32, 48),
        "layers_per_block": 1,
        "latent_channels": 4,
        "norm_num_groups": 16,
        "down_block_types": ("DownEncoderBlock2D", "DownEncoderBlock2D"),
        "up_block_types": ("UpDecoderBlock2D", "UpDecoderBlock2D"),
        "mid_block_add_attention": False,
    },
    text={"hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4},
    seconds=480.0,
    lr=1e-3,
)

FLOWERS = Preset(
    read=other_flowers,
    side=LARGE,
    nouns=flowers.CLASSES,
    wider=("flower",) * len(flowers.CLASSES),
    shops=(),
    leave_out="clematis",
    drawn=("flower", *flowers.CLASSES[3::9]),
    unet={
        "sample_size": LARGE // 4,
        "in_channels": 8,
        "out_channels": 8,
        "block_out_channels": (96, 192, 256),
        "layers_per_block": 2,
        "down_block_types": ("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
        "norm_num_groups": 32,
        "attention_head_dim": 4,
    },
    vae={
        "sample_size": LARGE,
        "block_out_channels": (64, 96, 128),
        "layers_per_block": 1,
        "latent_channels": 8,
        "norm_num_groups": 32,
        "down_block_types": ("DownEncoderBlock2D",) * 3,
        "up_block_types": ("UpDecoderBlock2D",) * 3,
        "mid_block_add_attention": False,
    },
    text={"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4, "num_attention_heads": 4},
    seconds=360.0,
    lr=5e-4,
)

PRESETS = {"clothes": CLOTHES, "flowers": FLOWERS}


def fresh(preset: Preset, seed: int) -> Pipeline:
    """Return the untrained model."""
    words = vocabulary(preset)
    return fresh_pipeline(words, unet=preset.unet, vae=preset.vae, text=preset.text, context=24, seed=seed)
