"""FedIT-, FFA- and FedSA-LoRA: a round by hand, FFA as FedAvg of a matrix, and what travels."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from promptfed.core import local, ops, tree
from promptfed.core.errors import PromptFedError
from promptfed.core.method import Task
from promptfed.core.options import make
from promptfed.core.tree import Tree
from promptfed.methods.fed_lora import FedITLoRA, FedSALoRA, FFALoRA
from promptfed.methods.fedavg import FedAvg
from support.adapted import ONE, A, B, Bent, Wide, photographs
from support.toy_clip import NAMES, NET, SHAPE, assert_close, normal
from support.toys import FrozenTokens, featured, rng, task

KINDS = (FedITLoRA, FFALoRA, FedSALoRA)
WRONG = 1 / (1 + math.e)  # what softmax (1, 0) gives to the second
PLAIN: dict[str, Any] = {"optimiser": "sgd", "weight_decay": 0.0, "parts": "attention", "towers": "image"}
CLIP = Task(NET, NAMES, 3)


# -- by hand --------------------------------------------------------------------------------------------------------


def a_round(method: FedITLoRA, down: Tree, personal: Tree) -> tuple[Tree, Tree, Tree]:
    """Return up, personal and the next server tree of clients with one image (2, 0) and two images (0, 5)."""
    own = featured(torch.tensor([[2.0, 0.0], [0.0, 5.0], [0.0, 5.0]]), [0, 1, 1], [1, 2])
    clients, bent = torch.arange(2), task(Bent())
    given = method.download(bent, down, clients)
    up, kept = method.fit(bent, given, tree.repeat(personal, 2), own.data([0, 1], 0, stacked=True))
    return up, kept, method.aggregate(bent, down, clients, up, method.weight(own.facts([0, 1])))


def test_a_round_by_hand() -> None:
    # at B = 0 a feature is the image x itself. The loss turns it away from the wrong word by WRONG / |x|, which times
    # s A x = 3, or 5 / 2, is the gradient of B's other row: 3 / 2 WRONG, or WRONG / 2. That of A is 0, as B is
    rates: dict[str, Any] = {"rank": 1, "alpha": 0.5, "lr": 1.0, **PLAIN}
    a, b = {A: torch.tensor([[3.0, 1.0]])}, {B: torch.zeros(2, 1)}
    moved = torch.tensor([[[0.0], [-1.5 * WRONG]], [[-0.5 * WRONG], [0.0]]])
    mean = torch.tensor([[-1.0 * WRONG / 3], [-0.5 * WRONG]])  # by images

    up, kept, after = a_round(FedITLoRA(**rates), a | b, {})
    assert_close(up[B], moved)
    assert_close(after[B], mean)
    assert up[A].equal(a[A].expand(2, 1, 2))
    assert kept == {}

    up, kept, after = a_round(FFALoRA(**rates), a | b, a)
    assert up.keys() == {B}
    assert_close(after[B], mean)
    assert after[A].equal(a[A])
    assert kept[A].equal(a[A].expand(2, 1, 2))

    up, kept, after = a_round(FedSALoRA(**rates), a, b)
    assert up[A].equal(a[A].expand(2, 1, 2))
    assert after[A].equal(a[A])
    assert_close(kept[B], moved)

    up, kept, after = a_round(FedSALoRA(share="b", **rates), b, a)
    assert_close(after[B], mean)
    assert kept[A].equal(a[A].expand(2, 1, 2))


def test_the_half_that_moves_when_the_other_is_not_zero() -> None:
    # A x = 0 for the first client, so its feature stays x, and A gets s Bᵀ (0, WRONG / 2) times x = (2, 0)
    rates: dict[str, Any] = {"rank": 1, "alpha": 0.5, "lr": 1.0, **PLAIN}
    down = {A: torch.tensor([[0.0, 1.0]]), B: torch.tensor([[0.0], [4.0]])}
    up, _, _ = a_round(FedITLoRA(**rates), down, {})
    assert_close(up[A][0], torch.tensor([[-2.0 * WRONG, 1.0]]))
    assert up[B][0].equal(down[B])
    up, kept, _ = a_round(FFALoRA(**rates), down, tree.pick(down, [A]))
    assert up[B][0].equal(down[B])  # A may not move here
    assert kept[A][0].equal(down[A])


def test_the_scale() -> None:
    assert FedITLoRA(rank=4, alpha=3.0).scale == 1.5
    assert FedITLoRA(rank=4, alpha=3.0, scaling="rank").scale == 0.75
    assert FedITLoRA().scale == pytest.approx(2**-0.5)
    assert make(FedITLoRA, FedITLoRA.presets["fedsa"], "method").scale == 2.0


# -- identities -----------------------------------------------------------------------------------------------------


def test_ffa_at_full_rank_is_fedavg_of_the_matrix() -> None:
    # with A the unit matrix and s = 1, W + B moves as W does. Numbers are rounded elsewhere, so not to the last bit
    data = featured(normal(11, 2), [n % 2 for n in range(11)], [4, 7])
    bent, clients, eye = task(Bent(sharpness=5.0)), torch.arange(2), {A: torch.eye(2)}
    whole = FedAvg(lr=0.3, epochs=2, batch=4, momentum=0.9)
    ffa = FFALoRA(rank=2, alpha=2.0, scaling="rank", lr=0.3, epochs=2, batch=4, momentum=0.9, **PLAIN)
    one, other = whole.init_server(bent, rng()), eye | {B: torch.zeros(2, 2)}
    for number in range(3):
        dealt = data.data([0, 1], number, stacked=True)
        up, _ = whole.fit(bent, whole.download(bent, one, clients), {}, dealt)
        one = whole.aggregate(bent, one, clients, up, whole.weight(dealt.facts))
        up, _ = ffa.fit(bent, ffa.download(bent, other, clients), tree.repeat(eye, 2), dealt)
        other = ffa.aggregate(bent, other, clients, up, ffa.weight(dealt.facts))
        assert_close(torch.eye(2) + other[B], one[f"{ONE}.weight"], 1e-6)
    assert other[B].abs().min() > 0.05


def test_and_so_it_is_inside_a_transformer() -> None:
    method = FFALoRA(rank=16, alpha=16.0, scaling="rank", last=1, lr=0.5, epochs=2, batch=4, **PLAIN)
    data = photographs([6]).data([0], 0, stacked=False)
    down = method.init_server(CLIP, rng())
    fixed = {name: torch.eye(16) for name in down if name.endswith("lora_a")}
    up, _ = method.fit(CLIP, tree.drop(down, fixed), fixed, data)

    def objective(task: Task, start: Tree, params: Tree, batch: Tree) -> Tensor:
        found = torch.nn.functional.normalize(NET.features(params, batch["x"]), dim=-1)
        return ops.cross_entropy(NET.scale * found @ NET.zero_shot.mT, batch["y"], batch["mask"])

    weights = tree.pick(NET.image.frozen, ["block1.qkv.weight", "block1.out.weight"])
    moved = local.sgd(objective, CLIP, data.batches(size=4, epochs=2), start={}, params=weights, lr=0.5)
    joint = torch.cat([up[f"block1.{part}.lora_b"] for part in "qkv"])
    assert_close(joint, moved["block1.qkv.weight"] - weights["block1.qkv.weight"], 1e-4)
    assert_close(up["block1.out.lora_b"], moved["block1.out.weight"] - weights["block1.out.weight"], 1e-4)
    assert up["block1.v.lora_b"].norm() > 0.1


def test_the_mean_of_products_is_a_product_of_means_only_where_a_half_is_fixed() -> None:
    a, b, weights, clients = normal(3, 2, 5), normal(3, 4, 2, seed=1), torch.tensor([1.0, 2.0, 3.0]), torch.arange(3)
    both = FedITLoRA().aggregate(CLIP, {}, clients, {A: a, B: b}, weights)
    fixed = FFALoRA().aggregate(CLIP, {A: a[0]}, clients, {B: b}, weights)
    share = (weights / 6)[:, None, None]
    assert (both[B] @ both[A] - (share * (b @ a)).sum(0)).norm() > 0.5
    assert_close(fixed[B] @ fixed[A], (share * (b @ a[0])).sum(0))


def test_by_sgd_the_first_step_leaves_a_as_it_was_drawn() -> None:
    # a known trait of the start B = 0: what FedSA shares after one step is the draw
    method = FedSALoRA(batch=6, lr=0.5, **PLAIN)
    down, data = method.init_server(CLIP, rng()), photographs([6]).data([0], 0, stacked=False)
    up, kept = method.fit(CLIP, down, method.init_client(CLIP, data, rng(0)), data)
    assert all(up[name].equal(down[name]) for name in down)
    assert all(value.norm() > 0 for value in kept.values())


@pytest.mark.parametrize("kind", KINDS)
def test_at_first_it_is_clip(kind: type[FedITLoRA]) -> None:
    method, x = kind(), normal(4, *SHAPE)
    data = photographs([3]).data([0], 0, stacked=False)
    params = method.init_server(CLIP, rng()) | method.init_client(CLIP, data, rng(0))
    found = method.predict(CLIP, params, {"x": x})
    wanted = NET.scale * torch.nn.functional.normalize(NET.features({}, x), dim=-1) @ NET.zero_shot.mT
    assert_close(found, wanted, 1e-4)


# -- what travels ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "travels", "stays"),
    [
        (FedITLoRA(), 184_320, 0),
        (FedITLoRA(towers="image"), 110_592, 0),
        (FedITLoRA(rank=4), 368_640, 0),
        (make(FedITLoRA, FedITLoRA.presets["equal"], "method"), 9_216, 0),
        (FFALoRA(), 92_160, 92_160),
        (FedSALoRA(), 92_160, 92_160),
        (FedSALoRA(share="b"), 92_160, 92_160),
    ],
)
def test_the_sizes_at_clips_width(method: FedITLoRA, travels: int, stays: int) -> None:
    wide = task(Wide())
    down = method.download(wide, method.init_server(wide, rng()), torch.arange(1))
    data = photographs([3]).data([0], 0, stacked=False)
    assert tree.floats(down) == travels
    assert tree.floats(method.init_client(wide, data, rng(0))) == stays


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_received_is_sent(kind: type[FedITLoRA]) -> None:
    method, data = kind(head="shared"), photographs([3]).data([0], 0, stacked=False)
    down = tree.row(method.download(CLIP, method.init_server(CLIP, rng()), torch.arange(1)), 0)
    up, _ = method.fit(CLIP, down, method.init_client(CLIP, data, rng(0)), data)
    assert up.keys() == down.keys()
    assert {"head.weight", "head.bias"} <= up.keys()


def test_clients_draw_the_a_that_the_server_has() -> None:
    method, data = FFALoRA(), photographs([3]).data([0], 0, stacked=False)
    server = method.init_server(CLIP, rng())
    for client in range(2):
        own = method.init_client(CLIP, data, rng(client))
        assert all(own[name].equal(server[name]) for name in own)
    assert method.deploy(CLIP, server) is server


def test_which_have_a_model_without_a_client() -> None:
    server = {A: torch.ones(1, 2)}
    assert FedITLoRA().deploy(CLIP, server) == server
    assert FedITLoRA(head="own").deploy(CLIP, server) == {}
    assert FedSALoRA().deploy(CLIP, server) == {}
    assert FedSALoRA(share="b").deploy(CLIP, server) == {}


def test_which_matrices_have_a_pair() -> None:
    def found(**given: Any) -> set[str]:
        return {name.rpartition(".")[0] for name in FedITLoRA(**given).init_server(CLIP, rng())}

    assert found(parts="qv", last=1) == {"block1.q", "block1.v", "text.block2.q", "text.block2.v"}
    assert found(parts="attention", towers="text", last=1) == {f"text.block2.{p}" for p in ("q", "k", "v", "out")}
    assert len(found(parts="all")) == 6 * (2 + 3)
    assert found(parts="qv", last=9) == found(parts="qv")
    assert found(parts="qv", head="shared") == {f"block{n}.{p}" for n in (0, 1) for p in "qv"} | {"head"}


# -- one and many ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_abent_does_what_it_does_in_the_stack(kind: type[FedITLoRA]) -> None:
    method, data = kind(batch=3, epochs=2, lr=0.01), photographs([5, 1, 4])
    server = method.init_server(CLIP, rng())
    down = method.download(CLIP, server, torch.arange(3))
    starts = [method.init_client(CLIP, data.data([n], 0, stacked=False), rng(n)) for n in range(3)]
    up, kept = method.fit(CLIP, down, tree.stack(starts), data.data(range(3), 0, stacked=True))
    for client in range(3):
        abent = method.fit(CLIP, tree.row(down, client), starts[client], data.data([client], 0, stacked=False))
        torch.testing.assert_close((tree.row(up, client), tree.row(kept, client)), abent, rtol=1e-3, atol=1e-4)


def test_text_pairs_abent_leave_the_images_as_they_are() -> None:
    assert FedITLoRA(towers="text").traits.reads == "features"
    assert FedITLoRA().traits.reads == FedITLoRA(towers="image").traits.reads == "pixels"
    assert FedITLoRA().traits.open
    assert not FedITLoRA(head="own").traits.open


def test_a_number_of_steps() -> None:
    method = FedITLoRA(steps=1, batch=4, lr=0.5, **PLAIN)
    data, down = photographs([8]).data([0], 0, stacked=False), method.init_server(CLIP, rng())
    up, _ = method.fit(CLIP, down, {}, data)
    assert all(up[name].equal(down[name]) for name in down if name.endswith("lora_a"))  # the second would move A


# -- refusals -------------------------------------------------------------------------------------------------------


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(PromptFedError, match=r"^method\.head=own sees no texts; set method\.towers=image, or "):
        FedITLoRA(head="own", towers="text").init_server(CLIP, rng())
    with pytest.raises(PromptFedError, match=r"^This method needs a text tower beside the image tower; set "):
        FedITLoRA().init_server(task(FrozenTokens()), rng())
    with pytest.raises(PromptFedError, match=r"^This method needs a frozen transformer; set backbone\.name=vit"):
        FedITLoRA(head="own").init_server(task(FrozenTokens()), rng())
    with pytest.raises(PromptFedError, match=r'^Unknown method\.share "c"'):
        make(FedSALoRA, {"share": "c"}, "method")
