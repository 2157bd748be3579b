"""Pairs of low rank: which matrices have one, how many numbers that is, and what they start from."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from promptfed.backbones import companions, text, transformer
from promptfed.backbones.text import TextArch
from promptfed.backbones.transformer import Arch
from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.method import Task
from promptfed.core.prompts.pairs import chosen, init_pairs, scaled_pairs
from support.toy_clip import NAMES, NET, SHAPE, assert_close, normal

TASK = Task(NET, NAMES, 2)


@dataclass(frozen=True)
class Shapes:
    """A backbone that is nothing but the shapes of CLIP's ViT-B/16."""

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        image = companions.matrices(transformer.shapes(Arch(768, 12, 12, 16, 3072, (14, 14), pre_norm=True)))
        words = companions.matrices(text.shapes(TextArch(512, 12, 8, 2048, 49408, 77, 512)))
        return image | {f"text.{name}": shape for name, shape in words.items()}


@pytest.mark.parametrize(
    ("towers", "rank", "floats"), [("both", 2, 184_320), ("image", 2, 110_592), ("both", 4, 368_640)]
)
def test_the_sizes_of_clip_lora(towers: Any, rank: int, floats: int) -> None:
    backbone: Any = Shapes()
    pairs = init_pairs(chosen(Task(backbone, NAMES, 2), "qkv", towers), rank, torch.Generator())
    assert tree.floats(pairs) == floats
    sent = {name: value for name, value in pairs.items() if name.endswith("lora_b")}
    assert tree.floats(sent) == floats // 2


def test_some_parts_of_some_blocks() -> None:
    assert list(chosen(TASK, ["v", "mlp1"], "image", [1])) == ["block1.v", "block1.mlp1"]
    assert list(chosen(TASK, ["q"])) == ["block0.q", "block1.q", "text.block0.q", "text.block1.q", "text.block2.q"]
    assert chosen(TASK, ["mlp2"], "text", [2]) == {"text.block2.mlp2": (12, 24)}
    with pytest.raises(PromptFedError, match=r'^Unknown matrix "mlp" in the backbone; did you mean "mlp[12]"\?$'):
        chosen(TASK, ["mlp"])


def test_fresh_pairs_change_nothing_and_a_scale_is_that_of_the_product() -> None:
    pairs, x = init_pairs(chosen(TASK, ["q", "out"]), 3, torch.Generator().manual_seed(0)), normal(2, *SHAPE)
    assert_close(NET.features(pairs, x), NET.features({}, x), 1e-6)
    assert pairs["block0.q.lora_a"].abs().max() <= 0.25  # 1 / √16
    assert pairs["block0.q.lora_a"].abs().max() > 0.2
    own = {name: normal(*value.shape, seed=number) for number, (name, value) in enumerate(pairs.items())}
    half = {name: value / 2 if name.endswith("lora_a") else value for name, value in own.items()}
    assert_close(NET.features(scaled_pairs(own, 0.5), x), NET.features(half, x), 1e-4)
