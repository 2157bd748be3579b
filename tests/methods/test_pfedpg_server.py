"""pFedPG's server: the generators by hand, the sign of its step, Adam, newcomers."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from promptfed.core import tree
from promptfed.core.tree import Tree
from promptfed.methods.pfedpg import PFedPG
from support.small_generators import BOTH, GENERATORS, LN3, TASK, Tokens8, attending, eye, single
from support.toys import rng, task


def delta(*values: float) -> Tree:
    """Return what clients with one token of width 1 report."""
    return {"delta": torch.tensor(values).view(-1, 1, 1)}


def step(method: PFedPG, server: Tree, up: Tree, clients: Tensor = BOTH) -> Tree:
    return method.aggregate(TASK, server, clients, up, torch.ones(len(clients)))


# -- the generator G ----------------------------------------------------------------------------------------------


def test_cross_attention_by_hand() -> None:
    # the first asks with logits (ln 3, 0), so attends (3/4, 1/4); V O maps the tokens to (0, 4) and (8, 0)
    found = PFedPG(tokens=2).generate(attending(), BOTH)
    torch.testing.assert_close(found[0], eye(1, 1) + torch.tensor([2.0, 3.0]))
    torch.testing.assert_close(found[1], eye(1, 1) + torch.tensor([4.0, 2.0]))  # (1/2, 1/2)


def test_cross_attention_of_another_width_by_hand() -> None:
    # all maps are ones of width 4: q kᵀ / √4 = 4 b / 2, so the logits of tokens 0 and ln 3 / 2 are 0 and ln 3
    server = {
        "basis": torch.tensor([[0.0], [LN3 / 2]]),
        "descriptor": torch.ones(1, 1, 1),
        **{name: torch.ones(1, 4) for name in ("query", "key", "value")},
        "out": torch.ones(4, 1),
    }
    found = PFedPG(tokens=2, width=4).generate(server, torch.tensor([0]))
    torch.testing.assert_close(found[0], torch.tensor([[1.5 * LN3], [2 * LN3]]))  # b + 3/4 · 4 · ln 3 / 2


def test_one_descriptor_moves_all_tokens_alike_and_one_per_token_does_not() -> None:
    server = attending()
    moved = PFedPG(tokens=2).generate(server, BOTH) - server["basis"]
    torch.testing.assert_close(moved[:, 0], moved[:, 1])
    server["descriptor"] = server["descriptor"].view(1, 2, 2)  # the two clients' rows are now one client's
    found = PFedPG(tokens=2, descriptor_tokens="each").generate(server, torch.tensor([0]))
    torch.testing.assert_close(found[0], torch.tensor([[1.0 + 2, 3], [4, 1.0 + 2]]))


def test_adain_by_hand() -> None:
    # the token has mean 1 and deviation √3, the descriptors have means 3 and 0 and deviations 2 and 1
    server = {
        "basis": torch.tensor([[0.0, 0.0, 3.0]]),
        "descriptor": torch.tensor([[[1.0, 3.0, 5.0]], [[-1.0, 0.0, 1.0]]]),
    }
    found = PFedPG(tokens=1, generator="adain").generate(server, BOTH)
    plain = torch.tensor([[-1.0, -1.0, 2.0]]) / math.sqrt(3)
    torch.testing.assert_close(found, torch.stack([2 * plain + 3, plain]))


@pytest.mark.parametrize(("descriptors", "bound"), [("unit", 1.0), ("basis", math.sqrt(6 / (768 + 8)))])
def test_descriptors_are_uniform_in_their_range(descriptors: str, bound: float) -> None:
    method, draw = PFedPG(descriptors=descriptors), torch.Generator().manual_seed(0)  # type: ignore[arg-type]
    rows = method._descriptors(task(Tokens8()), 2000, draw)
    assert rows.shape[:2] == (2000, 1)
    assert 0.99 * bound < rows.abs().max() <= bound
    torch.testing.assert_close(rows.std(), torch.tensor(bound / math.sqrt(3)), rtol=0.03, atol=0)


def test_with_one_token_everyone_gets_the_same_prompt() -> None:
    method = PFedPG(tokens=1)
    server = method.init_server(task(Tokens8()), rng())
    first, second = method.generate(server, BOTH)
    torch.testing.assert_close(first, second)
    assert not server["descriptor"][0].equal(server["descriptor"][1])


def test_mlp_by_hand() -> None:
    server = {
        "descriptor": torch.tensor([[[1.0, -1.0]], [[-1.0, 0.0]]]),
        "mlp1": torch.tensor([[1.0, -1.0], [0.0, 0.0]]),  # (1, −1) and (−1, 1), of which ReLU leaves (1, 0), (0, 1)
        "mlp2": torch.tensor([[2.0, 0.0], [-5.0, -5.0]]),  # (2, 0) and (−5, −5), so (0, 0)
        "mlp3": torch.tensor([[1.0, -3.0], [0.0, 0.0]]),  # (2, −6), so (2, 0)
        "mlp4": torch.tensor([[1.0, 2.0, 3.0, 4.0], [9.0, 9.0, 9.0, 9.0]]),
    }
    found = PFedPG(tokens=2, generator="mlp").generate(server, BOTH)
    torch.testing.assert_close(found, torch.tensor([[[2.0, 4.0], [6.0, 8.0]], [[0.0, 0.0], [0.0, 0.0]]]))


def test_without_a_generator_everyone_gets_the_basis() -> None:
    server = {"basis": torch.tensor([[1.0, 2.0]])}
    assert PFedPG(generator="none").generate(server, BOTH).tolist() == [[[1.0, 2.0]], [[1.0, 2.0]]]


def test_zero_out_begins_with_the_basis() -> None:
    method, where = PFedPG(zero_out=True), task(Tokens8(), 3)
    server = method.init_server(where, rng())
    down = method.download(where, server, torch.arange(3))
    assert down["prompt"].equal(server["basis"].expand(3, -1, -1))
    plain = PFedPG().download(where, PFedPG().init_server(where, rng()), torch.arange(3))["prompt"]
    assert not plain[0].equal(plain[1])


def test_clients_get_their_own_prompts_in_any_order() -> None:
    method = PFedPG(tokens=2)
    assert method.generate(attending(), torch.tensor([1, 0])).equal(method.generate(attending(), BOTH).flip(0))


@pytest.mark.parametrize("kind", GENERATORS)
@pytest.mark.parametrize("tokens", [1, 3])
def test_the_servers_first_tree(kind: str, tokens: int) -> None:
    method = PFedPG(tokens=tokens, **GENERATORS[kind])
    server = method.init_server(task(Tokens8(), 5), rng())
    rows, wide = tokens if "each" in kind else 1, 2 if "narrow" in kind else 8
    maps = {"query": (8, wide), "key": (8, wide), "value": (8, wide), "out": (wide, 8)}
    hidden = {"mlp1": (8, 100), "mlp2": (100, 100), "mlp3": (100, 100), "mlp4": (100, tokens * 8)}
    wanted: dict[str, tuple[int, ...]] = {} if method.generator == "mlp" else {"basis": (tokens, 8)}
    wanted |= {} if method.generator == "none" else {"descriptor": (5, rows, 8)}
    wanted |= {"cross-attention": maps, "mlp": hidden}.get(method.generator, {})
    assert {name: tuple(x.shape) for name, x in server.items()} == wanted
    assert all(x.abs().max() <= 1 for x in server.values())


# -- the server's step --------------------------------------------------------------------------------------------


def test_the_step_without_a_generator_by_hand() -> None:
    method = PFedPG(tokens=1, generator="none", server_lr=0.1)
    server = {"basis": torch.tensor([[1.0]])}
    torch.testing.assert_close(step(method, server, delta(2.0, 3.0)), {"basis": torch.tensor([[1.5]])})
    printed = step(replace(method, sign="printed"), server, delta(2.0, 3.0))
    torch.testing.assert_close(printed, {"basis": torch.tensor([[0.5]])})


def test_the_step_of_cross_attention_by_hand() -> None:
    # ∂P/∂b = 1 + v o = 2.5, ∂P/∂v = b o = 1, ∂P/∂o = b v = 6; with one token attention has no slope; Σ ΔP = 3
    after = step(PFedPG(tokens=1, server_lr=0.1), single(), delta(1.0, 2.0))
    moved = {"basis": 2 + 0.75, "value": 3 + 0.3, "out": 0.5 + 1.8}
    torch.testing.assert_close(after, single() | {name: torch.tensor([[x]]) for name, x in moved.items()})


def test_a_descriptor_moves_only_in_its_clients_rounds() -> None:
    server, up = attending(), {"delta": torch.ones(1, 2, 2)}
    after = step(PFedPG(tokens=2, server_lr=0.1), server, up, torch.tensor([1]))
    assert after["descriptor"][0].equal(server["descriptor"][0])
    assert not after["descriptor"][1].equal(server["descriptor"][1])


def test_the_server_needs_to_know_who_sent_what() -> None:
    method, up = PFedPG(tokens=2, server_lr=0.1), {"delta": torch.arange(8.0).view(2, 2, 2)}
    assert PFedPG().traits.needs_rows
    found, swapped = (step(method, attending(), one) for one in (up, tree.map(lambda x: x.flip(0), up)))
    assert not torch.allclose(found["descriptor"], swapped["descriptor"])
    again = step(method, attending(), tree.map(lambda x: x.flip(0), up), torch.tensor([1, 0]))
    torch.testing.assert_close(again, found)


def distance(method: PFedPG, server: Tree, target: Tensor) -> float:
    return float((method.generate(server, torch.arange(len(target))) - target).square().sum())


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    kind=st.sampled_from(list(GENERATORS)),
    tokens=st.integers(1, 4),
    clients=st.integers(1, 4),
)
def test_a_small_step_brings_prompts_closer_to_the_tuned_ones_and_the_printed_one_does_not(
    seed: int, kind: str, tokens: int, clients: int
) -> None:
    method = PFedPG(tokens=tokens, server_lr=1e-7, **GENERATORS[kind])
    server = tree.map(torch.Tensor.double, method.init_server(task(Tokens8(), clients), rng(seed=seed)))
    everyone = torch.arange(clients)
    noise = torch.randn(clients, tokens, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    target = method.generate(server, everyone) + noise
    before = distance(method, server, target)
    assert distance(method, step(method, server, {"delta": noise}, everyone), target) < before
    printed = step(replace(method, sign="printed"), server, {"delta": noise}, everyone)
    assert distance(method, printed, target) > before


# -- Adam ---------------------------------------------------------------------------------------------------------


def test_adams_first_step_is_the_sign() -> None:
    method = PFedPG(tokens=1, optimiser="adam", server_lr=0.01)
    moments = {f"{part}.{name}": torch.zeros_like(x) for part in ("first", "second") for name, x in single().items()}
    server = single() | moments | {"count": torch.zeros(())}
    for sign, way in (("descend", 1), ("printed", -1)):
        after = step(replace(method, sign=sign), server, delta(-1.0, -2.0))  # type: ignore[arg-type]
        for name, start in {"basis": 2.0, "value": 3.0, "out": 0.5}.items():
            torch.testing.assert_close(after[name], torch.tensor([[start - way * 0.01]]))
        assert all(after[name].equal(server[name]) for name in ("query", "key", "descriptor"))  # nothing pulls at them
        assert after["count"] == 1
        assert after.keys() == server.keys()


def test_adams_second_step_by_hand() -> None:
    method = PFedPG(tokens=1, generator="none", optimiser="adam", server_lr=1.0)
    server = {name: torch.zeros(1, 1) for name in ("basis", "first.basis", "second.basis")} | {"count": torch.zeros(())}
    server = step(method, step(method, server, delta(2.0, -1.0)), delta(-1.0, 0.0))
    # pulls 1, −1: the first moment is 0.9 · 0.1 − 0.1 = −0.01, over 1 − 0.9² = 0.19; the second is 1 throughout
    torch.testing.assert_close(server["basis"], torch.tensor([[1 - 0.01 / 0.19]]))
    torch.testing.assert_close(server["first.basis"], torch.tensor([[-0.01]]))
    torch.testing.assert_close(server["second.basis"], torch.tensor([[0.001999]]))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), kind=st.sampled_from(list(GENERATORS)))
def test_adam_begins_with_moments_of_zero_and_keeps_its_names(seed: int, kind: str) -> None:
    method = PFedPG(tokens=2, optimiser="adam", **GENERATORS[kind])
    server = method.init_server(task(Tokens8(), 2), rng(seed=seed))
    plain = replace(method, optimiser="sgd").init_server(task(Tokens8(), 2), rng(seed=seed))
    assert all(server[name].equal(x) for name, x in plain.items())
    rest = tree.drop(server, plain)
    assert set(rest) == {f"{part}.{name}" for part in ("first", "second") for name in plain} | {"count"}
    assert not any(x.any() for x in rest.values())
    noise = torch.randn(2, 2, 8, generator=torch.Generator().manual_seed(seed))
    after = step(method, server, {"delta": noise})
    assert {name: x.shape for name, x in after.items()} == {name: x.shape for name, x in server.items()}


# -- newcomers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize("kind", GENERATORS)
def test_newcomers_get_descriptors_and_nothing_else_changes(kind: str, optimiser: str) -> None:
    method = PFedPG(tokens=2, optimiser=optimiser, **GENERATORS[kind])  # type: ignore[arg-type]
    where, newcomers = task(Tokens8(), 3), torch.tensor([3, 4])
    server = method.init_server(where, rng())
    admitted = method.admit(where, server, newcomers, rng("admit"))
    assert list(admitted) == list(server)
    grown = {name for name in server if name.endswith("descriptor")}
    assert all(admitted[name].equal(x) for name, x in server.items() if name not in grown)
    for name in grown:
        assert admitted[name].shape == (5, *server[name].shape[1:])
        assert admitted[name][:3].equal(server[name])
        assert admitted[name][3:].any() == (name == "descriptor")  # their moments are zero
    torch.testing.assert_close(
        method.download(where, admitted, torch.arange(3)),
        method.download(where, server, torch.arange(3)),
        rtol=0,
        atol=0,
    )
    assert method.download(where, admitted, newcomers)["prompt"].shape == (2, 2, 8)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), kind=st.sampled_from([kind for kind in GENERATORS if kind != "none"]))
def test_joining_fits_the_newcomers_descriptors_alone(seed: int, kind: str) -> None:
    if "zero out" in kind:
        kind = "cross-attention"  # with W^O at zero descriptors mean nothing
    method, where = PFedPG(tokens=2, **GENERATORS[kind]), task(Tokens8(), 2)
    newcomers = torch.tensor([2, 3])
    founded = tree.map(torch.Tensor.double, method.init_server(where, rng(seed=seed)))
    server = method.admit(where, founded, newcomers, rng("admit", seed))
    noise = 0.1 * torch.randn(2, 2, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    target = method.generate(server, newcomers) + noise
    joined = method.join(where, server, newcomers, {"delta": noise}, torch.ones(2))
    assert all(joined[name].equal(x) for name, x in server.items() if name != "descriptor")
    assert joined["descriptor"][:2].equal(server["descriptor"][:2])
    assert not joined["descriptor"].requires_grad
    before, after = ((method.generate(one, newcomers) - target).square().sum((1, 2)) for one in (server, joined))
    assert (after <= before).all()
    # a newcomer ends where it would have ended alone
    alone = method.join(where, server, newcomers[1:], {"delta": noise[1:]}, torch.ones(1))
    torch.testing.assert_close(method.generate(alone, newcomers[1:]), method.generate(joined, newcomers[1:]))


@pytest.mark.parametrize(
    ("kind", "left"), [("cross-attention", 0.1), ("cross-attention, each", 0.1), ("mlp", 0.75), ("adain", 0.1)]
)
def test_joining_comes_close_to_a_prompt_that_some_descriptor_makes(kind: str, left: float) -> None:
    method, where, first = PFedPG(tokens=2, **GENERATORS[kind]), task(Tokens8(), 2), torch.tensor([0])
    server = method.init_server(where, rng())
    wanted = method.generate(server, torch.tensor([1]))
    up = {"delta": wanted - method.generate(server, first)}
    joined = method.join(where, server, first, up, torch.ones(1))
    assert (method.generate(joined, first) - wanted).norm() < left * up["delta"].norm()


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), kind=st.sampled_from(["cross-attention", "mlp", "adain"]), far=st.floats(-9, 1))
def test_joining_never_leads_away_however_near_the_tuned_prompt_is(seed: int, kind: str, far: float) -> None:
    method, where = PFedPG(tokens=2, join_steps=5, **GENERATORS[kind]), task(Tokens8(), 2)
    server = method.init_server(where, rng(seed=seed))
    noise = 10**far * torch.randn(2, 2, 8, generator=torch.Generator().manual_seed(seed))
    target = method.generate(server, BOTH) + noise
    joined = method.join(where, server, BOTH, {"delta": noise}, torch.ones(2))
    assert distance(method, joined, target) <= distance(method, server, target)


def test_joining_without_a_generator_changes_nothing() -> None:
    method, server = PFedPG(tokens=1, generator="none"), {"basis": torch.ones(1, 1)}
    assert method.admit(TASK, server, torch.tensor([2]), rng()) is server
    assert method.join(TASK, server, torch.tensor([2]), delta(1.0), torch.ones(1)) is server
