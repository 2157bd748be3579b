"""FedTPG: its context of a set of names, a round by hand, what a client's own classes mean, and what travels."""

import math
from itertools import permutations
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.method import Task, renamed
from promptfed.core.options import make
from promptfed.core.prompts.text import said
from promptfed.core.tree import Tree
from promptfed.methods.fedtpg import FedTPG
from promptfed.methods.promptfl import PromptFL
from support.toy_clip import NAMES, NET, normal
from support.toys import TinyDual, featured, rng, task

TASK = task(TinyDual())
CLIP = Task(NET, NAMES, 3)
WRONG = 1 / (1 + math.e)  # what softmax (1, 0) gives to the second


def plain(**options: Any) -> FedTPG:
    return FedTPG(momentum=0.0, weight_decay=0.0, **options)


def simple() -> Tree:
    """Return a network of width 2 that asks nothing: its context is the mean of the names, normed, and FF adds 0."""
    zero = {"query": torch.zeros(1, 2)}
    for name in ("norm_query", "norm_names", "norm_ff"):
        zero |= {f"{name}.weight": torch.ones(2), f"{name}.bias": torch.zeros(2)}
    for part in ("query", "key", "value", "out"):
        weight = torch.eye(2) if part in ("value", "out") else torch.zeros(2, 2)
        zero |= {f"attention.{part}.weight": weight, f"attention.{part}.bias": torch.zeros(2)}
    zero |= {"ff.up.weight": torch.zeros(16, 2), "ff.up.bias": torch.zeros(16)}
    return zero | {"ff.down.weight": torch.zeros(2, 8), "ff.down.bias": torch.zeros(2)}


def test_the_context_by_hand() -> None:
    # the names' features are (1, 0) and (0, 1), normed (1, -1) and (-1, 1) times √(1 / (1 + 4 ε))
    method, network, one = FedTPG(tokens=1, heads=1), simple(), 1 / math.sqrt(1 + 4e-5)
    torch.testing.assert_close(method.context(TASK, network), torch.zeros(1, 2))
    torch.testing.assert_close(method.context(TASK, network, torch.tensor([1.0, 0.0])), torch.tensor([[one, -one]]))
    # FF: its norm makes (1, -1) of that; both halves of the hidden layer are the first number, 1: 1 · gelu(1), added up
    network["ff.up.weight"][[0, 8], 0] = 1.0
    network["ff.down.weight"][:, 0] = 3.0
    bent = 3 * 0.5 * (1 + math.erf(math.sqrt(0.5)))
    found = method.context(TASK, network, torch.tensor([1.0, 0.0]))
    torch.testing.assert_close(found, torch.tensor([[one + bent, bent - one]]), rtol=1e-4, atol=1e-4)


def test_a_round_by_hand() -> None:
    # at P = 0 the text of the wrong class turns away from the image, by WRONG. Every bias behind the attention moves
    # so, through two identities that of the names' norm too, and no matrix: what they see is 0
    own = featured(torch.tensor([[2.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 5.0]]), [0, 1, 0, 1], [2, 2])
    method, start, clients = plain(tokens=1, heads=1, lr=1.0), simple(), torch.arange(2)
    up, personal = method.fit(TASK, method.download(TASK, start, clients), {}, own.data([0, 1], 0, stacked=True))
    moved = -WRONG / 2 * torch.eye(2)  # half: of two images one is zero, and has no cosines
    biases = {"attention.value.bias", "attention.out.bias", "ff.down.bias", "norm_names.bias"}
    for name, value in up.items():
        wanted = start[name] + moved if name in biases else start[name].expand(2, *start[name].shape)
        torch.testing.assert_close(value, wanted, msg=name)
    weights = method.weight(own.facts([0, 1]))
    after = method.aggregate(TASK, start, clients, up, weights)
    torch.testing.assert_close(after["ff.down.bias"], torch.tensor([-WRONG / 4, -WRONG / 4]))
    assert not personal


def test_a_client_counts_once_or_by_its_images() -> None:
    facts = featured(normal(5, 10), [0, 1, 2, 0, 1], [4, 1]).facts([0, 1])
    assert FedTPG().weight(facts).tolist() == [1, 1]
    assert FedTPG(count="images").weight(facts).tolist() == [4, 1]


@pytest.mark.parametrize("named", [None, [1, 0, 1]])
def test_the_context_does_not_depend_on_the_order_of_the_names(named: list[int] | None) -> None:
    method = FedTPG(tokens=3, heads=3)
    network = method.init_server(CLIP, rng())
    network["query"] *= 50  # else the names would hardly be told apart
    chosen = None if named is None else torch.tensor(named)
    wanted = method.context(CLIP, network, chosen)
    others = method.context(renamed(CLIP, ("bird", "boat", "sea")), network, chosen)
    assert (wanted - others).abs().max() > 1e-3
    for order in permutations(range(3)):
        other = renamed(CLIP, [NAMES[place] for place in order])
        found = method.context(other, network, None if chosen is None else chosen[list(order)])
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)


def test_classes_that_are_not_named_are_as_if_they_were_not_there() -> None:
    method = FedTPG(tokens=2, heads=2)
    network = method.init_server(CLIP, rng())
    few = renamed(CLIP, NAMES[1:])
    some = method.context(CLIP, network, torch.tensor([0, 1, 1]))
    torch.testing.assert_close(some, method.context(few, network), rtol=0, atol=1e-6)
    x = normal(4, 10)
    answers = method.predict(CLIP, network, {"x": x, "named": torch.tensor([0.0, 1.0, 1.0])})
    torch.testing.assert_close(answers[:, 1:], method.predict(few, network, {"x": x}), rtol=1e-4, atol=1e-3)


def test_a_client_of_one_class_learns_nothing() -> None:
    data = featured(normal(4, 10), [1, 1, 1, 2], [3, 1]).data([0], 0, stacked=False)
    network = plain().init_server(CLIP, rng())
    alone, _ = plain(lr=0.5).fit(CLIP, network, {}, data)
    assert all(alone[name].equal(network[name]) for name in network)
    of_all, _ = plain(lr=0.5, over="all").fit(CLIP, network, {}, data)
    assert not of_all["query"].equal(network["query"])


def test_with_all_classes_own_and_all_are_the_same() -> None:
    data = featured(normal(6, 10), [0, 1, 2, 0, 1, 2], [6]).data([0], 0, stacked=False)
    network = FedTPG().init_server(CLIP, rng())
    own, every = (plain(over=over, lr=0.1, batch=4).fit(CLIP, network, {}, data)[0] for over in ("own", "all"))
    for name in network:
        torch.testing.assert_close(own[name], every[name])


def test_a_fixed_context_is_promptfls() -> None:
    # without attention and FF the context is the bias of the last map, whatever the names are
    network = tree.map(torch.zeros_like, FedTPG(tokens=2).init_server(CLIP, rng()))
    network["ff.down.bias"] = normal(12)
    both = network["ff.down.bias"].expand(2, 12)
    x = {"x": normal(4, 10)}
    assert FedTPG().predict(CLIP, network, x).equal(PromptFL(csc=False).predict(CLIP, {"context": both}, x))


def test_the_parts_are_torchs_own() -> None:
    """The attention is torch's MultiheadAttention with separate maps, its mask included."""
    method = FedTPG(tokens=3, heads=4)
    network = method.init_server(CLIP, rng())
    network = {
        name: value + 0.1 * normal(*value.shape, seed=number) for number, (name, value) in enumerate(network.items())
    }
    torchs = torch.nn.MultiheadAttention(12, 4, kdim=10, vdim=10, batch_first=True)
    parts = ("query", "key", "value")
    for part in parts:
        getattr(torchs, f"{part[0]}_proj_weight").data = network[f"attention.{part}.weight"]
    torchs.in_proj_bias.data = torch.cat([network[f"attention.{part}.bias"] for part in parts])
    torchs.out_proj.weight.data, torchs.out_proj.bias.data = (
        network["attention.out.weight"],
        network["attention.out.bias"],
    )

    def normed(name: str, value: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(value, value.shape[-1:], network[f"{name}.weight"], network[f"{name}.bias"])

    names = normed("norm_names", said(CLIP, "{}"))[None]
    absent = torch.tensor([[False, True, False]])
    found, _ = torchs(normed("norm_query", network["query"])[None], names, names, key_padding_mask=absent)
    half, gate = F.linear(normed("norm_ff", found), network["ff.up.weight"], network["ff.up.bias"]).chunk(2, -1)
    wanted = found + F.linear(half * F.gelu(gate), network["ff.down.weight"], network["ff.down.bias"])
    torch.testing.assert_close(method.context(CLIP, network, torch.tensor([1, 0, 1])), wanted[0].detach())


@pytest.mark.parametrize(("tokens", "floats"), [(4, 4_206_080), (8, 4_208_128), (16, 4_212_224)])
def test_what_travels(tokens: int, floats: int) -> None:
    wide = Task(TinyDual(4, 512), tuple("abcd"), 4)
    method = FedTPG(tokens=tokens)
    down = method.init_server(wide, rng())
    one = featured(torch.eye(4, 512), list(range(4)), [4]).data([0], 0, stacked=False)
    up, kept = method.fit(wide, down, {}, one)
    assert (tree.floats(down), tree.floats(up), kept) == (floats, floats, {})


@pytest.mark.parametrize("over", ["own", "all"])
def test_a_client_alone_does_what_it_does_in_the_stack(over: str) -> None:
    data = featured(normal(13, 10), [0, 1, 0, 1, 0, 2, *(n % 3 for n in range(7))], [5, 1, 7])
    method = make(FedTPG, {"over": over, "tokens": 2, "batch": 3, "epochs": 2, "lr": 0.02}, "method")
    down = method.init_server(CLIP, rng())
    up, _ = method.fit(CLIP, tree.repeat(down, 3), {}, data.data(range(3), 0, stacked=True))
    for client in range(3):
        alone, _ = method.fit(CLIP, down, {}, data.data([client], 0, stacked=False))
        torch.testing.assert_close(tree.row(up, client), alone, rtol=1e-4, atol=1e-5)


def test_heads_that_do_not_fit_are_refused() -> None:
    with pytest.raises(PromptFedError, match=r"method\.heads=5 must divide the width of a context token, 12"):
        FedTPG(heads=5).init_server(CLIP, rng())
