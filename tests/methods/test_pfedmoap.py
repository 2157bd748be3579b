"""pFedMoAP: its mixture and rounds by hand, who gets whose context, and what travels."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.method import Task
from promptfed.core.options import make
from promptfed.core.tree import Tree
from promptfed.methods.pfedmoap import PARTS, PFedMoAP
from promptfed.methods.promptfl import PromptFL
from support.toy_clip import NAMES, NET, normal
from support.toys import TinyDual, featured, rng, task

TASK = task(TinyDual())
CLIP = Task(NET, NAMES, 3)
RATES: dict[str, Any] = {"tokens": 3, "lr": 0.5, "batch": 4, "epochs": 2, "momentum": 0.9, "weight_decay": 1e-3}
SMALL: dict[str, Any] = {"heads": 2, "experts": 3}
ROWS = torch.tensor([0.0, 1.0, 3.0, 10.0]).view(4, 1, 1).expand(4, 1, 2)  # contexts of four clients on a line


def gate(width: int = 2) -> Tree:
    """Return a gate that changes nothing."""
    plain = {f"gate.{part}.weight": torch.eye(width) for part in PARTS}
    return plain | {f"gate.{part}.bias": torch.zeros(width) for part in PARTS}


def client(own: Tensor, rounds: float) -> Tree:
    return {"own": own, "rounds": torch.tensor(rounds)} | gate()


def pooled(held: list[float], rounds: float = 0.0) -> Tree:
    return {"context": torch.zeros(1, 2), "pool": ROWS, "held": torch.tensor(held), "round": torch.tensor(rounds)}


# -- the mixture ----------------------------------------------------------------------------------------------


def test_the_mixture_by_hand() -> None:
    # own texts are (1, 0) and (0, 1); those of an expert (1, -1) are (2, -1) / √5 and (1, 0). The image is (1, 0)
    # and scores count ln 3 times, so of class 1 own and expert have 3^0 : 3^1, and the image sees 3 / 4 of (1, 0)
    method = PFedMoAP(tokens=1, heads=1, sharpness=math.log(3), lam=0.5)
    params = client(torch.zeros(1, 2), 2.0) | {"context": normal(1, 2), "experts": torch.tensor([[[1.0, -1.0]]])}
    found = method.predict(TASK, params, {"x": torch.tensor([[7.0, 0.0]])})
    near = 2 / math.sqrt(5)
    share = 3 / (3 + 3**near)
    wanted = torch.tensor([[0.5 + share + (1 - share) * near, 0.75]])
    torch.testing.assert_close(found, wanted)


def test_the_order_of_experts_does_not_matter_and_absent_ones_are_nobody() -> None:
    method = PFedMoAP(**SMALL)
    personal = method.init_client(CLIP, featured(normal(1, 10), [0], [1]).data([0], 0, stacked=False), rng(0))
    personal |= {"own": normal(16, 12), "rounds": torch.tensor(2.0)}
    experts, x = normal(3, 16, 12, seed=1), {"x": normal(4, 10)}
    three, turned = (
        method.predict(CLIP, personal | {"context": experts[0], "experts": some}, x)
        for some in (experts, experts.flip(0))
    )
    torch.testing.assert_close(turned, three, rtol=1e-4, atol=1e-4)
    experts[1] = 0.0
    two = method.predict(CLIP, personal | {"context": experts[0], "experts": experts[[0, 2]]}, x)
    absent = method.predict(CLIP, personal | {"context": experts[0], "experts": experts}, x)
    torch.testing.assert_close(absent, two, rtol=1e-4, atol=1e-4)
    assert (absent - three).abs().max() > 1e-3


def test_without_a_say_of_the_mixture_it_is_the_clients_own_context() -> None:
    x, own = {"x": normal(4, 10)}, normal(3, 12)
    none = {"gate.out.weight": torch.zeros(10, 10), "gate.out.bias": torch.zeros(10)}
    params = {"own": own, "rounds": torch.tensor(5.0), "context": normal(3, 12)} | gate(10) | none
    found = PFedMoAP(heads=2, lam=1.0).predict(CLIP, params, x)
    assert found.equal(PromptFL(csc=False).predict(CLIP, {"context": own}, x))


@pytest.mark.parametrize("rounds", [0, 1])
def test_before_its_gate_is_trained_a_client_has_a_context_alone(rounds: int) -> None:
    params = {"own": normal(3, 12), "rounds": torch.tensor(float(rounds)), "context": normal(3, 12, seed=1)} | gate(10)
    x = {"x": normal(4, 10)}
    wanted = {"context": params["own"] if rounds else params["context"]}
    assert PFedMoAP(heads=2).predict(CLIP, params, x).equal(PromptFL(csc=False).predict(CLIP, wanted, x))


def test_the_servers_model_is_the_averaged_context() -> None:
    method, x = PFedMoAP(**SMALL), {"x": normal(4, 10)}
    server = method.init_server(CLIP, rng())
    model = method.deploy(CLIP, server)
    assert set(model) == {"context"}
    assert method.predict(CLIP, model, x).equal(PromptFL(csc=False).predict(CLIP, model, x))


# -- a round --------------------------------------------------------------------------------------------------


def test_the_first_round_of_a_client_is_promptfls_bit_for_bit() -> None:
    data = featured(normal(6, 10), [0, 1, 2, 0, 1, 2], [6]).data([0], 0, stacked=False)
    method = PFedMoAP(heads=2, **RATES)
    down, personal = (
        {"context": normal(3, 12), "experts": torch.zeros(2, 3, 12)},
        method.init_client(CLIP, data, rng(0)),
    )
    up, kept = method.fit(CLIP, down, personal, data)
    plain, _ = PromptFL(csc=False, **RATES).fit(CLIP, tree.pick(down, ["context"]), {}, data)
    assert up["context"].equal(plain["context"])
    assert kept["own"].equal(plain["context"])
    assert all(kept[name].equal(personal[name]) for name in personal if name.startswith("gate."))
    assert float(kept["rounds"]) == 1


def test_a_later_round_by_hand() -> None:
    # the last map of the gate is zero, so logits are λ = 1/2 of the cosines and the wrong class has
    # w = 1 / (1 + e^0.5). The context turns away from the image by w / 2. The map sees w f (own text of the wrong class
    # - that of the right one): w (-1, 1) in the row of the image. No other map is seen through it
    method = PFedMoAP(tokens=1, heads=1, experts=1, lr=1.0, gate_lr=0.1, epochs=1, momentum=0.0, weight_decay=0.0)
    data = featured(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), [0, 1], [1, 1]).data([0], 0, stacked=False)
    personal = client(normal(1, 2), 1.0) | {"gate.out.weight": torch.zeros(2, 2)}
    up, kept = method.fit(TASK, {"context": torch.zeros(1, 2)}, personal, data)
    wrong = 1 / (1 + math.exp(0.5))
    torch.testing.assert_close(up["context"], torch.tensor([[-wrong / 2, 0.0]]))
    torch.testing.assert_close(kept["own"], up["context"])  # from P_g, wherever its own was
    torch.testing.assert_close(kept["gate.out.weight"], 0.1 * wrong * torch.tensor([[1.0, -1.0], [0.0, 0.0]]))
    for name in ("query", "key", "value"):
        assert kept[f"gate.{name}.weight"].equal(torch.eye(2))
    torch.testing.assert_close(kept["gate.out.bias"], torch.zeros(2))  # it speaks for all classes alike
    assert float(kept["rounds"]) == 2


def test_the_server_averages_by_images_and_keeps_every_context() -> None:
    server, clients = pooled([1.0, 0.0, 0.0, 1.0], rounds=4.0), torch.tensor([2, 0])
    up = {"context": torch.tensor([[[3.0, 0.0]], [[0.0, 6.0]]])}
    after = PFedMoAP().aggregate(Task(TinyDual(), ("no", "yes"), 4), server, clients, up, torch.tensor([2.0, 1.0]))
    torch.testing.assert_close(after["context"], torch.tensor([[2.0, 2.0]]))
    assert after["held"].tolist() == [1, 0, 1, 1]
    assert after["pool"][[0, 2]].equal(up["context"].flip(0))
    assert after["pool"][[1, 3]].equal(ROWS[[1, 3]])
    assert float(after["round"]) == 5


# -- who gets whose context -----------------------------------------------------------------------------------


def got(method: PFedMoAP, server: Tree, clients: list[int], count: int = 4) -> list[list[float]]:
    down = method.download(Task(TinyDual(), ("no", "yes"), count), server, torch.tensor(clients))
    assert down["context"].equal(server["context"].expand(len(clients), -1, -1))
    return [sorted(row) for row in down["experts"][..., 0, 0].tolist()]


def test_a_client_gets_the_nearest_contexts_and_never_its_own() -> None:
    server = pooled([1.0, 1.0, 1.0, 1.0])
    server["pool"] = ROWS + 1  # 1, 2, 4 and 11
    assert got(PFedMoAP(experts=2), server, [0, 1, 2, 3]) == [[2], [1], [2], [4]]
    assert got(PFedMoAP(experts=3), server, [3, 0]) == [[2, 4], [2, 4]]
    # with as many as there are, or more, everyone gets those of all others
    assert got(PFedMoAP(experts=10), server, [1]) == [[1, 4, 11]]


def test_who_has_sent_nothing_neither_gets_nor_gives() -> None:
    server = pooled([0.0, 1.0, 0.0, 1.0])
    assert got(PFedMoAP(experts=3), server, [0, 1, 3]) == [[0, 0], [0, 10], [0, 1]]


def test_contexts_at_random_are_drawn_by_round_and_client() -> None:
    wide = {"pool": torch.arange(1.0, 31.0).view(30, 1, 1).expand(30, 1, 2), "held": torch.ones(30)}
    server, method = pooled([]) | wide, PFedMoAP(select="random", experts=4)
    first = got(method, server, [3, 7], 30)
    assert first == got(method, server, [3, 7], 30)
    assert first[::-1] == got(method, server, [7, 3], 30)
    later = [got(method, server | {"round": torch.tensor(float(now))}, [3], 30)[0] for now in range(40)]
    assert len({tuple(row) for row in later}) > 30
    assert all(len(set(row)) == 3 and 4 not in row for row in later)  # client 3's own is 4


def test_newcomers_get_contexts_and_give_none() -> None:
    method, four = PFedMoAP(tokens=1, experts=3), Task(TinyDual(), ("no", "yes"), 4)
    server, newcomers = pooled([1.0, 1.0, 1.0, 1.0]), torch.tensor([4, 5])
    room = method.admit(four, server, newcomers, rng("admit"))
    assert room["pool"].shape == (6, 1, 2)
    assert room["held"].tolist() == [1, 1, 1, 1, 0, 0]
    assert got(method, room, [4, 5]) == [[0, 0], [0, 0]]
    up = {"context": torch.tensor([[[2.9, 2.9]], [[0.1, 0.1]]])}
    joined = method.join(four, room, newcomers, up, torch.ones(2))
    assert joined["context"].equal(server["context"])
    assert got(method, joined, [4, 5]) == [[1, 3], [0, 1]]
    assert got(method, joined, [0, 1, 2, 3]) == got(method, server, [0, 1, 2, 3])


# -- what travels ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("experts", "floats"), [(1, 8_192), (10, 81_920), (20, 163_840)])
def test_what_travels_and_what_stays(experts: int, floats: int) -> None:
    wide = Task(TinyDual(3, 512), tuple("abc"), 30)
    method = PFedMoAP(experts=experts)
    one = featured(torch.eye(3, 512), [0, 1, 2], [3]).data([0], 0, stacked=False)
    down = tree.row(method.download(wide, method.init_server(wide, rng()), torch.tensor([0])), 0)
    up, kept = method.fit(wide, down, method.init_client(wide, one, rng(0)), one)
    assert (tree.floats(down), tree.floats(up)) == (floats, 8_192)
    # the gate is 66,048 numbers; beside it a context, and a count of rounds
    assert tree.floats(kept) == 66_048 + 8_192 + 1


def test_a_resnets_features_are_thinned_to_as_many() -> None:
    wide = Task(TinyDual(3, 1024), tuple("abc"), 3)
    gates = PFedMoAP(tokens=1).init_client(
        wide, featured(torch.eye(3), [0, 1, 2], [3]).data([0], 0, stacked=False), rng(0)
    )
    assert gates["gate.query.weight"].shape == (128, 128)


def test_a_client_alone_does_what_it_does_in_the_stack() -> None:
    data = featured(normal(13, 10), [n % 3 for n in range(13)], [5, 1, 7])
    method = PFedMoAP(**SMALL, tokens=2, batch=3, epochs=2, lr=0.02)
    server = method.init_server(CLIP, rng()) | {"pool": 0.1 * normal(3, 2, 12), "held": torch.tensor([0.0, 1.0, 1.0])}
    down = method.download(CLIP, server, torch.arange(3))
    starts = [method.init_client(CLIP, data.data([n], 0, stacked=False), rng(n)) for n in range(3)]
    starts = [start | {"rounds": torch.tensor(float(n))} for n, start in enumerate(starts)]
    up, kept = method.fit(CLIP, down, tree.stack(starts), data.data(range(3), 0, stacked=True))
    for number in range(3):
        alone = method.fit(CLIP, tree.row(down, number), starts[number], data.data([number], 0, stacked=False))
        torch.testing.assert_close((tree.row(up, number), tree.row(kept, number)), alone, rtol=1e-4, atol=1e-5)


def test_heads_that_do_not_fit_are_refused() -> None:
    with pytest.raises(PromptFedError, match=r"method\.heads=4 must divide the thinned features' width, 10"):
        make(PFedMoAP, {"heads": 4}, "method").init_server(CLIP, rng())
