"""FedPHA: its loss, projection and a round by hand, contexts of different lengths, its ends, and what travels."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.method import Task
from promptfed.core.options import make
from promptfed.methods.fedpha import FedPHA
from promptfed.methods.promptfl import PromptFL
from promptfed.methods.promptfolio import PromptFolio
from support.toy_clip import NAMES, NET, normal
from support.toys import TinyDual, featured, rng, task

CLIP = Task(NET, NAMES, 3)
RATES: dict[str, Any] = {"lr": 0.5, "batch": 4, "epochs": 2, "momentum": 0.9, "weight_decay": 1e-3}
WRONG = 1 / (1 + math.e)  # what softmax (1, 0) gives to the second


@dataclass(frozen=True)
class Measured(TinyDual):
    """A TinyDual whose contexts may be shorter than they are given."""

    def text(self, context: Tensor, *, per_class: bool, length: Tensor | None = None) -> Tensor:
        if length is None:
            return super().text(context, per_class=per_class)
        there = torch.arange(context.shape[-2]) < length.unsqueeze(-1)
        total = (context * there.unsqueeze(-1)).sum(-2, keepdim=True)
        return super().text(total / length[..., None, None], per_class=per_class)


TINY = task(Measured())


def even(tokens: int, **more: Any) -> FedPHA:
    return FedPHA(tokens=tokens, shortest=tokens, longest=tokens, **more)


# -- the loss and the projection ------------------------------------------------------------------------------


@pytest.mark.parametrize(("pull", "push", "margin"), [(1.0, 1.0, 1.0), (0.0, 2.0, 0.4), (3.0, 0.0, 1.0)])
def test_the_loss_by_hand(pull: float, push: float, margin: float) -> None:
    # p_i = (1, 1) has the texts (2, 1) / √5 and (1, 2) / √5. p_g = (1, 0) has (1, 0) and (1, 1) / √2, and so has p_i
    # once it is projected to the only direction of p_g
    method = even(1, ratio=1.0, pull=pull, push=push, margin=margin)
    context = torch.tensor([[1.0, 0.0]])
    params = {"own": torch.tensor([[1.0, 1.0]]), "context": context, "basis": method.basis(context)}
    batch = {"x": torch.tensor([[7.0, 0.0]]), "y": torch.tensor([0]), "mask": torch.ones(1)}
    entropies = math.log(1 + math.exp(-1 / math.sqrt(5))) + math.log(1 + math.exp(math.sqrt(0.5) - 1))
    squared = [2 - 4 / math.sqrt(5), 2 - 6 / math.sqrt(10)]
    missing = [max(0.0, margin - math.sqrt(distance)) for distance in squared]
    wanted = entropies + pull * sum(squared) / 4 + push * sum(missing) / 2
    torch.testing.assert_close(method.loss(TINY, {}, params, batch), torch.tensor(wanted))


@pytest.mark.parametrize(
    ("space", "ratio", "projected"),
    [
        ("weak", 0.5, [0.0, 2.0, 0.0]),
        ("null", 0.5, [0.0, 2.0, 4.0]),
        ("weak", 1.0, [1.0, 2.0, 0.0]),
        ("null", 1.0, [1.0, 2.0, 4.0]),
        ("weak", 0.0, [0.0, 0.0, 0.0]),
        ("null", 0.0, [0.0, 0.0, 4.0]),
    ],
)
def test_the_projection_by_hand(space: Literal["weak", "null"], ratio: float, projected: list[float]) -> None:
    # p_g has the first axis strongly, the second weakly and the third not at all
    method = FedPHA(space=space, ratio=ratio)
    basis = method.basis(torch.tensor([[3.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
    found = method.projected(torch.tensor([[1.0, 2.0, 4.0]]), basis)
    torch.testing.assert_close(found, torch.tensor([projected]))


def test_the_basis_of_the_defaults() -> None:
    context = 0.02 * normal(16, 512)
    basis = FedPHA().basis(context)
    assert basis.shape == (512, 13)
    assert FedPHA(space="null").basis(context).shape == (512, 3)
    torch.testing.assert_close(basis.mT @ basis, torch.eye(13), rtol=0, atol=1e-5)
    # all of its directions together hold all of p_g
    whole = FedPHA(ratio=1.0)
    torch.testing.assert_close(whole.projected(context, whole.basis(context)), context, rtol=0, atol=1e-6)
    own = normal(16, 512, seed=1)
    kept = [float(FedPHA().projected(each, basis).norm() / each.norm()) for each in (own, context)]
    assert abs(kept[0] - math.sqrt(13 / 512)) < 0.02  # a sixth of a random context: this is no null space
    assert 0.84 < kept[1] < 0.9


def test_pull_makes_the_projection_matter_less_and_push_parts_the_texts() -> None:
    data = featured(normal(4, 10), [0, 1, 2, 0], [4]).data([0], 0, stacked=False)
    down, personal = {"context": normal(3, 12)}, {"own": normal(3, 12, seed=1)}
    rates: dict[str, Any] = {"lr": 1e-3, "epochs": 1, "batch": 4, "momentum": 0.0, "weight_decay": 0.0}

    def texts(method: FedPHA) -> tuple[float, float]:
        up, kept = method.fit(CLIP, down, personal, data)
        contexts = (kept["own"], method.projected(kept["own"], method.basis(down["context"])), up["context"])
        own, weak, average = NET.text(torch.stack(contexts), per_class=False)
        return float((own - weak).square().mean()), float((own - average).norm(dim=-1).mean())

    changed, apart = texts(even(3, pull=0.0, push=0.0, **rates))
    assert texts(even(3, pull=100.0, push=0.0, **rates))[0] < changed
    assert texts(even(3, pull=0.0, push=10.0, margin=2.0, **rates))[1] > apart


# -- a round --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("longest", [1, 3])
def test_a_round_by_hand(longest: int) -> None:
    # at contexts of zero the text of the wrong class turns away from the image, by WRONG; own and average are the same
    # then, so neither pull nor push has a direction
    method = FedPHA(tokens=1, longest=longest, shortest=1, ratio=1.0, lr=1.0, momentum=0.0, weight_decay=0.0)
    own = featured(torch.tensor([[2.0, 0.0], [0.0, 5.0], [0.0, 5.0]]), [0, 1, 1], [1, 2])
    start, clients = {"context": torch.zeros(1, 2)}, torch.arange(2)
    personal = {"own": torch.zeros(2, longest, 2)}
    if longest > 1:
        personal["length"] = torch.tensor([1, 2])
    up, kept = method.fit(TINY, method.download(TINY, start, clients), personal, own.data([0, 1], 0, stacked=True))
    torch.testing.assert_close(up["context"], -WRONG * torch.eye(2).unsqueeze(-2))
    wanted = torch.zeros(2, longest, 2)
    wanted[0, 0, 0] = -WRONG
    wanted[1, : min(longest, 2), 1] = -WRONG / min(longest, 2)  # each token has its share of their mean
    torch.testing.assert_close(kept["own"], wanted)
    after = method.aggregate(TINY, start, clients, up, method.weight(own.facts([0, 1])))
    torch.testing.assert_close(after["context"], torch.tensor([[-WRONG / 3, -2 * WRONG / 3]]))  # by images


@pytest.mark.parametrize("off", [{"pull": 0.0, "push": 0.0}, {"pull": 0.0, "margin": 0.0}])
@pytest.mark.parametrize("length", [3, 2])
def test_without_pull_and_push_both_contexts_learn_by_themselves(off: dict[str, Any], length: int) -> None:
    data = featured(normal(6, 10), [0, 1, 2, 0, 1, 2], [6]).data([0], 0, stacked=False)
    down, own = {"context": normal(3, 12)}, normal(length, 12, seed=1)
    personal = {"own": own} | ({"length": torch.tensor(length)} if length < 3 else {})
    up, kept = FedPHA(tokens=3, shortest=length, longest=length, **off, **RATES).fit(CLIP, down, personal, data)
    plain, _ = PromptFL(csc=False, **RATES).fit(CLIP, down, {}, data)
    torch.testing.assert_close(up["context"], plain["context"], rtol=1e-4, atol=1e-5)
    _, alone = PromptFolio(theta=1.0, **RATES).fit(CLIP, {"context": own}, {"own": own}, data)
    torch.testing.assert_close(kept["own"], alone["own"], rtol=1e-4, atol=1e-5)


def test_a_client_answers_by_its_own_context_and_the_server_by_the_average() -> None:
    x, own, context = {"x": normal(4, 10)}, normal(3, 12), normal(3, 12, seed=1)
    plain = PromptFL(csc=False)
    found = even(3).predict(CLIP, {"context": context, "own": own}, x)
    assert found.equal(plain.predict(CLIP, {"context": own}, x))
    model = even(3).deploy(CLIP, {"context": context})
    assert even(3).predict(CLIP, model, x).equal(plain.predict(CLIP, {"context": context}, x))


# -- contexts of different lengths ------------------------------------------------------------------------------


def test_the_name_follows_a_clients_own_tokens_wherever_the_longest_end() -> None:
    method = FedPHA(tokens=3, shortest=2, longest=6)
    x, own = {"x": normal(4, 10)}, normal(6, 12)
    params = {"context": normal(3, 12, seed=1), "own": own, "length": torch.tensor(2)}
    found = method.predict(CLIP, params, x)
    wanted = PromptFL(csc=False).predict(CLIP, {"context": own[:2]}, x)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    batch = x | {"y": torch.tensor([0, 1, 2, 0]), "mask": torch.ones(4)}
    params["basis"] = method.basis(params["context"])
    value = FedPHA(tokens=3, shortest=2, longest=2).loss(CLIP, {}, params | {"own": own[:2]}, batch)
    torch.testing.assert_close(method.loss(CLIP, {}, params, batch), value, rtol=1e-4, atol=1e-4)


def test_every_client_draws_its_length_and_has_nothing_behind_it() -> None:
    method = FedPHA(tokens=3, shortest=2, longest=5, batch=4, weight_decay=0.1)
    data = featured(normal(4, 10), [0, 1, 2, 0], [4]).data([0], 0, stacked=False)
    clients = [method.init_client(CLIP, data, rng(n)) for n in range(40)]
    assert {int(client["length"]) for client in clients} == {2, 3, 4, 5}
    for client in clients:
        assert client["own"].shape == (5, 12)
        assert (client["own"] != 0).any(-1).tolist() == [n < int(client["length"]) for n in range(5)]
    short = next(client for client in clients if int(client["length"]) == 2)
    _, kept = method.fit(CLIP, method.init_server(CLIP, rng()), short, data)
    assert not kept["own"][2:].any()
    assert (kept["own"][:2] != short["own"][:2]).any()
    assert kept["length"].equal(short["length"])


def test_no_client_is_shorter_than_the_longest_one() -> None:
    with pytest.raises(PromptFedError, match=r"^method\.shortest=9 is more than method\.longest=4; lower it"):
        FedPHA(shortest=9, longest=4).init_server(CLIP, rng())


# -- what travels -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "stays"), [({}, 8_192), (FedPHA.presets["mixed"], 16_384 + 1)])
def test_what_travels_and_what_stays(options: dict[str, object], stays: int) -> None:
    wide = Task(Measured(10, 512), tuple(map(str, range(10))), 4)
    one = featured(torch.eye(10, 512), list(range(10)), [10]).data([0], 0, stacked=False)
    method = make(FedPHA, options, "method")
    down, personal = method.init_server(wide, rng()), method.init_client(wide, one, rng(0))
    up, kept = method.fit(wide, down, personal, one)
    assert (tree.floats(down), tree.floats(up), tree.floats(kept)) == (8_192, 8_192, stays)


@pytest.mark.parametrize(("longest", "space"), [(2, "weak"), (4, "null")])
def test_a_client_alone_does_what_it_does_in_the_stack(longest: int, space: Literal["weak", "null"]) -> None:
    data = featured(normal(13, 10), [n % 3 for n in range(13)], [5, 1, 7])
    method = FedPHA(tokens=2, shortest=2, longest=longest, space=space, ratio=0.5, batch=3, epochs=2, lr=0.02)
    down = method.init_server(CLIP, rng())
    starts = [method.init_client(CLIP, data.data([n], 0, stacked=False), rng(n)) for n in range(3)]
    up, kept = method.fit(CLIP, tree.repeat(down, 3), tree.stack(starts), data.data(range(3), 0, stacked=True))
    for client in range(3):
        alone = method.fit(CLIP, down, starts[client], data.data([client], 0, stacked=False))
        torch.testing.assert_close((tree.row(up, client), tree.row(kept, client)), alone, rtol=1e-4, atol=1e-5)
