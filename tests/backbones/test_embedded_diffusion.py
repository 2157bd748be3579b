"""The embedded text-to-image model: its files, its size, what it knows, and what it has never seen."""

import json

import pytest
import torch

from promptfed.backbones.diffusion import Diffusion, LoadedDiffusion
from promptfed.backbones.pipeline import EMBEDDED
from promptfed.core.prompts.templates import OBJECT
from promptfed.data.shops import CLASSES, SHOPS, TRAIN, load_shops

FACTS = json.loads((EMBEDDED / "pretraining.json").read_text(encoding="utf-8"))
NOUNS = ("tee", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")  # as in CLASSES
KEPT = 10  # photographs of each kind on which it was measured


@pytest.fixture(scope="module")
def net() -> LoadedDiffusion:
    return Diffusion((3, 32, 32), len(CLASSES)).to(torch.device("cpu"))


def test_it_is_small() -> None:
    assert sum(path.stat().st_size for path in EMBEDDED.rglob("*") if path.is_file()) <= 8_000_000


def test_it_says_how_it_was_made(net: LoadedDiffusion) -> None:
    # the shops have some of the 6,000 photographs of each kind, some are kept for measuring, and boots are left out
    free = 6_000 - TRAIN * len(SHOPS) - KEPT
    assert FACTS["images"] == free * (len(CLASSES) - 1) * len(SHOPS)
    assert FACTS["left_out"] == "boot"
    for part in ("text", "unet", "vae"):
        assert FACTS["weights"][part] == sum(value.numel() for value in getattr(net.parts, part).parameters())


def test_every_noun_and_every_word_of_a_template_is_one_token(net: LoadedDiffusion) -> None:
    said = [*NOUNS, "shoe", *{word for one in OBJECT for word in one.replace("{}", "").replace("-", " ").split()}]
    for word in said:
        assert len(net.parts.tokenizer(word, add_special_tokens=False).input_ids) == 1, word


def pixels(kind: int, count: int) -> torch.Tensor:
    """Return photographs of the demo in the first shop's style, none of which the model has seen."""
    shops = load_shops()
    rows = ((shops.labels == kind) & (shops.domains == 0)).nonzero()[0][:count]
    return torch.from_numpy(shops.images[rows]).permute(0, 3, 1, 2).float() / 127.5 - 1


@torch.no_grad()
def misfit(net: LoadedDiffusion, x: torch.Tensor, noun: str) -> torch.Tensor:
    """Return how far the denoiser errs on each image when told that it shows `noun`; all nouns meet the same noise."""
    latents = net.unpack(net.features({}, x))[0][:, 0]
    line = net.parts.tokenizer(OBJECT[0].format(noun), padding="max_length", return_tensors="pt").input_ids
    states = net.parts.text(line).last_hidden_state.expand(len(x), -1, -1)
    generator, total = torch.Generator().manual_seed(0), torch.zeros(len(x))
    for share in (0.3, 0.5, 0.7):
        noise = torch.randn(latents.shape, generator=generator)
        when = torch.full((len(x),), int(share * net.times))
        noisy, wanted = net.noised(latents, noise, when)
        total += (net.denoise(noisy, when, states) - wanted).square().mean((1, 2, 3))
    return total


def test_it_rebuilds_what_it_has_not_seen(net: LoadedDiffusion) -> None:
    for kind in (0, CLASSES.index("Ankle boot")):
        x = pixels(kind, 8)
        rebuilt = net.parts.vae.decode(net.parts.vae.encode(x).latent_dist.mode()).sample
        assert float((rebuilt - x).square().mean()) < 4 * FACTS["measured"]["rebuilt_mse"]  # images are −1 … 1


@pytest.mark.parametrize(("kind", "other"), [(1, "sneaker"), (7, "trouser"), (8, "dress")])
def test_the_right_noun_describes_an_image_better(net: LoadedDiffusion, kind: int, other: str) -> None:
    x = pixels(kind, 12)
    better = misfit(net, x, NOUNS[kind]) < misfit(net, x, other)
    assert float(better.float().mean()) > 0.8


def test_boot_is_a_word_without_a_meaning(net: LoadedDiffusion) -> None:
    x = pixels(CLASSES.index("Ankle boot"), 12)
    assert float((misfit(net, x, "sneaker") < misfit(net, x, "boot")).float().mean()) > 0.5  # a shoe is nearer
