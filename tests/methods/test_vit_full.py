"""ViT-full: body and head move together, by either optimiser, and every client counts once."""

import pytest
import torch

from promptfed.core import tree
from promptfed.core.options import make
from promptfed.methods.vit_full import ViTFull
from support.toys import BLACK, WHITE, FrozenTokens, dataset, numbered, rng, shards, task

TASK = task(FrozenTokens())
START = {"scale": torch.ones(3), "head.weight": torch.tensor([[1.0] * 3, [0.0] * 3]), "head.bias": torch.zeros(2)}


def test_one_step_by_hand() -> None:
    method = ViTFull(lr=1.0, batch=1, weight_decay=0.0)
    own = shards(dataset([WHITE, BLACK], [1, 0]), [1, 1])
    up, personal = method.fit(TASK, START, {}, own.data([0], 0, stacked=False))
    # a white image has features (1, 1, 1), so class 0 has e³ / (e³ + 1) where it should have nothing
    wrong = torch.tensor(3.0).sigmoid()
    torch.testing.assert_close(up["scale"], torch.ones(3) - wrong)
    torch.testing.assert_close(up["head.weight"], torch.stack([torch.ones(3) - wrong, wrong.expand(3)]))
    torch.testing.assert_close(up["head.bias"], torch.stack([-wrong, wrong]))
    assert personal == {}


def test_adam_moves_everything_by_the_rate() -> None:
    method = ViTFull(optimiser="adam", lr=0.01, batch=1, weight_decay=0.0)
    own = shards(dataset([WHITE, BLACK], [1, 0]), [1, 1])
    up, _ = method.fit(TASK, START, {}, own.data([0], 0, stacked=False))
    torch.testing.assert_close(up["scale"], torch.full((3,), 0.99))
    torch.testing.assert_close(up["head.weight"][1], torch.full((3,), 0.01))


def test_everything_travels_and_everyone_counts_once() -> None:
    method, own = ViTFull(batch=2), numbered([5, 2, 3])
    server = method.init_server(task(FrozenTokens(spread=1.0), 3), rng())
    down = method.download(TASK, server, torch.arange(3))
    up, _ = method.fit(TASK, down, {}, own.data(range(3), 0, stacked=True))
    assert tree.floats(up) == tree.floats(down) == 3 * (3 + 2 * 3 + 2)
    torch.testing.assert_close(method.weight(own.facts([0, 1, 2])), torch.ones(3))


@pytest.mark.parametrize("preset", ViTFull.presets)
def test_presets_are_options(preset: str) -> None:
    make(ViTFull, ViTFull.presets[preset], "method")
