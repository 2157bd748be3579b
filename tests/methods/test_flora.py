"""FLoRA and FedEx-LoRA: the mean of products is exact, in one round by hand and beside FedAvg of the matrices."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from promptfed.core import tree
from promptfed.core.method import Task
from promptfed.core.tree import Tree
from promptfed.methods.fed_lora import FedITLoRA
from promptfed.methods.fedavg import FedAvg
from promptfed.methods.flora import FedExLoRA, FLoRA
from support.adapted import ONE, A, B, Bent, Wide, photographs
from support.toy_clip import NAMES, NET, SHAPE, assert_close, normal
from support.toys import featured, rng, task

BOTH = (FLoRA, FedExLoRA)
REST = f"{ONE}.rest"
CLIP = Task(NET, NAMES, 3)
THREE = torch.arange(3)
WRONG = 1 / (1 + math.e)  # what softmax (1, 0) gives to the second


def a_round(method: FedITLoRA, server: Tree, number: int = 0) -> Tree:
    """Return the server's tree after a round of three unequal clients."""
    data = photographs([5, 2, 4]).data(range(3), number, stacked=True)
    up, _ = method.fit(CLIP, method.download(CLIP, server, THREE), {}, data)
    return method.aggregate(CLIP, server, THREE, up, method.weight(data.facts))


def whole(method: FedITLoRA, server: Tree, name: str) -> Tensor:
    """Return what a model has in all beside a matrix."""
    found = method.beside(server)
    rest = found.get(f"{name}.rest", torch.zeros(()))
    return found[f"{name}.lora_b"] @ found[f"{name}.lora_a"] + rest if f"{name}.lora_b" in found else rest


# -- by hand --------------------------------------------------------------------------------------------------------

UP = {
    A: torch.tensor([[[1.0, 0.0]], [[0.0, 2.0]]]),
    B: torch.tensor([[[3.0], [0.0]], [[0.0], [6.0]]]),
}
WEIGHTS = torch.tensor([1.0, 2.0])  # of products [[3, 0], [0, 0]] and [[0, 0], [0, 12]]
MEAN = torch.tensor([[1.0, 0.0], [0.0, 8.0]])
START = torch.tensor([[0.5, 0.0], [0.25, 0.0]])


def test_flora_adds_the_mean_of_products_and_draws_anew() -> None:
    method, bent = FLoRA(rank=1, alpha=0.5, parts="attention", towers="image"), task(Bent())
    server = method.init_server(bent, rng())
    up = UP | {
        f"block0.{part}.{half}": torch.zeros_like(UP[f"{ONE}.{half}"])
        for part in "qkv"
        for half in ("lora_a", "lora_b")
    }
    after = method.aggregate(bent, server | {REST: START}, torch.arange(2), up, WEIGHTS)
    assert_close(after[REST], START + 0.5 * MEAN)
    assert not after["block0.q.rest"].any()
    assert not after[A].equal(server[A])
    again = method.aggregate(bent, server, torch.arange(2), up, WEIGHTS)
    assert again[A].equal(after[A])  # by the number of the round abent
    assert not method.aggregate(bent, after, torch.arange(2), up, WEIGHTS)[A].equal(after[A])


def test_fedex_adds_what_the_means_lack() -> None:
    method, bent = FedExLoRA(rank=1, alpha=0.5), task(Bent())
    server = {A: torch.zeros(1, 2), B: torch.zeros(2, 1), REST: START}
    after = method.aggregate(bent, server, torch.arange(2), UP, WEIGHTS)
    assert_close(after[A], torch.tensor([[1 / 3, 4 / 3]]))
    assert_close(after[B], torch.tensor([[1.0], [4.0]]))
    product = torch.tensor([[1 / 3, 4 / 3], [4 / 3, 16 / 3]])
    assert_close(after[REST], START + 0.5 * (MEAN - product))
    assert_close(whole(method, after, ONE), START + 0.5 * MEAN)


# -- identities -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [{}, {"optimiser": "sgd", "lr": 0.5, "parts": "all", "weight_decay": 0.0}])
def test_fedex_has_floras_model_after_a_round_from_the_same_start(given: dict[str, Any]) -> None:
    rates: dict[str, Any] = {"lr": 0.02, "batch": 3, "epochs": 2} | given
    methods = FLoRA(**rates), FedExLoRA(**rates), FedITLoRA(**rates)
    flora, fedex, fedit = (a_round(method, method.init_server(CLIP, rng())) for method in methods)
    names = [name.removesuffix(".rest") for name in flora if name.endswith(".rest")]
    for name in names:
        assert_close(whole(methods[1], fedex, name), flora[f"{name}.rest"], 1e-6)
        # and what FedIT lacks is what FedEx adds
        assert_close(whole(methods[2], fedit, name) + fedex[f"{name}.rest"], flora[f"{name}.rest"], 1e-5)
    assert min(flora[f"{name}.rest"].norm() for name in names if name.endswith(".v")) > 1e-3
    assert min(fedex[f"{name}.rest"].norm() for name in names if name.endswith(".v")) > 1e-5


def test_one_step_of_flora_is_fedavg_of_the_matrix() -> None:
    # with A the unit matrix and s = 1, the first gradient of B is that of W
    data = featured(normal(9, 2), [n % 2 for n in range(9)], [3, 6]).data([0, 1], 0, stacked=True)
    bent, clients = task(Bent(sharpness=5.0)), torch.arange(2)
    plain = FedAvg(lr=0.3, epochs=1, batch=8)
    start = plain.init_server(bent, rng())
    up, _ = plain.fit(bent, plain.download(bent, start, clients), {}, data)
    wanted = plain.aggregate(bent, start, clients, up, plain.weight(data.facts))[f"{ONE}.weight"]
    method = FLoRA(rank=2, alpha=2.0, scaling="rank", optimiser="sgd", weight_decay=0.0, lr=0.3, batch=8)
    server = {A: torch.eye(2), REST: torch.zeros(2, 2)}
    up, _ = method.fit(bent, tree.repeat(server, 2), {}, data)
    assert_close(
        method.scale * torch.einsum("c,coi->oi", data.facts["size"] / 9, up[B] @ up[A]), wanted - torch.eye(2), 1e-6
    )
    assert (wanted - torch.eye(2)).norm() > 0.05


def test_what_has_been_added_moves_the_frozen_matrix() -> None:
    method, x = FLoRA(towers="image"), normal(3, *SHAPE)
    server = method.init_server(CLIP, rng())
    rests = {name: 0.2 * normal(*server[name].shape, seed=n) for n, name in enumerate(server) if name.endswith(".rest")}
    moved = {}
    for block in ("block0", "block1"):
        joint = torch.cat([rests[f"{block}.{part}.rest"] for part in "qkv"])
        moved[f"{block}.qkv.weight"] = NET.image.frozen[f"{block}.qkv.weight"] + joint
    wanted = NET.scale * F.normalize(NET.features(moved, x), dim=-1) @ NET.zero_shot.mT
    assert_close(method.predict(CLIP, method.deploy(CLIP, server | rests), {"x": x}), wanted, 1e-3)
    # a client in training has a pair beside that
    fresh = {name.replace("rest", "lora_b"): torch.zeros(16, 2) for name in rests}
    assert_close(method.predict(CLIP, server | rests | fresh, {"x": x}), wanted, 1e-3)


@pytest.mark.parametrize("kind", BOTH)
def test_a_second_round_goes_on_from_the_first(kind: type[FLoRA]) -> None:
    method = kind(lr=0.02, batch=3, parts="qv")
    first = a_round(method, method.init_server(CLIP, rng()))
    second = a_round(method, first, 1)
    name = "block1.v"
    assert not whole(method, second, name).allclose(whole(method, first, name), atol=1e-4)
    assert second.keys() == first.keys()


# -- what travels ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "comes"), [(FLoRA, 92_160 + 30_670_848), (FedExLoRA, 184_320 + 30_670_848)])
def test_the_sizes_at_clips_width(kind: type[FLoRA], comes: int) -> None:
    wide, method = task(Wide()), kind()
    down = method.download(wide, method.init_server(wide, rng()), torch.arange(1))
    assert tree.floats(down) == comes
    assert method.init_client(wide, photographs([3]).data([0], 0, stacked=False), rng(0)) == {}


@pytest.mark.parametrize("kind", BOTH)
def test_both_halves_are_sent_and_nothing_else(kind: type[FLoRA]) -> None:
    method, data = kind(head="own", parts="qv"), photographs([3]).data([0], 0, stacked=False)
    down = tree.row(method.download(CLIP, method.init_server(CLIP, rng()), torch.arange(1)), 0)
    up, kept = method.fit(CLIP, down, method.init_client(CLIP, data, rng(0)), data)
    names = [f"block{number}.{part}" for number in (0, 1) for part in "qv"]
    assert up.keys() == {f"{name}.{half}" for name in names for half in ("lora_a", "lora_b")}
    assert kept.keys() == {"head.weight", "head.bias"}
    assert method.traits.needs_rows
    assert method.deploy(CLIP, down) == {}


@pytest.mark.parametrize("kind", BOTH)
def test_the_momentum_of_sgd_neither_travels_nor_stays(kind: type[FLoRA]) -> None:
    # the gradient of B's other row is WRONG / |x| times s A x, 3 / 2 WRONG, and hardly changes in a short step; the
    # second of two steps goes half of the first one further
    data = featured(torch.tensor([[2.0, 0.0]]), [0], [1]).data([0], 0, stacked=False)
    rates: dict[str, Any] = {"optimiser": "sgd", "momentum": 0.5, "lr": 1e-4, "epochs": 2, "weight_decay": 0.0}
    method, down = kind(rank=1, alpha=0.5, **rates), {A: torch.tensor([[3.0, 1.0]]), REST: torch.zeros(2, 2)}
    up, kept = method.fit(task(Bent()), down, {}, data)
    assert up.keys() == {A, B}
    assert kept == {}
    assert_close(up[B] / 1e-4, torch.tensor([[0.0], [-2.5 * 1.5 * WRONG]]), 1e-3)


@pytest.mark.parametrize("kind", BOTH)
def test_a_client_abent_does_what_it_does_in_the_stack(kind: type[FLoRA]) -> None:
    method, data = kind(batch=3, epochs=2, lr=0.01), photographs([5, 1, 4])
    down = method.download(CLIP, a_round(method, method.init_server(CLIP, rng())), THREE)
    up, _ = method.fit(CLIP, down, {}, data.data(range(3), 1, stacked=True))
    for client in range(3):
        abent, _ = method.fit(CLIP, tree.row(down, client), {}, data.data([client], 1, stacked=False))
        torch.testing.assert_close(tree.row(up, client), abent, rtol=1e-3, atol=1e-4)
