"""pFedPT on the linear network: both phases by hand, and every kind of prompt alone and stacked."""

import math
from dataclasses import replace
from typing import Literal

import pytest
import torch

from promptfed.backbones.cnn import ConvNet
from promptfed.backbones.vit import TinyViT
from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.method import Task
from promptfed.core.options import make
from promptfed.core.prompts import pixels
from promptfed.core.protocols import Backbone, Draw
from promptfed.core.tree import Tree
from promptfed.data.batches import ClientData
from promptfed.methods.pfedpt import PFedPT
from support.toys import BLACK, Linear, dataset, numbered, rng, shards, task

Kind = Literal["frame", "patch", "random-patch", "tokens"]
TASK = task()
LN3 = math.log(3)
# with w = (1, …, 1; 0, …, 0) and a black image of class 0, p = 1/2 and ∂/∂δ = −1/2 on each of 12 pixels; this rate
# makes δ = ln 3 / 12 on each, so that the logits become (ln 3, 0) and p = 3/4
RATE = LN3 / 6
BY_HAND = PFedPT(size=1, lr=0.8, epochs=1, prompt_lr=RATE, prompt_epochs=1, batch=1)


def server() -> Tree:
    return {"head.weight": torch.tensor([[1.0] * 12, [0.0] * 12]), "head.bias": torch.zeros(2)}


def untouched(method: PFedPT = BY_HAND) -> Tree:
    """Return the personal tree of a client whose frame is all zero."""
    return tree.map(torch.zeros_like, method.init_client(TASK, black(), rng(0)))


def black(round: int = 0) -> ClientData:  # noqa: A002
    return shards(dataset([BLACK], [0]), [1]).data([0], round, stacked=False)


def assert_all(value: torch.Tensor, expected: float) -> None:
    torch.testing.assert_close(value, torch.full_like(value, expected), rtol=1e-5, atol=1e-6)


# -- by hand ------------------------------------------------------------------------------------------------------


def test_first_the_prompt_then_the_backbone() -> None:
    up, personal = BY_HAND.fit(TASK, server(), untouched(), black())
    # phase 1, w frozen: δ = 0 + ln 3 / 6 · 1/2, velocity = −1/2
    assert_all(personal["prompt.up"], LN3 / 12)
    assert_all(personal["prompt.down"], LN3 / 12)
    assert_all(personal["velocity.prompt.up"], -0.5)
    # phase 2, δ frozen: p = 3/4, so ∂/∂logits = (−1/4, 1/4); w moves by 0.8 · 1/4 · δ, the bias by 0.8 · 1/4
    assert_all(up["head.weight"][0], 1 + 0.2 * LN3 / 12)
    assert_all(up["head.weight"][1], -0.2 * LN3 / 12)
    torch.testing.assert_close(up["head.bias"], torch.tensor([0.2, -0.2]))


def test_momentum_of_the_prompt_lives_across_rounds() -> None:
    method = replace(BY_HAND, epochs=0)
    _, once = method.fit(TASK, server(), untouched(), black())
    up, twice = method.fit(TASK, server(), once, black(1))
    # round 2: velocity = 1/2 · (−1/2) − 1/4 = −1/2, δ = ln 3 / 12 + ln 3 / 6 · 1/2
    assert_all(twice["velocity.prompt.up"], -0.5)
    assert_all(twice["prompt.up"], LN3 / 6)
    torch.testing.assert_close(up, server(), rtol=0, atol=0)


def test_without_momentum_there_is_none_to_keep() -> None:
    method = replace(BY_HAND, epochs=0, prompt_momentum=0.0)
    start = untouched(method)
    assert set(start) == {"prompt.up", "prompt.down", "prompt.left", "prompt.right"}
    _, once = method.fit(TASK, server(), start, black())
    _, twice = method.fit(TASK, server(), once, black(1))
    assert set(twice) == set(start)
    assert_all(twice["prompt.up"], LN3 / 12 + LN3 / 6 / 4)


def test_jointly_both_move_from_where_they_started() -> None:
    up, personal = replace(BY_HAND, joint=True).fit(TASK, server(), untouched(), black())
    # one step from p = 1/2: δ as before; the prompted image is still black, so only the bias moves, by 0.8 · 1/2
    assert_all(personal["prompt.up"], LN3 / 12)
    assert_all(personal["velocity.prompt.up"], -0.5)
    torch.testing.assert_close(up["head.weight"], server()["head.weight"], rtol=0, atol=0)
    torch.testing.assert_close(up["head.bias"], torch.tensor([0.4, -0.4]))


def test_jointly_momentum_belongs_to_the_prompt_alone() -> None:
    method = replace(BY_HAND, joint=True, epochs=2)
    up, personal = method.fit(TASK, server(), untouched(), black())
    # step 2: logits (ln 3 + 0.4, −0.4), p(1) = 1 / (1 + 3 e^0.8)
    wrong = 1 / (1 + 3 * math.exp(0.8))
    assert_all(personal["velocity.prompt.up"], -0.25 - wrong)
    assert_all(personal["prompt.up"], LN3 / 12 + LN3 / 6 * (0.25 + wrong))
    torch.testing.assert_close(up["head.bias"], (0.4 + 0.8 * wrong) * torch.tensor([1.0, -1.0]))


def test_drift_is_the_mean_absolute_change_of_the_prompt() -> None:
    before = untouched()
    _, after = BY_HAND.fit(TASK, server(), before, black())
    assert_all(BY_HAND.measures(TASK, before, after)["prompt_drift"], LN3 / 12)
    mixed = before | {"prompt.up": torch.full((3, 1, 2), 2.0), "prompt.down": torch.full((3, 1, 2), -1.0)}
    stacked = BY_HAND.measures(TASK, tree.repeat(before, 2), tree.stack([mixed, before]))
    assert stacked["prompt_drift"].tolist() == [1.5, 0.0]


def test_the_mean_is_weighted_by_size() -> None:
    own = shards(dataset([BLACK] * 4, [0, 1, 1, 1]), [1, 3])
    method, clients = replace(BY_HAND, prompt_epochs=0, batch=4), torch.arange(2)
    personal = tree.repeat(untouched(), 2)
    up, _ = method.fit(TASK, method.download(TASK, server(), clients), personal, own.data([0, 1], 0, stacked=True))
    after = method.aggregate(TASK, server(), clients, up, method.weight(own.facts([0, 1])))
    # black images, no prompt: the bias moves by ±0.4, so (0.4 − 3 · 0.4) / 4
    torch.testing.assert_close(after["head.bias"], torch.tensor([-0.2, 0.2]))
    assert set(after) == set(server())


# -- every kind of prompt -----------------------------------------------------------------------------------------

VIT = TinyViT((3, 6, 6), 2, patch=3, width=8, depth=1, heads=2, mlp_ratio=1)
SIX = Linear(shape=(3, 6, 6), scale=0.3)
KINDS: list[tuple[Kind, Backbone, int]] = [
    ("frame", SIX, 2), ("patch", SIX, 3), ("random-patch", SIX, 3), ("tokens", VIT, 2), ("frame", VIT, 2),
]  # fmt: skip


def stage(kind: Kind, backbone: Backbone, size: int) -> tuple[PFedPT, Task]:
    method = PFedPT(prompt=kind, size=size, lr=0.05, epochs=2, prompt_lr=0.5, prompt_epochs=2, batch=2)
    return method, task(backbone, 3)


def six(method: PFedPT, where: Task, sizes: tuple[int, ...] = (5, 2, 3)) -> list[ClientData]:
    """Return three clients' 6×6 images: stacked, then one by one."""
    count = sum(sizes)
    data = dataset([20 * number for number in range(count)], [number % 2 for number in range(count)], side=6)
    own = shards(data, sizes, draws=method.draws(where))
    return [own.data(range(3), 2, stacked=True), *(own.data([client], 2, stacked=False) for client in range(3))]


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize(("kind", "backbone", "size"), KINDS)
def test_a_client_alone_does_what_it_does_in_the_stack(kind: Kind, backbone: Backbone, size: int, joint: bool) -> None:
    method, where = stage(kind, backbone, size)
    method = replace(method, joint=joint)
    together, *alone = six(method, where)
    down, start = method.init_server(where, rng()), method.init_client(where, alone[0], rng(0))
    up, personal = method.fit(where, tree.repeat(down, 3), tree.repeat(start, 3), together)
    drift = method.measures(where, tree.repeat(start, 3), personal)["prompt_drift"]
    for client in range(3):
        own_up, own = method.fit(where, down, start, alone[client])
        torch.testing.assert_close(tree.row(up, client), own_up, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(tree.row(personal, client), own, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(
            drift[client], method.measures(where, start, own)["prompt_drift"], rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize(("kind", "backbone", "size"), KINDS)
def test_the_prompt_stays_home_and_everything_learns(kind: Kind, backbone: Backbone, size: int) -> None:
    method, where = stage(kind, backbone, size)
    _, data, *_ = six(method, where)
    down, start = method.init_server(where, rng()), method.init_client(where, data, rng(0))
    copies = [tree.map(torch.clone, part) for part in (down, start)]
    up, personal = method.fit(where, down, start, data)
    assert list(up) == list(down)
    assert list(personal) == list(start)
    assert not set(up) & set(personal)
    assert {name: value.shape for name, value in personal.items()} == {
        name: value.shape for name, value in start.items()
    }
    assert not any(personal[name].equal(start[name]) for name in start)
    assert not up["head.weight"].equal(down["head.weight"])
    torch.testing.assert_close([down, start], copies, rtol=0, atol=0)


@pytest.mark.parametrize(("kind", "backbone", "size"), KINDS)
def test_every_client_starts_with_the_same_prompt(kind: Kind, backbone: Backbone, size: int) -> None:
    method, where = stage(kind, backbone, size)
    _, data, *_ = six(method, where)
    first, second, other = (method.init_client(where, data, source) for source in (rng(0), rng(1), rng(0, seed=1)))
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert not any(first[name].equal(other[name]) for name in first if name.startswith("prompt."))
    assert all((first[name] == 0).all() for name in first if name.startswith("velocity."))


def test_the_frame_has_720_numbers_by_default() -> None:
    start = PFedPT().init_client(task(Linear(shape=(3, 32, 32))), black(), rng(0))
    assert sum(start[name].numel() for name in start if name.startswith("prompt.")) == 720


def test_predictions_are_those_of_prompted_images() -> None:
    method, where = stage("frame", SIX, 2)
    own = method.init_server(where, rng()) | method.init_client(where, black(), rng(0))
    x = torch.rand(4, 3, 6, 6)
    frame = pixels.frame({name: own[f"prompt.{name}"] for name in ("up", "down", "left", "right")})
    assert method.predict(where, own, {"x": x}).equal(SIX(own, x + frame))


def test_tokens_go_to_the_backbone() -> None:
    method, where = stage("tokens", VIT, 2)
    own = method.init_server(where, rng()) | method.init_client(where, black(), rng(0))
    x = torch.rand(4, 3, 6, 6)
    assert own["prompt.tokens"].shape == (2, 8)
    assert method.predict(where, own, {"x": x}).equal(VIT(own, x, tokens=own["prompt.tokens"]))


def test_a_random_patch_lies_where_the_batch_says() -> None:
    method, where = stage("random-patch", SIX, 3)
    assert method.draws(where) == {"where": Draw((2,), per="batch")}
    own = method.init_server(where, rng()) | method.init_client(where, black(), rng(0))
    x = torch.zeros(2, 3, 6, 6)
    moved = torch.zeros(3, 6, 6)
    moved[:, 2:5, 1:4] = own["prompt.patch"]
    # 0.7 · 3 = 2.1 → row 2; 0.4 · 3 = 1.2 → column 1
    found = method.predict(where, own, {"x": x, "where": torch.tensor([0.7, 0.4])})
    torch.testing.assert_close(found, SIX(own, x + moved))


def test_a_fixed_patch_needs_no_draw_and_dropout_keeps_its_own() -> None:
    assert PFedPT(prompt="patch").draws(TASK) == {}
    net = ConvNet((3, 14, 14), 2, channels=(3, 4), kernel=3, hidden=(5,), dropout=(0.5,))
    assert set(PFedPT(prompt="random-patch").draws(task(net))) == {"dropout1", "where"}


def test_tokens_need_a_transformer() -> None:
    with pytest.raises(PromptFedError, match=r"backbone\.name=vit"):
        PFedPT(prompt="tokens").init_client(task(ConvNet((3, 32, 32), 2)), black(), rng(0))


# -- the rest -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("drop_last", "images"), [(False, 3 * 5 + 2 * 5), (True, 3 * 4 + 2 * 4)])
def test_epochs_and_drop_last_reach_both_phases(drop_last: bool, images: int) -> None:
    own = numbered([5])
    method = replace(BY_HAND, prompt_epochs=3, epochs=2, batch=2, drop_last=drop_last)
    method.fit(TASK, server(), untouched(), own.data([0], 0, stacked=False))
    assert own.pool.seen == images


def test_there_is_no_model_without_a_client() -> None:
    assert PFedPT().deploy(TASK, server()) == {}


def test_presets_are_options() -> None:
    made = {name: make(PFedPT, preset, "method") for name, preset in PFedPT.presets.items()}
    assert made == {
        "paper": PFedPT(size=4, prompt_momentum=0.0, lr=0.005),
        "code": PFedPT(size=2, prompt_momentum=0.5, lr=0.05, drop_last=True),
    }


def test_pictures_show_the_prompt() -> None:
    method, where = stage("frame", SIX, 2)
    (picture,) = method.pictures(where, method.init_client(where, black(), rng(0))).values()
    assert picture.shape == (3, 6, 6)
    assert (picture[:, 2:4, 2:4] == 0).all()
    method, where = stage("random-patch", SIX, 3)
    (picture,) = method.pictures(where, method.init_client(where, black(), rng(0))).values()
    assert (picture != 0).sum() == 27
    method, where = stage("tokens", VIT, 2)
    assert method.pictures(where, method.init_client(where, black(), rng(0))) == {}


@pytest.mark.parametrize(("key", "value"), [("batch", 0), ("batch", -1), ("epochs", -1), ("prompt_epochs", -1)])
def test_numbers_that_cannot_train_are_refused(key: str, value: int) -> None:
    with pytest.raises(PromptFedError, match=f"method.{key} must be at least"):
        make(PFedPT, {key: value}, "method")
