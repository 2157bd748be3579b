"""pFedVPT on a frozen toy transformer: one round by hand, what travels, and where it equals pFedPG."""

from typing import Literal

import pytest
import torch

from promptfed.core import tree
from promptfed.core.tree import Tree
from promptfed.methods.pfedpg import PFedPG
from promptfed.methods.pfedvpt import PFedVPT
from support.toys import BLACK, FrozenTokens, dataset, numbered, rng, shards, task

TASK = task(FrozenTokens())
HEAD = ["head.weight", "head.bias"]
ONE_STEP = PFedVPT(prompt="own", tokens=1, smoothing=1.0, lr=1.0, batch=4, momentum=0.0, weight_decay=0.0)


def head(weight: float = 1.0, bias: float = 0.0) -> Tree:
    return {"head.weight": torch.tensor([[weight] * 3, [0.0] * 3]), "head.bias": torch.tensor([bias, -bias])}


def test_one_round_by_hand() -> None:
    own = shards(dataset([BLACK] * 4, [0, 1, 1, 1]), [1, 3])
    server, clients = head(), torch.arange(2)
    personal = {
        "own.prior": torch.tensor([[2 / 3, 1 / 3], [1 / 5, 4 / 5]]).log(),
        "own.prompt": torch.zeros(2, 1, 3),
    }
    for client in range(2):  # N + 1 over all classes: (2, 1) / 3 and (1, 4) / 5
        made = ONE_STEP.init_client(TASK, own.data([client], 0, stacked=False), rng(client))
        torch.testing.assert_close(made["own.prior"], personal["own.prior"][client])
    down = ONE_STEP.download(TASK, server, clients)
    up, kept = ONE_STEP.fit(TASK, down, personal, own.data([0, 1], 0, stacked=True))
    # the class token is the mean of one prompt token and four black pixels: 0; so p = π, and ∂/∂logits is ∓1/3 and ±1/5
    torch.testing.assert_close(tree.row(up, 0), head(bias=1 / 3))
    torch.testing.assert_close(tree.row(up, 1), head(bias=-1 / 5))
    # ∂/∂P is a fifth of ∂/∂class token, which is ∂/∂logit 0 times (1, 1, 1)
    torch.testing.assert_close(kept["own.prompt"][:, 0, 0], torch.tensor([1 / 15, -1 / 25]))
    torch.testing.assert_close(kept["own.prior"], personal["own.prior"])
    # (1 · 1/3 − 3 · 1/5) / 4
    after = ONE_STEP.aggregate(TASK, server, clients, up, ONE_STEP.weight(own.facts([0, 1])))
    torch.testing.assert_close(after, head(bias=-1 / 15))


def test_class_shares_count_in_the_answer() -> None:
    params = head() | {"own.prior": torch.tensor([0.25, 0.75]).log(), "own.prompt": torch.zeros(1, 3)}
    batch = {"x": torch.zeros(1, 3, 2, 2)}
    torch.testing.assert_close(ONE_STEP.predict(TASK, params, batch)[0], torch.tensor([0.25, 0.75]).log())
    del params["own.prior"]
    torch.testing.assert_close(ONE_STEP.predict(TASK, params, batch)[0], torch.zeros(2))


@pytest.mark.parametrize(
    ("method", "sent", "kept"),
    [
        (PFedVPT(prompt="own", tokens=5), 8, 2 + 15),
        (PFedVPT(prompt="own", tokens=5, prior=False), 8, 15),
        (PFedVPT(tokens=0), 8, 2),
        (PFedVPT(tokens=5, prompt="shared"), 8 + 15, 2),
        (PFedVPT(tokens=5, prompt="low-rank", rank=2), 8 + 15, 2 + 5 * 2 + 2 * 3),
        (PFedVPT(tokens=5, prompt="generated"), 8 + 15, 2),
        (PFedVPT(tokens=5, prompt="both", rank=1), 8 + 15, 2 + 5 + 3),
    ],
)
def test_what_travels_and_what_stays(method: PFedVPT, sent: int, kept: int) -> None:
    own, where = numbered([5, 2, 3]), task(FrozenTokens(spread=1.0), 3)
    down = method.download(where, method.init_server(where, rng()), torch.arange(3))
    rows = [method.init_client(where, own.data([c], 0, stacked=False), rng(c)) for c in range(3)]
    up, personal = method.fit(where, down, tree.stack(rows), own.data(range(3), 0, stacked=True))
    assert tree.floats(down) == tree.floats(up) == 3 * sent
    assert tree.floats(personal) == 3 * kept


def test_a_low_rank_part_starts_at_zero() -> None:
    method = PFedVPT(tokens=2, prompt="low-rank")
    own, where = numbered([4]), task(FrozenTokens(spread=1.0), 1)
    personal = method.init_client(where, own.data([0], 0, stacked=False), rng(0))
    assert not (personal["own.left"] @ personal["own.right"]).any()
    assert personal["own.left"].any()  # else neither factor would ever get a gradient


def test_a_generator_follows_the_prompts_as_in_pfedpg() -> None:
    method, same = PFedVPT(tokens=2, prompt="generated"), PFedPG(tokens=2, optimiser="adam")
    where, clients = task(FrozenTokens(spread=1.0), 3), torch.arange(3)
    server = method.init_server(where, rng())
    inner = {name.removeprefix("generator."): x for name, x in server.items() if name.startswith("generator.")}
    torch.testing.assert_close(inner, same.init_server(where, rng()))
    up = tree.repeat(tree.pick(server, HEAD), 3) | {"delta": torch.randn(3, 2, 3)}
    weights = torch.tensor([1.0, 2.0, 3.0])
    moved = method.aggregate(where, server, clients, up, weights)
    expected = same.aggregate(where, inner, clients, {"delta": up["delta"]}, weights)
    torch.testing.assert_close(
        moved, {f"generator.{name}": x for name, x in expected.items()} | tree.pick(server, HEAD)
    )


@pytest.mark.parametrize("prompt", ["generated", "both"])
def test_newcomers_get_descriptors_and_leave_the_rest_as_it_is(prompt: Literal["generated", "both"]) -> None:
    method, same = PFedVPT(tokens=2, prompt=prompt), PFedPG(tokens=2, optimiser="adam")
    where, everyone, last = task(FrozenTokens(spread=1.0), 3), torch.arange(4), torch.tensor([3])
    server = method.init_server(where, rng())
    grown = method.admit(where, server, last, rng())
    inner = {name.removeprefix("generator."): x for name, x in grown.items() if name.startswith("generator.")}
    assert grown["generator.descriptor"].shape == (4, 1, 3)
    assert grown["generator.first.descriptor"].shape == (4, 1, 3)
    before = method.download(where, grown, everyone)
    up = tree.repeat(head(7.0), 1) | {"delta": torch.full((1, 2, 3), 0.1)}
    after = method.join(where, grown, last, up, torch.ones(1))
    assert after.keys() == grown.keys()
    fitted = same.join(where, inner, last, {"delta": up["delta"]}, torch.ones(1))
    assert after["generator.descriptor"].equal(fitted["descriptor"])
    now = method.download(where, after, everyone)
    assert all(now[name][:3].equal(before[name][:3]) for name in now)  # whoever was there before
    assert all(after[name].equal(server[name]) for name in HEAD)
    target = before["prompt"][3] + 0.1
    assert (now["prompt"][3] - target).norm() < (before["prompt"][3] - target).norm()


def test_newcomers_change_nothing_that_is_shared() -> None:
    method, where, last = PFedVPT(tokens=2), task(FrozenTokens(spread=1.0), 3), torch.tensor([3])
    server = method.init_server(where, rng())
    assert method.admit(where, server, last, rng()) is server
    up = tree.repeat(tree.map(torch.zeros_like, server), 1)
    assert method.join(where, server, last, up, torch.ones(1)) is server


def test_only_a_model_without_own_prompts_can_do_without_a_client() -> None:
    where = task(FrozenTokens(spread=1.0), 3)
    for method, able in ((PFedVPT(prompt="shared"), True), (PFedVPT(tokens=0), True), (PFedVPT(prompt="own"), False)):
        assert bool(method.deploy(where, method.init_server(where, rng()))) is able


def test_trained_models_have_the_tuned_prompt() -> None:
    method = PFedVPT(tokens=1, prompt="generated")
    made = method.trained(TASK, {"prompt": torch.ones(1, 3)}, {}, head() | {"delta": torch.full((1, 3), 0.5)})
    torch.testing.assert_close(made["prompt"], torch.full((1, 3), 1.5))
    assert set(made) == {"prompt", *HEAD}
