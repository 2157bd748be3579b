"""The embedded pretrained network: its files, its size, and that it is what its layout says."""

import json
from pathlib import Path

import pytest
import torch

from promptfed.backbones.checkpoint import EMBEDDED
from promptfed.backbones.pretrained import ViT
from promptfed.core import tree
from promptfed.data.shops import SHOPS, load_shops
from support.tiny_hub import by_hand, load_vit
from support.toys import rng

NET = ViT((3, 32, 32), 10).to(torch.device("cpu"))
FACTS = json.loads((EMBEDDED / "pretraining.json").read_text(encoding="utf-8"))


def test_it_is_small() -> None:
    assert sum(path.stat().st_size for path in Path(EMBEDDED).iterdir()) <= 4_000_000


def test_it_says_how_it_was_made() -> None:
    assert FACTS["photographs"] == 60_000 - 6_000  # what fashion-shops leaves of the training file
    assert FACTS["weights"] == tree.floats(NET.pretrained)
    assert FACTS["probe"].keys() == FACTS["probe_of_random_weights"].keys() == {"all", *SHOPS}


def test_its_form_is_the_documented_one() -> None:
    arch = NET.arch
    assert (arch.patch, arch.width, arch.depth, arch.heads, arch.mlp) == (4, 160, 6, 5, 640)


def test_its_features_tell_clothes_apart_better_than_random_ones() -> None:
    assert FACTS["probe"]["all"] > FACTS["probe_of_random_weights"]["all"]


def test_images_of_the_demo_need_no_resizing() -> None:
    assert NET.statistics == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    assert NET.arch.grid == (8, 8)
    assert NET.arch.patch == 4


def test_transformers_reads_it_too() -> None:
    x = torch.from_numpy(load_shops().images[::1000]).permute(0, 3, 1, 2).float() / 127.5 - 1
    with torch.no_grad():
        torch.testing.assert_close(NET.features({}, x), by_hand(load_vit(EMBEDDED), x, []), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("side", [16, 48])
def test_it_takes_images_of_other_sizes(side: int) -> None:
    net = ViT((3, side, side), 10).to(torch.device("cpu"))
    assert net(net.head(rng()), torch.zeros(1, 3, side, side)).isfinite().all()
