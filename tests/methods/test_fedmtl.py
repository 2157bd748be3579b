"""FedMTL: relations, pulls and steps by hand; what PFLlib calls by that name is Local."""

import math
from dataclasses import replace

import pytest
import torch

from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.options import make
from promptfed.core.tree import Tree
from promptfed.methods.fedmtl import FedMTL, _relation
from promptfed.methods.local_only import Local
from support.toys import BLACK, Linear, dataset, numbered, rng, shards, task

ALIKE = FedMTL(relation="mean", strength=0.5, lr=1.0, epochs=1, batch=1)


def rows(*biases: float) -> Tree:
    """Return a server's tree with a model per client that differ in their bias alone, all related alike."""
    count = len(biases)
    bias = torch.tensor([[value, -value] for value in biases])
    return {
        "head.weight": torch.zeros(count, 2, 12),
        "head.bias": bias,
        "relation": torch.eye(count) - 1 / count,
    }


# -- relations ----------------------------------------------------------------------------------------------------


def test_at_first_everyone_is_related_alike() -> None:
    server = FedMTL().init_server(task(clients=3), rng())
    torch.testing.assert_close(server["relation"], torch.tensor([[2.0, -1, -1], [-1, 2, -1], [-1, -1, 2]]) / 3)
    assert server["head.weight"].shape == (3, 2, 12)


def test_relations_of_two_rows_by_hand() -> None:
    # rows at right angles: WWᵀ is a multiple of the identity, and so is Ω; the trace is N − 1 = 1
    torch.testing.assert_close(_relation({"w": torch.tensor([[2.0, 0.0], [0.0, 2.0]])}), torch.eye(2) / 2)
    # equal rows: (WWᵀ)^½ has the shares 1 and 0; with the ridge of 1/2 they are 3/2 and 1/2, inverted 2/3 and 2,
    # scaled to 1/4 (along the ones) and 3/4
    torch.testing.assert_close(
        _relation({"w": torch.tensor([[3.0], [3.0]])}), torch.tensor([[0.5, -0.25], [-0.25, 0.5]])
    )


def test_the_more_alike_the_more_related() -> None:
    relation = _relation({"a": torch.tensor([[1.0], [1.0], [-1.0]]), "b": torch.tensor([[[0.1]], [[0.0]], [[0.0]]])})
    torch.testing.assert_close(relation, relation.mT)
    assert float(relation.trace()) == pytest.approx(2)
    assert bool((torch.linalg.eigvalsh(relation) > 0).all())
    assert relation[0, 1] < 0 < relation[0, 2]


# -- one round ----------------------------------------------------------------------------------------------------


def test_a_client_receives_its_row_and_where_the_others_pull_it() -> None:
    where, server = task(clients=3), rows(1.0, 2.0, 6.0)
    down = ALIKE.download(where, server, torch.tensor([2, 0]))
    assert down["head.bias"].tolist() == [[6, -6], [1, -1]]
    # with everyone related alike, the others' mean: (1 + 2) / 2 and (2 + 6) / 2
    torch.testing.assert_close(down["toward.head.bias"], torch.tensor([[1.5, -1.5], [4.0, -4.0]]))
    torch.testing.assert_close(down["itself"], torch.tensor([2 / 3, 2 / 3]))


def test_one_step_by_hand() -> None:
    where, own = task(clients=2), shards(dataset([BLACK, BLACK], [0, 1]), [1, 1])
    server = rows(0.0, 1.0)
    down = ALIKE.download(where, server, torch.arange(2))
    up, personal = ALIKE.fit(where, down, {}, own.data([0, 1], 0, stacked=True))
    # λ Ω_ii = 1/2 · 1/2, so the pull on b = (x, −x) is −2 · 1/4 · (x_i − x_j) = ±1/2;
    # client 0 has p = 1/2 for its class 0 and gains 1/2; client 1 has logits (1, −1) and class 1
    wrong = 1 / (1 + math.exp(-2))
    torch.testing.assert_close(up["head.bias"][0], torch.tensor([1.0, -1.0]))
    torch.testing.assert_close(up["head.bias"][1], torch.tensor([1 - 0.5 - wrong, wrong + 0.5 - 1]))
    assert (personal, set(up)) == ({}, {"head.weight", "head.bias"})


def test_the_step_is_that_of_the_whole_regulariser() -> None:
    """∂/∂w_i of λ tr(W Ω Wᵀ) by autograd, all rows at once."""
    torch.manual_seed(0)
    server = {"head.weight": torch.randn(4, 2, 12), "head.bias": torch.randn(4, 2)}
    server |= {"relation": _relation(server)}
    method, where = FedMTL(strength=0.3, lr=1.0, epochs=1, batch=1), task(clients=4)
    data = shards(dataset([BLACK] * 4, [0, 1, 0, 1]), [1] * 4).data(range(4), 0, stacked=True)
    related, _ = method.fit(where, method.download(where, server, torch.arange(4)), {}, data)
    alone = replace(method, compat="pfllib")
    plain, _ = alone.fit(where, alone.download(where, server, torch.arange(4)), {}, data)
    flat = torch.cat([server["head.weight"].flatten(1), server["head.bias"]], 1).requires_grad_()
    (0.3 * (flat.mT @ server["relation"] @ flat).trace()).backward()
    assert flat.grad is not None
    moved = torch.cat([(related[name] - plain[name]).flatten(1) for name in ("head.weight", "head.bias")], 1)
    torch.testing.assert_close(moved, -flat.grad, rtol=1e-4, atol=1e-5)


def test_the_server_puts_rows_in_their_places() -> None:
    server = rows(1.0, 2.0, 6.0)
    up = {"head.weight": torch.ones(2, 2, 12), "head.bias": torch.tensor([[7.0, 7], [8, 8]])}
    weights = torch.tensor([1.0, 100.0])
    after = ALIKE.aggregate(task(clients=3), server, torch.tensor([2, 0]), up, weights)
    assert after["head.bias"].tolist() == [[8, 8], [2, -2], [7, 7]]
    torch.testing.assert_close(after["relation"], server["relation"], rtol=0, atol=0)
    learned = replace(ALIKE, relation="learned").aggregate(task(clients=3), server, torch.tensor([2, 0]), up, weights)
    torch.testing.assert_close(learned["relation"], _relation(tree.drop(after, ["relation"])))
    assert server["head.bias"][2].tolist() == [6, -6]
    assert ALIKE.deploy(task(clients=3), server) == {}


def test_newcomers_start_from_the_mean_row_and_change_nobody_else() -> None:
    where = task(clients=2)
    grown = FedMTL().admit(where, rows(1.0, 3.0), torch.tensor([2, 3]), rng())
    assert grown["head.bias"].tolist() == [[1, -1], [3, -3], [2, -2], [2, -2]]
    torch.testing.assert_close(grown["relation"], torch.eye(4) - 0.25)
    up = {"head.weight": torch.zeros(1, 2, 12), "head.bias": torch.tensor([[9.0, 9.0]])}
    after = FedMTL().join(where, grown, torch.tensor([3]), up, torch.ones(1))
    assert after["head.bias"].tolist() == [[1, -1], [3, -3], [2, -2], [9, 9]]
    torch.testing.assert_close(after["relation"], grown["relation"], rtol=0, atol=0)


def test_a_single_client_has_no_relatives() -> None:
    where, own = task(clients=1), numbered([3])
    server = ALIKE.init_server(where, rng())
    down = ALIKE.download(where, server, torch.tensor([0]))
    up, _ = ALIKE.fit(where, down, {}, own.data([0], 0, stacked=True))
    assert all(bool(value.isfinite().all()) for value in (down | up).values())


# -- what PFLlib runs ---------------------------------------------------------------------------------------------


def test_compatible_with_pfllib_it_is_local_bit_for_bit() -> None:
    backbone = Linear(scale=0.1)
    where, own, clients = task(backbone, 3), numbered([5, 2, 9]), torch.arange(3)
    method = FedMTL(compat="pfllib", lr=0.3, epochs=2, batch=2, momentum=0.5)
    alone = Local(lr=0.3, epochs=2, batch=2, momentum=0.5)
    server = method.init_server(where, rng())
    personal = tree.repeat(alone.init_client(where, own.data([0], 0, stacked=False), rng(0)), 3)
    for number in range(3):
        data = own.data(range(3), number, stacked=True)
        down = method.download(where, server, clients)
        assert set(down) == {"head.weight", "head.bias"}
        up, _ = method.fit(where, down, {}, data)
        server = method.aggregate(where, server, clients, up, torch.ones(3))
        _, personal = alone.fit(where, {}, personal, data)
        torch.testing.assert_close(tree.drop(server, ["relation"]), personal, rtol=0, atol=0)
    torch.testing.assert_close(server["relation"], torch.eye(3) - 1 / 3)


def test_an_unknown_version_is_refused() -> None:
    with pytest.raises(PromptFedError, match='did you mean "pfllib"'):
        make(FedMTL, {"compat": "pfl-lib"}, "method")
