"""FedMaPLe: a round by hand, what its prompts are without maps and without depth, and what travels."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest
import torch
from torch import Tensor

from promptfed.core import tree
from promptfed.core.method import Task
from promptfed.core.options import make
from promptfed.core.protocols import Tokens
from promptfed.core.tree import Tree
from promptfed.methods.fedmaple import FedMaPLe
from promptfed.methods.promptfl import PromptFL
from support.toy_clip import ARCH, NAMES, NET, SHAPE, normal
from support.toys import TinyDual, featured, rng, task

CLIP = Task(NET, NAMES, 3)
IMAGES = normal(13, *SHAPE)
WRONG = 1 / (1 + math.e)  # what softmax (1, 0) gives to the second


@dataclass(frozen=True)
class TwoBlocks(TinyDual):
    """A TinyDual with two blocks a tower: the means of their prompts are added to the word, and to the image."""

    layers: ClassVar[int] = 2

    @property
    def matrices(self) -> Mapping[str, tuple[int, int]]:
        return {f"{tower}block{number}.q": (2, 2) for tower in ("", "text.") for number in range(2)}

    def text(self, context: Tensor, *, per_class: bool, deep: Sequence[Tensor] = ()) -> Tensor:
        return super().text(context + sum(deep), per_class=per_class)

    def features(self, weights: Tree, x: Tensor, *, tokens: Tokens | None = None, noise: Tree | None = None) -> Tensor:
        assert not isinstance(tokens, Tensor | None)
        return x + sum(layer.mean(-2).unsqueeze(-2) for layer in tokens)


def test_a_round_by_hand() -> None:
    # with prompts and maps of zero the wrong class has WRONG. The text prompts of both blocks turn away from the image
    # by it, and the image away from the wrong word by WRONG over its length; the maps see prompts of zero, so of them
    # the biases alone move
    tiny, clients = task(TwoBlocks()), torch.arange(2)
    method = FedMaPLe(tokens=1, lr=1.0, momentum=0.0, weight_decay=0.0)
    start = tree.map(torch.zeros_like, method.init_server(tiny, rng()))
    own = featured(torch.tensor([[2.0, 0.0], [0.0, 5.0], [0.0, 5.0]]), [0, 1, 1], [1, 2])
    up, personal = method.fit(tiny, method.download(tiny, start, clients), {}, own.data([0, 1], 0, stacked=True))
    text = -WRONG * torch.eye(2).unsqueeze(-2)
    image = torch.tensor([[0.0, -WRONG / 2], [-WRONG / 5, 0.0]])
    assert {name: tuple(value.shape) for name, value in up.items()} == {
        "context": (2, 1, 2),
        "deep": (2, 1, 1, 2),
        "project.weight": (2, 2, 2, 2),
        "project.bias": (2, 2, 2),
    }
    torch.testing.assert_close(up["context"], text)
    torch.testing.assert_close(up["deep"], text.unsqueeze(-3))
    torch.testing.assert_close(up["project.bias"], image.unsqueeze(-2).expand(2, 2, 2))
    assert not up["project.weight"].any()
    assert not personal
    after = method.aggregate(tiny, start, clients, up, method.weight(own.facts([0, 1])))
    wanted = torch.tensor([-2 * WRONG / 15, -WRONG / 6]).expand(2, 2)
    torch.testing.assert_close(after["project.bias"], wanted)  # by images


def test_maps_turn_text_prompts_into_image_prompts() -> None:
    method = FedMaPLe(tokens=2, depth=2)
    server = method.init_server(CLIP, rng())
    both = torch.stack([server["context"], server["deep"][0]])
    wanted = torch.einsum("jvw,jbw->jbv", server["project.weight"], both) + server["project.bias"].unsqueeze(-2)
    torch.testing.assert_close(method.visual(server), wanted)
    alone = FedMaPLe(tokens=2, depth=2, coupled=False)
    same = tree.pick(server, ["context", "deep"]) | {"visual": wanted}
    x = {"x": IMAGES[:4]}
    torch.testing.assert_close(alone.predict(CLIP, same, x), method.predict(CLIP, server, x))


def test_with_maps_of_zero_its_context_learns_what_promptfls_does() -> None:
    # the image tower then has tokens of zero, the same for all, and the context has no gradient from there
    rates: dict[str, Any] = {"tokens": 2, "lr": 0.5, "batch": 6, "epochs": 1, "momentum": 0.9, "weight_decay": 1e-3}
    method = FedMaPLe(depth=1, **rates)
    down = method.init_server(CLIP, rng())
    down |= {name: torch.zeros_like(value) for name, value in down.items() if name.startswith("project")}
    labels = [0, 1, 2, 0, 1, 2]
    up, _ = method.fit(CLIP, down, {}, featured(IMAGES[:6], labels, [6]).data([0], 0, stacked=False))
    features = NET.features({}, IMAGES[:6], tokens=torch.zeros(2, ARCH.image.width))
    data = featured(features, labels, [6]).data([0], 0, stacked=False)
    plain, _ = PromptFL(csc=False, **rates).fit(CLIP, tree.pick(down, ["context"]), {}, data)
    torch.testing.assert_close(up["context"], plain["context"])
    text = PromptFL(csc=False).prepare(CLIP, up)["text"]
    assert method.prepare(CLIP, up)["text"].equal(text)


def test_every_block_has_its_say() -> None:
    method = FedMaPLe(tokens=2)
    server, x = method.init_server(CLIP, rng()), {"x": IMAGES[:4]}
    before = method.predict(CLIP, server, x)
    for name, value in server.items():
        for block in range(len(value)) if name != "context" else (slice(None),):
            changed = value.clone()
            changed[block] += normal(*changed[block].shape)
            assert (method.predict(CLIP, server | {name: changed}, x) - before).abs().max() > 1e-3, (name, block)


def test_there_are_no_more_prompts_than_blocks() -> None:
    assert (ARCH.text.depth, ARCH.image.depth) == (3, 2)
    server = FedMaPLe(depth=9).init_server(CLIP, rng())
    assert (len(server["deep"]), len(server["project.weight"])) == (1, 2)
    assert "deep" not in FedMaPLe(depth=1).init_server(CLIP, rng())


def test_a_short_context_starts_from_words_and_a_longer_one_anywhere() -> None:
    words = NET.words("a photo of a")
    assert FedMaPLe(tokens=2).init_server(CLIP, rng())["context"].equal(words[:2])
    assert FedMaPLe(tokens=4).init_server(CLIP, rng())["context"].equal(words)
    longer = FedMaPLe(tokens=5).init_server(CLIP, rng())["context"]
    assert longer.shape == (5, 12)
    assert 0.01 < longer.std() < 0.03


@pytest.mark.parametrize(
    ("options", "floats"),
    [
        ({}, 3_555_072),
        ({"depth": 1}, 395_008),
        ({"coupled": False}, 23_040),
        ({"coupled": False, "depth": 1, "tokens": 4}, 5_120),  # FedVLP in FedTPG's comparison
        (FedMaPLe.presets["ivlp"], 2_560),
    ],
)
def test_what_travels(options: dict[str, object], floats: int) -> None:
    # a CLIP ViT-B/16 as far as its prompts see it
    size = SimpleNamespace(context_width=512, token_width=768, layers=12, zero_shot=None)
    size.matrices = {f"text.block{number}.q": (512, 512) for number in range(12)}
    size.words = lambda said: torch.zeros(len(said.split()), 512)
    server = make(FedMaPLe, options, "method").init_server(Task(cast(Any, size), NAMES, 3), rng())
    assert tree.floats(server) == floats


@pytest.mark.parametrize("options", [{}, {"depth": 1}, {"coupled": False}])
def test_a_client_alone_does_what_it_does_in_the_stack(options: dict[str, Any]) -> None:
    data = featured(IMAGES, [n % 3 for n in range(13)], [5, 1, 7])
    method = make(FedMaPLe, {"batch": 3, "lr": 0.02, **options}, "method")
    down = method.init_server(CLIP, rng())
    up, _ = method.fit(CLIP, tree.repeat(down, 3), {}, data.data(range(3), 0, stacked=True))
    assert tree.floats(up) == 3 * tree.floats(down)
    for client in range(3):
        alone, _ = method.fit(CLIP, down, {}, data.data([client], 0, stacked=False))
        torch.testing.assert_close(tree.row(up, client), alone, rtol=1e-4, atol=1e-5)
