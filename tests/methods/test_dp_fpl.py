"""DP-FPL: its factors and a round by hand, clipped and noisy, full rank against plain steps, and what it spends."""

import math
from dataclasses import replace
from typing import Literal

import pytest
import torch
from torch import Tensor

from promptfed.core import local, ops, tree
from promptfed.core.errors import PromptFedError
from promptfed.core.method import Task
from promptfed.core.options import make
from promptfed.core.prompts.text import match
from promptfed.core.protocols import Batch
from promptfed.core.tree import Tree
from promptfed.data.batches import ClientData
from promptfed.federation.examples_privacy import spent_on_examples
from promptfed.methods.dp_fpl import DPFPL, factors, through
from promptfed.methods.promptfl import PromptFL
from support.toy_clip import NAMES, NET, assert_close, normal
from support.toys import TinyDual, featured, rng, task

TASK = task(TinyDual())
CLIP = Task(NET, NAMES, 3)
PLAIN = DPFPL(tokens=2, rank=1, clip=1e6, noise=0.0, lr=1.0, batch=4, momentum=0.0, weight_decay=0.0)
WRONG = 1 / (1 + math.e)  # what softmax (1, 0) gives to the second

# the mean of p_G + p_L is zero, u is ±(0, 1) and v ±(0, 1): of a gradient, all but its first entry is seen
CONTEXT, OWN = torch.tensor([[0.0, -1.0], [0.0, -1.0]]), torch.tensor([[0.0, 0.0], [0.0, 2.0]])


def fit(method: DPFPL) -> tuple[Tree, Tree]:
    """Return what two clients send and keep: one has an image of the first class, the other two of the second."""
    own = featured(torch.tensor([[2.0, 0.0], [0.0, 5.0], [0.0, 5.0]]), [0, 1, 1], [1, 2], draws=method.draws(TASK))
    down = method.download(TASK, {"context": CONTEXT, "velocity": torch.zeros(2, 2)}, torch.arange(2))
    personal = tree.repeat({"own": OWN, "own_velocity": torch.zeros(2, 2)}, 2)
    return method.fit(TASK, down, personal, own.data([0, 1], 0, stacked=True))


def moves(found: tuple[Tree, Tree]) -> tuple[Tensor, Tensor]:
    """Return by how much p_G and p_L came down."""
    return CONTEXT - found[0]["context"], OWN - found[1]["own"]


# -- the factors ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_the_factors_are_orthonormal_and_with_the_rest_they_are_the_context(seed: int) -> None:
    own = normal(2, 6, 9, seed=seed)
    made = factors(own, normal(2, 9, 4, seed=seed + 10))
    u, v = made["u"], made["v"]
    assert_close(u.mT @ u, torch.eye(4).expand(2, 4, 4))
    assert_close(v @ v.mT, torch.eye(4).expand(2, 4, 4))
    assert_close(u @ v + made["rest"], own)
    assert_close((u @ v).flatten(-2).norm(dim=-1), torch.full((2,), 2.0))  # √k, however long p_L is


@pytest.mark.parametrize("seed", range(3))
def test_what_the_factors_see_is_a_projection_of_the_gradient(seed: int) -> None:
    made, grad = factors(normal(6, 9, seed=seed), normal(9, 3, seed=seed + 10)), normal(6, 9, seed=seed + 20)
    u, v = made["u"], made["v"]

    def seen(some: Tensor) -> Tensor:
        return through(u, v, some @ v.mT, u.mT @ some)

    once = seen(grad)
    assert_close(grad - once, (torch.eye(6) - u @ u.mT) @ grad @ (torch.eye(9) - v.mT @ v))
    assert_close(seen(once), once)
    assert_close((once * (grad - once)).sum(), torch.tensor(0.0))


# -- a round by hand ------------------------------------------------------------------------------------------------


def test_a_round_by_hand() -> None:
    # an image's gradient turns the text of the wrong class away, half of it by each token; a batch has four places
    context, own = moves(fit(PLAIN))
    g = WRONG / 8
    assert_close(context, torch.tensor([[[g, 0], [g, 0]], [[0, 2 * g], [0, 2 * g]]]))
    assert_close(
        own, torch.tensor([[[0, 0], [g, 0]], [[0, 2 * g], [0, 2 * g]]])
    )  # the first entry is seen by neither factor


def test_every_example_is_shortened_with_all_its_parts_together() -> None:
    context, own = moves(fit(replace(PLAIN, clip=0.1)))
    # (∇_G, ∇_u, ∇_v) is (w w | 0 0 | w) and (w w | w w | w) times an axis, w = WRONG / 2: of length w √3 and w √5
    first, second = 0.1 / 3**0.5 / 4, 2 * 0.1 / 5**0.5 / 4
    assert_close(context, torch.tensor([[[first, 0], [first, 0]], [[0, second], [0, second]]]))
    assert_close(own, torch.tensor([[[0, 0], [first, 0]], [[0, second], [0, second]]]))


def test_the_batch_is_shortened_as_a_whole_if_asked() -> None:
    context, _ = moves(fit(replace(PLAIN, clipping="batch", noise=0.0, clip=0.1)))
    first, second = 0.1 / 3**0.5, 0.1 / 5**0.5  # of the mean over images, not places
    assert_close(context, torch.tensor([[[first, 0], [first, 0]], [[0, second], [0, second]]]))


def drawn(method: DPFPL, data: ClientData) -> Batch:
    """Return the first batch of a round, with the noise that is drawn in it."""
    return next(iter(data.batches("step0", size=method.batch, steps=1)))


def test_noise_is_added_to_the_sum_before_the_factors_are_multiplied() -> None:
    method = replace(PLAIN, clip=0.1, noise=2.0)
    (context, own), (quiet, calm) = moves(fit(method)), moves(fit(replace(method, noise=0.0)))
    data = featured(torch.eye(3, 2), [0, 1, 1], [1, 2], draws=method.draws(TASK)).data([0, 1], 0, stacked=True)
    noise = drawn(method, data)
    assert_close(context - quiet, 2.0 * 0.1 / 4 * noise["noise.context"])
    made = factors(OWN.expand(2, 2, 2), data.draw("sketch0", (2, 1), "normal"))
    pulled = through(made["u"], made["v"], noise["noise.u"], noise["noise.v"])
    assert_close(own - calm, 2.0 * 0.1 / 4 * pulled)


def test_noise_on_a_clipped_batch_is_the_papers() -> None:
    method = replace(PLAIN, clipping="batch", clip=0.1, noise=2.0)
    (context, own), (quiet, calm) = moves(fit(method)), moves(fit(replace(method, noise=0.0)))
    data = featured(torch.eye(3, 2), [0, 1, 1], [1, 2]).data([0, 1], 0, stacked=True)
    z = {n: data.draw(f"noise.{n}0", s, "normal") for n, s in (("context", (2, 2)), ("u", (2, 1)), ("v", (1, 2)))}
    assert_close(context - quiet, 2.0 * 0.1 / 4 / 2**0.5 * z["context"])  # of two clients, the mean has a half of it
    made = factors(OWN.expand(2, 2, 2), data.draw("sketch0", (2, 1), "normal"))
    assert_close(own - calm, 2.0 * 0.1 / 4 * through(made["u"], made["v"], z["u"], z["v"]))
    assert not method.draws(TASK)


def test_the_server_moves_on_with_momentum_and_clients_count_once() -> None:
    method = replace(PLAIN, momentum=0.9)
    server = {"context": torch.ones(2, 2), "velocity": torch.full((2, 2), 0.5)}
    up = {"context": torch.stack([torch.full((2, 2), 0.8), torch.full((2, 2), 0.6)])}
    after = method.aggregate(TASK, server, torch.arange(2), up, method.weight({"size": torch.tensor([1.0, 9.0])}))
    assert_close(after["velocity"], torch.full((2, 2), 0.9 * 0.5 + 0.3))
    assert_close(after["context"], torch.full((2, 2), 1 - 0.75))


def test_a_client_goes_on_with_its_own_momentum() -> None:
    method = replace(PLAIN, momentum=0.5, steps=2)
    data = featured(normal(4, 10), [0, 1, 2, 0], [4]).data([0], 0, stacked=False)
    own = normal(2, 12, seed=1)
    start = {"own": own, "own_velocity": torch.full((2, 12), 0.25)}
    _, once = replace(method, steps=1).fit(CLIP, {"context": normal(2, 12)}, start, data)
    assert_close(once["own"], own - once["own_velocity"])
    still = {"own": own, "own_velocity": torch.zeros(2, 12)}
    _, fresh = replace(method, steps=1).fit(CLIP, {"context": normal(2, 12)}, still, data)
    assert_close(once["own_velocity"], fresh["own_velocity"] + 0.125)
    _, twice = method.fit(CLIP, {"context": normal(2, 12)}, start, data)
    assert_close(once["own"] - twice["own"], twice["own_velocity"])


# -- what it is at its ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("clipping", ["example", "batch"])
def test_at_full_rank_it_is_plain_sgd_of_both_contexts(clipping: Literal["example", "batch"]) -> None:
    """Without noise, and with a clip that nothing reaches; with the decay of both."""
    method = replace(PLAIN, clipping=clipping, tokens=3, rank=3, lr=0.1, batch=6, weight_decay=0.01)
    data = featured(normal(6, 10), [0, 1, 2, 0, 1, 2], [6]).data([0], 0, stacked=False)
    down, own = {"context": normal(3, 12)}, normal(3, 12, seed=1)
    up, kept = method.fit(CLIP, down, {"own": own, "own_velocity": torch.zeros(3, 12)}, data)

    def both(some: Task, start: Tree, params: Tree, batch: Batch) -> Tensor:
        text = NET.text(params["context"] + params["own"], per_class=False)
        return ops.cross_entropy(match(batch["x"], text, NET.scale), batch["y"], batch["mask"])

    batches = data.batches("step0", size=6, steps=1)
    plain = local.sgd(both, CLIP, batches, start={}, params=down | {"own": own}, lr=0.1, weight_decay=0.01)
    assert_close(up["context"], plain["context"], 1e-4)
    assert_close(kept["own"], plain["own"], 1e-4)


def test_another_example_moves_what_is_sent_by_two_clips_at_most() -> None:
    method = replace(PLAIN, tokens=3, rank=2, clip=0.01)
    down, personal = {"context": normal(3, 12)}, {"own": normal(3, 12, seed=1), "own_velocity": torch.zeros(3, 12)}
    images = normal(4, 10)
    other = torch.cat([images[:3], -9 * images[3:]])
    sent = [
        method.fit(CLIP, down, personal, featured(x, [0, 1, 2, 0], [4]).data([0], 0, stacked=False))[0]["context"]
        for x in (images, other)
    ]
    assert 0 < (sent[0] - sent[1]).norm() <= 2 * 0.01 / 4


def test_the_models_are_the_sum_and_the_server_s_alone() -> None:
    params, x = {"context": normal(3, 12), "own": normal(3, 12, seed=1)}, {"x": normal(4, 10)}
    coop = PromptFL(csc=False)
    found = DPFPL().predict(CLIP, params, x)
    assert found.equal(coop.predict(CLIP, {"context": params["context"] + params["own"]}, x))
    server = {"context": params["context"], "velocity": normal(3, 12)}
    assert DPFPL().predict(CLIP, DPFPL().deploy(CLIP, server), x).equal(coop.predict(CLIP, server, x))


def test_a_client_alone_does_what_it_does_in_the_stack() -> None:
    method = DPFPL(tokens=4, rank=2, batch=3, steps=2, lr=0.02, clip=0.5, noise=0.3)
    data = featured(normal(13, 10), [n % 3 for n in range(13)], [5, 1, 7], draws=method.draws(CLIP))
    down = tree.row(method.download(CLIP, method.init_server(CLIP, rng()), torch.arange(1)), 0)
    starts = [method.init_client(CLIP, data.data([n], 0, stacked=False), rng(n)) for n in range(3)]
    up, kept = method.fit(CLIP, tree.repeat(down, 3), tree.stack(starts), data.data(range(3), 0, stacked=True))
    for client in range(3):
        alone = method.fit(CLIP, down, starts[client], data.data([client], 0, stacked=False))
        torch.testing.assert_close((tree.row(up, client), tree.row(kept, client)), alone, rtol=1e-4, atol=1e-5)


# -- what travels, and what it costs --------------------------------------------------------------------------------


def test_what_travels_and_what_stays() -> None:
    wide, method = Task(TinyDual(10, 512), tuple(map(str, range(10))), 4), DPFPL()
    data = featured(torch.eye(10, 512), list(range(10)), [10], draws=method.draws(wide)).data([0], 0, stacked=False)
    server, personal = method.init_server(wide, rng()), method.init_client(wide, data, rng(0))
    down = method.download(wide, server, torch.arange(1))
    up, kept = method.fit(wide, tree.row(down, 0), personal, data)
    assert (tree.floats(down), tree.floats(up), tree.floats(kept)) == (8192, 8192, 2 * 8192)
    assert not personal["own"].equal(method.init_client(wide, data, rng(1))["own"])


def test_every_step_is_paid_for_and_a_clipped_batch_promises_nothing() -> None:
    assert DPFPL(noise=6.0, steps=3, delta=1e-6).spends() == (6.0, 1e-6, 3)
    assert spent_on_examples(DPFPL(clipping="batch", noise=6.0), [[0, 1], [1]], [0, 1]) == {}
    assert spent_on_examples(DPFPL(noise=0.0), [[0, 1], [1]], [0, 1]) == {}


@pytest.mark.parametrize("epsilon", [0.4, 0.1, 0.01])
def test_presets_have_the_noise_of_the_papers_rule(epsilon: float) -> None:
    method = make(DPFPL, DPFPL.presets[f"code-{epsilon}"], "method")
    assert method.noise == pytest.approx(math.sqrt(100 * math.log(1e5)) / epsilon, abs=0.06)
    assert method.spends()[0] == 0


def test_more_factors_than_tokens_are_refused() -> None:
    with pytest.raises(PromptFedError, match=r"^method\.rank=8 is more than method\.tokens=4; lower it to that\.$"):
        DPFPL(tokens=4).init_server(CLIP, rng())


def test_classes_are_weighed_only_where_a_batch_is_clipped() -> None:
    assert not DPFPL().traits.weighs
    assert DPFPL(clipping="batch").traits.weighs
