"""pFedMMA: a round by hand, the paper's gradient trick, its ends, and what travels."""

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from promptfed.backbones import companions
from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.method import Task
from promptfed.core.options import make
from promptfed.core.protocols import Tokens
from promptfed.core.tree import Tree
from promptfed.methods.pfedmma import PFedMMA
from support.adapted import Wide, photographs
from support.toy_clip import NAMES, NET, SHAPE, assert_close, normal
from support.toys import FrozenTokens, TinyDual, featured, rng, task

WRONG = 1 / (1 + math.e)  # what softmax (1, 0) gives to the second
CLIP = Task(NET, NAMES, 3)


@dataclass(frozen=True)
class Sided(TinyDual):
    """Two towers whose block z + `trunk` · tanh(z, turned) has an adapter beside it."""

    depth: int = 1
    trunk: float = 0.0
    kind: torch.dtype = torch.float32

    @property
    def zero_shot(self) -> Tensor:
        return super().zero_shot.to(self.kind)

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        blocks = [f"{tower}block{number}.out" for tower in ("", "text.") for number in range(self.depth)]
        return dict.fromkeys(blocks, (self.width, self.width))

    def features(self, weights: Tree, x: Tensor, *, tokens: Tokens | None = None, noise: Tree | None = None) -> Tensor:
        return self._through(weights, x, "block")

    def text(self, context: Tensor | str, *, per_class: bool, weights: Tree | None = None) -> Tensor:
        given = weights or {}
        clients = given["text.block0.side.down.weight"].shape[:-2]
        words = self.zero_shot.expand(*clients, *self.zero_shot.shape)
        return F.normalize(self._through(given, words, "text.block"), dim=-1)

    def _through(self, weights: Tree, z: Tensor, blocks: str) -> Tensor:
        z = z.to(next(iter(weights.values())))
        for number in range(self.depth):
            own = f"{blocks}{number}."
            aside = companions.aside({n.removeprefix(own): x for n, x in weights.items() if n.startswith(own)}, z)
            z = z + self.trunk * z.flip(-1).tanh()
            z = z if aside is None else z + aside
        return z


def drawn(method: PFedMMA, where: Task = CLIP) -> tuple[Tree, Tree]:
    """Return what a client receives, and what it has of its own, at first."""
    data = photographs([3]).data([0], 0, stacked=False)
    return method.init_server(where, rng()), method.init_client(where, data, rng(0))


# -- by hand --------------------------------------------------------------------------------------------------------


def test_a_round_by_hand() -> None:
    # client 0: z = relu(W_d x) = 2, h = relu(3 z) = 6, and W_u h + b_u = 0, so its feature is the image (2, 0) itself,
    # and the loss turns it away from the wrong word by WRONG / 2. W_s gets that times W_u = 1 and z; W_d that times 3
    # and x; W_u that times h. Client 1 likewise with z = 5, h = 15, W_u = 2, and the image (0, 5), twice.
    # α is in every gradient, and 1 / α in the rate
    own = featured(torch.tensor([[2.0, 0.0], [0.0, 5.0], [0.0, 5.0]]), [0, 1, 1], [1, 2])
    start, clients, sided = (
        {"middle0.weight": torch.tensor([[3.0]]), "middle0.bias": torch.zeros(1)},
        torch.arange(2),
        task(Sided()),
    )
    personal = {
        "block0.side.down.weight": torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]),
        "block0.side.down.bias": torch.zeros(2, 1),
        "block0.side.up.weight": torch.tensor([[[0.0], [1.0]], [[2.0], [0.0]]]),
        "block0.side.up.bias": torch.tensor([[0.0, -6.0], [-30.0, 0.0]]),
    }
    for scale in (0.25, 0.001):
        method = PFedMMA(width=1, towers="image", scale=scale, lr=1.0, momentum=0.0, weight_decay=0.0)
        up, kept = method.fit(
            sided, method.download(sided, start, clients), personal, own.data([0, 1], 0, stacked=True)
        )
        assert_close(up["middle0.weight"], 3 - WRONG * torch.tensor([[[1.0]], [[2.0]]]))
        assert_close(up["middle0.bias"], -WRONG * torch.tensor([[1 / 2], [2 / 5]]))
        move = tree.map(lambda after, before: (after - before) / WRONG, kept, personal)
        assert_close(move["block0.side.down.weight"], torch.tensor([[[-3.0, 0.0]], [[0.0, -6.0]]]))
        assert_close(move["block0.side.down.bias"], torch.tensor([[-1.5], [-1.2]]))
        assert_close(move["block0.side.up.weight"], torch.tensor([[[0.0], [-3.0]], [[-3.0], [0.0]]]))
        assert_close(move["block0.side.up.bias"], torch.tensor([[0.0, -0.5], [-0.2, 0.0]]))
        after = method.aggregate(sided, start, clients, up, method.weight(own.facts([0, 1])))
        assert_close(after["middle0.weight"], torch.tensor([[3 - WRONG * 5 / 3]]))  # by images


def times(x: Tensor, factor: float) -> Tensor:
    """Return x, whose gradient is multiplied by a factor."""
    same = x.view_as(x)
    same.register_hook(lambda gradient: gradient * factor)
    return same


def test_the_papers_gradient_trick_is_a_rate_and_a_decay() -> None:
    """Twenty steps of two blocks with the trick, written out, and by a plain optimiser; in double precision."""
    alpha, method = 0.01, PFedMMA(width=3, layers=2, towers="image", scale=0.01, lr=0.02, epochs=20, batch=4)
    net, x, y = (
        Sided(depth=2, trunk=0.5, sharpness=3.0, kind=torch.float64),
        normal(4, 2).double(),
        torch.tensor([0, 1, 0, 1]),
    )
    where, data = task(net), featured(normal(4, 2), y.tolist(), [4]).data([0], 0, stacked=False)
    down, personal = (tree.map(torch.Tensor.double, part) for part in drawn(method, where))
    up, kept = method.fit(where, down, personal, data)

    leaves = {name: nn.Parameter(value.clone()) for name, value in (down | personal).items()}
    descent = torch.optim.SGD(leaves.values(), lr=0.02, momentum=0.9, weight_decay=5e-4)

    def affine(part: str, given: Tensor) -> Tensor:
        return F.linear(given, leaves[f"{part}.weight"], leaves[f"{part}.bias"])

    for _ in range(20):
        z = x.clone().requires_grad_()
        for level in range(2):
            hidden = affine(f"block{level}.side.down", times(z, alpha)).relu()
            made = affine(f"block{level}.side.up", affine(f"middle{level}", hidden).relu())
            z = z + 0.5 * z.flip(-1).tanh() + alpha * times(made, 1 / alpha)
        descent.zero_grad()
        F.cross_entropy(3 * F.normalize(z, dim=-1), y).backward()
        descent.step()
    moved = up | kept
    for name, leaf in leaves.items():
        torch.testing.assert_close(moved[name], leaf.data, rtol=1e-12, atol=1e-12)
    assert (moved["middle0.weight"] - down["middle0.weight"]).norm() > 0.1


# -- identities -----------------------------------------------------------------------------------------------------


def plain(x: Tensor) -> Tensor:
    return NET.scale * F.normalize(NET.features({}, x), dim=-1) @ NET.zero_shot.mT


def test_at_scale_zero_it_is_clip() -> None:
    method, x = PFedMMA(scale=0.0, width=4, batch=4), normal(5, *SHAPE)
    down, personal = drawn(method)
    up, kept = method.fit(CLIP, down, personal, photographs([6]).data([0], 0, stacked=False))
    assert_close(method.predict(CLIP, up | kept, {"x": x}), plain(x), 1e-4)


def test_at_first_it_is_nearly_clip() -> None:
    method, x = PFedMMA(width=4), normal(5, *SHAPE)
    down, personal = drawn(method)
    gap = (method.predict(CLIP, down | personal, {"x": x}) - plain(x)).abs().max()
    assert 1e-3 < gap < 1  # of logits up to 100


@pytest.mark.parametrize("tower", ["image", "text"])
def test_the_middle_serves_both_towers(tower: str) -> None:
    method, x = PFedMMA(width=4, scale=0.1), normal(5, *SHAPE)
    down, personal = drawn(method)
    gone = "text." if tower == "image" else "block"
    own = {n: torch.zeros_like(v) if n.startswith(gone) else v for n, v in personal.items()}  # of the other tower
    before = method.predict(CLIP, down | own, {"x": x})
    moved = tree.map(lambda value: value + 0.3, down)
    assert (method.predict(CLIP, moved | own, {"x": x}) - before).abs().max() > 0.05


def test_a_companion_is_what_the_equation_says() -> None:
    method = PFedMMA(width=4, scale=0.5, layers=1)
    down, personal = drawn(method)
    found = method.beside(CLIP, down | personal)
    assert {name.rpartition(".")[0] for name in found} == {
        f"{block}.side.{part}" for block in ("block1", "text.block2") for part in ("down", "mid", "up")
    }
    for block in ("block1", "text.block2"):
        assert found[f"{block}.side.mid.weight"] is down["middle0.weight"]
        assert found[f"{block}.side.down.weight"] is personal[f"{block}.side.down.weight"]
        assert found[f"{block}.side.up.weight"].equal(0.5 * personal[f"{block}.side.up.weight"])


# -- what travels ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "travels", "stays"),
    [
        ({}, 8_448, 666_112),
        ({"layers": 9}, 9_504, 749_376),
        ({"share": "all"}, 674_560, 0),
        ({"share": "none"}, 0, 674_560),
        ({"towers": "image"}, 8_448, 399_616),
        ({"towers": "text"}, 8_448, 266_496),
    ],
)
def test_the_sizes_at_clips_width(given: dict[str, Any], travels: int, stays: int) -> None:
    down, personal = drawn(make(PFedMMA, given, "method"), task(Wide()))
    assert (tree.floats(down), tree.floats(personal)) == (travels, stays)


def test_the_adapters_stand_beside_layers_five_to_twelve() -> None:
    _, personal = drawn(PFedMMA(), task(Wide()))
    assert {name.partition(".side")[0] for name in personal} == {
        f"{tower}block{number}" for tower in ("", "text.") for number in range(4, 12)
    }


@pytest.mark.parametrize("share", ["middle", "all", "none"])
def test_what_was_received_is_sent(share: Any) -> None:
    method = PFedMMA(width=2, share=share)
    down, personal = drawn(method)
    up, kept = method.fit(CLIP, down, personal, photographs([4]).data([0], 0, stacked=False))
    assert (up.keys(), kept.keys()) == (down.keys(), personal.keys())
    assert method.deploy(CLIP, down) == (down if share == "all" else {})


def test_the_start() -> None:
    method = PFedMMA(width=64, towers="image", layers=1)
    down, personal = drawn(method, task(Wide()))
    assert down["middle0.weight"].std() == pytest.approx((2 / 64) ** 0.5, rel=0.05)
    assert personal["block11.side.up.weight"].std() == pytest.approx((2 / 768) ** 0.5, rel=0.05)
    assert not personal["block11.side.up.bias"].any()
    again = method.init_client(task(Wide()), photographs([3]).data([0], 0, stacked=False), rng(7))
    assert all(again[name].equal(personal[name]) for name in personal)


# -- one and many ---------------------------------------------------------------------------------------------------


def test_a_client_alone_does_what_it_does_in_the_stack() -> None:
    method, data = PFedMMA(width=3, scale=0.1, batch=3, epochs=2, lr=0.001), photographs([5, 1, 4])
    down, personal = drawn(method)
    together = tree.repeat(down, 3), tree.repeat(personal, 3)
    up, kept = method.fit(CLIP, *together, data.data(range(3), 0, stacked=True))
    for client in range(3):
        alone = method.fit(CLIP, down, personal, data.data([client], 0, stacked=False))
        torch.testing.assert_close((tree.row(up, client), tree.row(kept, client)), alone, rtol=1e-3, atol=1e-4)


def test_text_adapters_alone_leave_the_images_as_they_are() -> None:
    assert PFedMMA(towers="text").traits.reads == "features"
    assert PFedMMA().traits.reads == "pixels"


def test_the_text_tower_answers_for_a_stack() -> None:
    method, sided = PFedMMA(width=3, scale=0.5), task(Sided())
    down, personal = drawn(method, sided)
    both = tree.stack([down | personal, tree.map(lambda value: 2 * value, down | personal)])
    found = method.predict(sided, both, {"x": normal(2, 5, 2)})
    assert_close(found[1], method.predict(sided, tree.row(both, 1), {"x": normal(2, 5, 2)[1]}))


# -- refusals -------------------------------------------------------------------------------------------------------


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(PromptFedError, match=r"^This method needs a text tower beside the image tower; set "):
        PFedMMA().init_server(task(FrozenTokens()), rng())
    with pytest.raises(PromptFedError, match=r"^method\.scale must be at least 0, not -1\.$"):
        make(PFedMMA, {"scale": -1.0}, "method")
