"""A frozen text-to-image diffusion model: a pseudo-word passed in is trained by how well its prompt denoises images."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, NoReturn

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from promptfed.backbones import pipeline, pretrained
from promptfed.backbones.checkpoint import HALVES
from promptfed.backbones.pipeline import Pipeline, Prompts
from promptfed.backbones.resizing import resized
from promptfed.backbones.transformer import Statistics
from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.options import Whole
from promptfed.core.protocols import Draw, Rng, Tokens
from promptfed.core.tree import Tree

CELLS = 4  # without an image encoder, visual features are the means of the latents in CELLS × CELLS parts of the image
LATENTS = 1 << 18  # pixels of latents denoised at a time where nothing is trained
PIXELS = 1 << 20  # encoded or decoded at a time: autoencoders of large images need gigabytes for one
CLIP: Statistics = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True)
class Diffusion:
    """A frozen latent diffusion model in diffusers' layout: embedded, from the model hub by name, or from a folder."""

    name: ClassVar[str] = "diffusion"
    shape: tuple[int, int, int]
    classes: int
    weights: str = "embedded"  # or a name on the hub, or a folder in diffusers' layout
    size: Whole = 0  # images are resized to this many pixels per side; 0: to what the model was trained on
    vision: str = ""  # a CLIP image encoder for the visual features, by hub name or folder; empty: means of latents
    precision: Literal["auto", "fp32", "bf16"] = "auto"  # of text tower and denoiser; auto: bf16 on a GPU

    @property
    def statistics(self) -> Statistics:
        """Return what brings pixels to −1 … 1."""
        return HALVES

    def to(self, device: torch.device) -> "LoadedDiffusion":
        """Read the weights and return the model on `device`."""
        return self.loaded(pipeline.read_pipeline(self.weights, self.vision), device)

    def loaded(self, parts: Pipeline, device: torch.device) -> "LoadedDiffusion":
        """Return the model made of `parts`, which are moved to `device`."""
        low = self.precision == "bf16" or (self.precision == "auto" and device.type == "cuda")
        kind = torch.bfloat16 if low else torch.float32
        side = self.size or parts.unet.config.sample_size * parts.shrink
        step = parts.shrink * 2 ** (len(parts.unet.config.block_out_channels) - 1)
        if side % step:
            raise PromptFedError(f"backbone.size={side} must be a multiple of {step} pixels for this model.")
        options = (self.shape, self.classes, self.weights, self.size, self.vision, self.precision)
        return LoadedDiffusion(*options, parts=parts.to(device, kind), device=device, side=side)


@dataclass(frozen=True, kw_only=True)
class LoadedDiffusion(Diffusion):
    """A text-to-image model with its weights. All it needs of an image is one row, which `unpack` takes apart."""

    parts: Pipeline = field(compare=False, repr=False)
    device: torch.device
    side: int
    known: dict[tuple[tuple[str, ...], int], Prompts] = field(default_factory=dict, compare=False, repr=False)

    # -- what it is --------------------------------------------------------------
    @property
    def word_width(self) -> int:
        """Return the width of a word's embedding."""
        return int(self.parts.text.config.hidden_size)

    @property
    def visual_width(self) -> int:
        """Return the number of visual features of an image."""
        if self.parts.vision is not None:
            return int(self.parts.vision.config.projection_dim)
        return self.latent_shape[0] * CELLS**2

    @property
    def latent_shape(self) -> tuple[int, int, int]:
        """Return the channels, height and width of an image's latents."""
        side = self.side // self.parts.shrink
        return int(self.parts.vae.config.latent_channels), side, side

    @property
    def times(self) -> int:
        """Return the number of noise levels."""
        return int(self.parts.scheduler.config.num_train_timesteps)

    @cached_property
    def fingerprint(self) -> str:
        """Return a hash of all that an image's row depends on: autoencoder, image encoder and size."""
        modules = [self.parts.vae, *([] if self.parts.vision is None else [self.parts.vision])]
        weights = {f"{n}.{name}": x.cpu() for n, part in enumerate(modules) for name, x in part.state_dict().items()}
        return pretrained.fingerprint(weights, "diffusion", self.side, CELLS)

    def to(self, device: torch.device) -> "LoadedDiffusion":
        """Return it on another device."""
        return self if device == self.device else self.loaded(copy.deepcopy(self.parts), device)

    # -- images --------------------------------------------------------------------
    def features(self, weights: Tree, x: Tensor, *, tokens: Tokens | None = None, noise: Tree | None = None) -> Tensor:
        """Return for images x [..., B, 3, H, W] in −1 … 1 their rows [..., B, D]: what `unpack` takes apart."""
        folded = x.flatten(0, -4)
        rows = [self._row(part) for part in folded.split(max(1, PIXELS // self.side**2))]
        return torch.cat(rows).view(*x.shape[:-3], -1)

    def _row(self, x: Tensor) -> Tensor:
        x = resized(x, (self.side, self.side)).clamp(-1, 1)
        vae = self.parts.vae
        straight, mirrored = (
            vae.encode(image).latent_dist.mean * vae.config.scaling_factor for image in (x, x.flip(-1))
        )
        return torch.cat([straight.flatten(1), mirrored.flatten(1), self._visual(x, straight)], 1)

    def _visual(self, x: Tensor, latents: Tensor) -> Tensor:
        if self.parts.vision is None:
            return F.adaptive_avg_pool2d(latents, CELLS).flatten(1)
        mean, std = (torch.tensor(part, device=x.device).view(3, 1, 1) for part in CLIP)
        side = self.parts.vision.config.image_size
        pixels = resized(x, (side, side)).clamp(-1, 1)
        embeds: Tensor = self.parts.vision(pixel_values=((pixels + 1) / 2 - mean) / std).image_embeds
        return F.normalize(embeds, dim=-1)

    def unpack(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return latents of images and their mirror images [..., B, 2, c, h, w], and visual features [..., B, V]."""
        latents, visual = x.split([x.shape[-1] - self.visual_width, self.visual_width], -1)
        return latents.unflatten(-1, (2, *self.latent_shape)), visual

    # -- text ------------------------------------------------------------------------
    def word(self, text: str) -> Tensor:
        """Return the embedding [W] of a text that is one token."""
        tokens = self.parts.tokenizer(text, add_special_tokens=False).input_ids
        if len(tokens) != 1:
            raise PromptFedError(
                f'method.initialiser="{text}" is {len(tokens)} tokens for this backbone; it must be one, as "thing" is.'
            )
        found: Tensor = self._tower.embeddings.token_embedding.weight[tokens[0]]
        return found.float()

    def context(self, templates: Sequence[str]) -> Tensor:
        """Return the mean embedding of each template's own words [T, W]."""
        prompts = self._prompts(templates, 1)
        share = prompts.words / prompts.words.sum(-1, keepdim=True).clamp(min=1)
        embedded: Tensor = self._tower.embeddings.token_embedding(prompts.tokens).float()
        return (share.unsqueeze(-2) @ embedded).squeeze(-2)

    def encode(self, templates: Sequence[str], chosen: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
        """Return the text's states [..., B, L, W] and, of these, the pseudo-word's own [..., B, W].

        `chosen` [..., B] says which template each sample has, `words` [..., B, v, W] the vectors of its pseudo-word.
        """
        prompts, flat = self._prompts(templates, words.shape[-2]), chosen.flatten()
        given = words.expand(*chosen.shape, *words.shape[-2:]).flatten(0, -3)
        slots = prompts.slots[flat]  # [N, L, v]
        embedded = self._tower.embeddings.token_embedding(prompts.tokens[flat])
        free = 1 - slots.sum(-1, keepdim=True)
        states = self._read((embedded * free + slots @ given).to(embedded.dtype)).float()
        own = (slots.mT @ states).mean(-2)
        return states.unflatten(0, chosen.shape), own.unflatten(0, chosen.shape)

    def _read(self, embedded: Tensor) -> Tensor:
        """Run the text tower on the embeddings [N, L, W] of words."""
        tower, length = self._tower, embedded.shape[-2]
        mask = embedded.new_full((length, length), torch.finfo(embedded.dtype).min).triu(1)[None, None]
        embedded = embedded + tower.embeddings.position_embedding.weight[:length]
        states = tower.encoder(inputs_embeds=embedded, attention_mask=mask).last_hidden_state
        normed: Tensor = tower.final_layer_norm(states)
        return normed

    @property
    def _tower(self) -> Any:
        return getattr(self.parts.text, "text_model", self.parts.text)  # older transformers have it one level deeper

    def _prompts(self, templates: Sequence[str], vectors: int) -> Prompts:
        key = tuple(templates), vectors
        if key in self.known:
            return self.known[key]
        made = pipeline.read_prompts(self.parts.tokenizer, templates, vectors, self.device)
        if tree.has_numbers(made.tokens):  # whoever asks for shapes alone gets none
            self.known[key] = made
        return made

    # -- denoising -------------------------------------------------------------------
    @cached_property
    def _signal(self) -> Tensor:
        """Return how much of an image's variance is left at each time [times]."""
        left: Tensor = self.parts.scheduler.alphas_cumprod.to(self.device)
        return left

    def noised(self, latents: Tensor, noise: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        """Return latents [..., B, c, h, w] with noise as of `time` [..., B], and what `denoise` should find in them."""
        left = self._signal[time][..., None, None, None]
        noisy = left.sqrt() * latents + (1 - left).sqrt() * noise
        if self.parts.scheduler.config.prediction_type == "epsilon":
            return noisy, noise
        return noisy, left.sqrt() * noise - (1 - left).sqrt() * latents

    def denoise(self, noisy: Tensor, time: Tensor, states: Tensor) -> Tensor:
        """Return the noise, or the velocity, that the model sees in latents [..., B, c, h, w] given a text's states."""
        unet, kind = self.parts.unet, self.parts.unet.dtype
        folded = noisy.flatten(0, -4).to(kind), time.flatten(), states.flatten(0, -3).to(kind)
        # a training batch is one step and stays whole; testing hands over hundreds of images at once
        room = len(folded[0]) if torch.is_grad_enabled() else max(1, LATENTS // noisy.shape[-2:].numel())
        parts = zip(*(value.split(room) for value in folded), strict=True)
        found = [unet(some, when, encoder_hidden_states=text).sample for some, when, text in parts]
        return torch.cat(found).float().view(noisy.shape)

    @torch.no_grad()
    def sample(self, states: Tensor, start: Tensor, *, steps: int = 30, guidance: float = 7.5) -> Tensor:
        """Return images [..., B, 3, H, W] in −1 … 1 of texts' states, by DDIM from `start` [..., B, c, h, w].

        `guidance` is how far beyond the text the images go, seen from a text without words.
        """
        if not 0 < steps <= self.times:
            raise PromptFedError(f"{steps} steps of denoising cannot be made; this model knows 1 to {self.times}.")
        scheduler = copy.deepcopy(self.parts.scheduler)
        scheduler.set_timesteps(steps)
        plain = self._silence.expand_as(states)
        latents = start
        for time in scheduler.timesteps.tolist():
            times = torch.full(start.shape[:-3], time, device=self.device)
            found = self.denoise(latents, times, states)
            if guidance != 1:
                without = self.denoise(latents, times, plain)
                found = without + guidance * (found - without)
            latents = scheduler.step(found, time, latents).prev_sample
        return self._decoded(latents)

    @cached_property
    def _silence(self) -> Tensor:
        """Return the states [L, W] of a text without words."""
        tokens = self.parts.tokenizer("", padding="max_length", return_tensors="pt").input_ids.to(self.device)
        with torch.no_grad():
            return self._read(self._tower.embeddings.token_embedding(tokens)).float()[0]

    def _decoded(self, latents: Tensor) -> Tensor:
        vae = self.parts.vae
        parts = (latents.flatten(0, -4) / vae.config.scaling_factor).split(max(1, PIXELS // self.side**2))
        images = torch.cat([vae.decode(part).sample.clamp(-1, 1) for part in parts])
        return images.view(*latents.shape[:-3], *images.shape[-3:])

    # -- what it cannot do -------------------------------------------------------------
    @property
    def token_width(self) -> int:
        """Refuse: there are no visual prompt tokens."""
        _no_classifier()

    @property
    def layers(self) -> int:
        """Refuse: there are no visual prompt tokens."""
        _no_classifier()

    def draws(self) -> dict[str, Draw]:
        """Return nothing: there is no dropout."""
        return {}

    def init(self, rng: Rng) -> Tree:
        """Refuse: it is frozen."""
        _no_classifier()

    def head(self, rng: Rng) -> Tree:
        """Refuse: there is no classifier."""
        _no_classifier()

    def __call__(self, weights: Tree, x: Tensor, *, tokens: Tokens | None = None, noise: Tree | None = None) -> Tensor:
        """Refuse: there is no classifier."""
        _no_classifier()


def _no_classifier() -> NoReturn:
    raise PromptFedError(
        "The diffusion backbone draws images and does not classify; use it with a method that learns a word, "
        "such as relic or fedti."
    )
