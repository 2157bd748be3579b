"""FedAPT on a toy dual encoder: a round by hand, keys that never move, and fast against exact inference."""

import math
from dataclasses import replace
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.options import make
from promptfed.core.tree import Tree
from promptfed.data.batches import Shards
from promptfed.methods import _unlabelled as unlabelled
from promptfed.methods._unlabelled import Mode
from promptfed.methods.fedapt import FedAPT
from support.toys import FrozenTokens, TinyDual, featured, rng, task

TASK = task(TinyDual())
ONE_STEP = FedAPT(domains=2, tokens=1, lr=1.0, batch=4, weight_decay=0.0)
SHARED = FedAPT(mode="unsupervised", domains=2, tokens=1, lr=1.0, batch=4, weight_decay=0.0)
WRONG = 1 / (1 + math.e)  # what softmax (1, 0) gives to the second


def server(context: Tensor, keys: list[list[float]], query: list[list[float]] | None = None) -> Tree:
    weight = torch.tensor(query or [[0.0, 0.0]] * len(keys))
    return {"context": context, "query.weight": weight, "keys": torch.tensor(keys).unsqueeze(1)}


def sharp_data(sizes: list[int], views: int, swap: bool = False, domains: int = 2) -> Shards:
    """Return random features near two axes; client k is of domain k."""
    draw = torch.Generator().manual_seed(3)
    count = sum(sizes)
    labels = [number % 2 for number in range(count)]
    x = 2 * torch.eye(2)[labels] + 0.5 * torch.randn(count, 2, generator=draw)
    seen = x.unsqueeze(1) + 0.2 * torch.randn(count, views, 2, generator=draw) if views else None
    where = [client % domains for client, size in enumerate(sizes) for _ in range(size)]
    given = [1 - label for label in labels] if swap else labels
    return featured(x, given, sizes, domains=where, views=seen, draws=unlabelled.DRAWS if views else {})


# -- supervised ---------------------------------------------------------------------------------------------------


def test_one_round_by_hand() -> None:
    start = server(torch.zeros(2, 1, 2), [[0.0, 0.0], [0.5, 0.5]])
    own = featured(torch.tensor([[2.0, 0.0]] * 4), [0] * 4, [1, 3], domains=[0, 1, 1, 1])
    clients = torch.arange(2)
    down = ONE_STEP.download(TASK, start, clients)
    up, personal = ONE_STEP.fit(TASK, down, {}, own.data([0, 1], 0, stacked=True))
    # without context the texts are the axes and the logits (1, 0), so ∂L_c/∂logits = (−w, w) with w = 1 / (1 + e);
    # the text of class 0 already points at the image; that of class 1 turns away from it, by w times (1 + e_k)
    torch.testing.assert_close(up["context"][0, :, 0], torch.tensor([[0.0, 0.0], [-WRONG, 0.0]]))
    torch.testing.assert_close(up["context"][1, :, 0], torch.tensor([[0.0, 0.0], [-1.5 * WRONG, 0.0]]))
    # ∂L_q/∂logits = ∓1/2, and the feature (2, 0) comes in its own length
    torch.testing.assert_close(up["query.weight"][0], torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
    torch.testing.assert_close(up["query.weight"][1], torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))
    assert personal == {}
    # Eq. 12: the client with three images counts no more than the other
    after = ONE_STEP.aggregate(TASK, start, clients, up, ONE_STEP.weight(own.facts([0, 1])))
    torch.testing.assert_close(after["context"][:, 0], torch.tensor([[0.0, 0.0], [-1.25 * WRONG, 0.0]]))
    torch.testing.assert_close(after["query.weight"], torch.zeros(2, 2))
    torch.testing.assert_close(after["keys"], start["keys"], rtol=0, atol=0)


def test_the_loss_is_that_of_classes_and_domains() -> None:
    data = featured(torch.tensor([[2.0, 0.0]]), [0], [1], domains=[1]).data([0], 0, stacked=False)
    (batch,) = data.batches(size=1)
    params = server(torch.zeros(2, 1, 2), [[0.0, 0.0], [0.0, 0.0]], query=[[1.0, 0.0], [0.0, 0.0]])
    value = ONE_STEP.loss(TASK, {}, params, batch)
    torch.testing.assert_close(value, torch.tensor(math.log(1 + math.exp(-1)) + math.log(1 + math.exp(2))))


@pytest.mark.parametrize("mode", ["supervised", "unsupervised"])
@pytest.mark.parametrize("stage1", [0, 1])
def test_keys_never_move_and_never_travel_back(mode: Mode, stage1: int) -> None:
    method = FedAPT(mode=mode, domains=2, tokens=2, batch=2, stage1=stage1)
    own = sharp_data([5, 3], method.traits.views)
    first = method.init_server(TASK, rng())
    kept, clients = first["keys"].clone(), torch.arange(2)
    down = method.download(TASK, first, clients)
    personal = tree.stack([method.init_client(TASK, own.data([0], 0, stacked=False), rng(0))] * 2)
    up, _ = method.fit(TASK, down, personal, own.data([0, 1], 0, stacked=True))
    assert set(up) == {"context", "query.weight"}
    assert set(down) == {"context", "query.weight", "keys"}
    after = method.aggregate(TASK, first, clients, up, torch.ones(2))
    torch.testing.assert_close(after["keys"], kept, rtol=0, atol=0)
    assert method.traits.once == ("keys",)


def test_labels_are_not_read_without_supervision() -> None:
    for stage1 in (0, 1):
        method = FedAPT(mode="unsupervised", domains=2, tokens=2, batch=2, stage1=stage1)
        down = method.init_server(TASK, rng())
        results = []
        for swap in (False, True):
            data = sharp_data([5, 3], method.traits.views, swap).data([0], 0, stacked=False)
            results.append(method.fit(TASK, down, method.init_client(TASK, data, rng(0)), data))
        torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)


# -- unsupervised -------------------------------------------------------------------------------------------------


def two_images() -> Shards:
    """Return one image on each axis, all of whose views lie between the axes."""
    views = torch.ones(2, unlabelled.VIEWS, 2)
    return featured(torch.eye(2), [0, 1], [2], domains=[1, 1], views=views, draws=unlabelled.DRAWS)


def test_the_first_stage_by_hand() -> None:
    (batch,) = two_images().data([0], 0, stacked=False).batches(size=2)
    params = server(torch.zeros(1, 2), [[0.0, 0.0], [0.0, 0.0]], query=[[1.0, 0.0], [0.0, 0.0]])
    sharp = task(TinyDual(sharpness=math.log(9)))
    # the images are of their classes with 0.9, the views of either with 0.5; the domains' logits of a view are (1, 0)
    value = SHARED.self_training(sharp, {}, params, batch)
    torch.testing.assert_close(value, torch.tensor(math.log(2) + math.log(1 + math.e)))
    # nobody is as sure as this
    value = replace(SHARED, threshold=0.95).self_training(sharp, {}, params, batch)
    torch.testing.assert_close(value, torch.tensor(math.log(1 + math.e)))


def test_the_second_stage_by_hand() -> None:
    data = two_images().data([0], 0, stacked=False)
    (batch,) = data.batches(size=2, ordered=True)
    scores = torch.tensor([[0.9, 0.1], [0.1, 0.9]])
    params = server(torch.zeros(1, 2), [[0.0, 0.0], [0.0, 0.0]])
    banks = {"bank.features": torch.eye(2), "bank.scores": scores.flip(0)}
    value, after = SHARED.comparison(task(TinyDual(sharpness=math.log(9))), {}, params | banks, batch)
    # L_inter: each image's one neighbour is the other, z_0·z_1 = 0.18, and so is the rest of the batch: 0.09 − 0.18;
    # L_intra: the bank still has the other image's scores, the views have (0.5, 0.5)
    inter, intra = 0.09 - 0.18, 0.9 * math.log(1.8) + 0.1 * math.log(0.2)
    torch.testing.assert_close(value, torch.tensor(inter + intra + math.log(2)))
    torch.testing.assert_close(after["bank.scores"], scores)


def test_the_round_picks_the_stage() -> None:
    method = FedAPT(mode="unsupervised", domains=2, tokens=2, batch=2, stage1=3)
    own, down = sharp_data([5, 3], method.traits.views), method.init_server(TASK, rng())
    empty = method.init_client(TASK, own.data([1], 0, stacked=False), rng(1))
    torch.testing.assert_close(empty, {"bank.scores": torch.zeros(5, 2)}, rtol=0, atol=0)
    _, kept = method.fit(TASK, down, empty, own.data([1], 2, stacked=False))
    assert kept is empty
    _, kept = method.fit(TASK, down, empty, own.data([1], 3, stacked=False))
    torch.testing.assert_close(kept["bank.scores"].sum(-1), torch.tensor([1.0, 1, 1, 0, 0]))


def test_a_client_without_confident_images_still_learns_its_domain() -> None:
    method = replace(SHARED, threshold=1.0)
    data = sharp_data([4], method.traits.views).data([0], 0, stacked=False)
    down = server(torch.zeros(1, 2), [[0.0, 0.0], [0.0, 0.0]])
    up, _ = method.fit(TASK, down, method.init_client(TASK, data, rng(0)), data)
    torch.testing.assert_close(up["context"], down["context"], rtol=0, atol=0)
    assert up["query.weight"].abs().sum() > 0.1


@pytest.mark.parametrize(
    "method",
    [
        FedAPT(domains=3, tokens=2, batch=2, epochs=2),
        FedAPT(mode="unsupervised", domains=3, tokens=2, batch=2, epochs=2, stage1=9),
        FedAPT(mode="unsupervised", domains=3, tokens=2, batch=2, epochs=2, stage1=0),
        FedAPT(mode="unsupervised", domains=3, tokens=2, batch=3, stage1=0, intra="printed", neighbours=1),
        FedAPT(mode="unsupervised", domains=3, tokens=2, batch=3, stage1=0, intra="double-softmax"),
    ],
    ids=["supervised", "stage 1", "stage 2", "stage 2 as printed", "stage 2 as coded"],
)
def test_a_client_alone_does_what_it_does_in_the_stack(method: FedAPT) -> None:
    own, down = sharp_data([5, 1, 7], method.traits.views, domains=3), method.init_server(TASK, rng())
    start = method.init_client(TASK, own.data([0], 0, stacked=False), rng(0))
    data = own.data(range(3), 4, stacked=True)
    up, personal = method.fit(TASK, tree.repeat(down, 3), tree.repeat(start, 3), data)
    for client in range(3):
        alone = method.fit(TASK, down, start, own.data([client], 4, stacked=False))
        torch.testing.assert_close((tree.row(up, client), tree.row(personal, client)), alone, rtol=1e-4, atol=1e-5)


# -- the adaptive network -----------------------------------------------------------------------------------------


def shares(method: FedAPT, logits: list[float]) -> list[float]:
    """Return q of an image whose domain logits are given."""
    weight = torch.tensor(logits, dtype=torch.float32).unsqueeze(1)
    found: list[float] = method.shares({"query.weight": weight}, torch.ones(1)).tolist()
    return found


def test_domain_logits_are_standardised_by_hand() -> None:
    # (1, 2, 3) has mean 2 and the unbiased deviation 1
    whole = 1 + math.e + math.e**2
    expected = [1 / whole, math.e / whole, math.e**2 / whole]
    assert shares(FedAPT(domains=3, tau=1.0), [1, 2, 3]) == pytest.approx(expected, rel=1e-5)
    assert shares(FedAPT(domains=3, tau=1.0), [10, 20, 30]) == pytest.approx(expected, rel=1e-5)
    assert shares(FedAPT(domains=3, tau=0.01), [1, 2, 3]) == pytest.approx([0, 0, 1])
    plain = FedAPT(domains=3, tau=2.0, domain_logit_norm="none")
    ten, twenty = math.exp(-20), math.exp(-10)
    assert shares(plain, [0, 20, 40]) == pytest.approx([v / (1 + ten + twenty) for v in (ten, twenty, 1)], rel=1e-5)


def test_a_sure_winner_among_six_is_at_two() -> None:
    found = shares(FedAPT(domains=6, tau=1.0), [1, 0, 0, 0, 0, 0])
    # (5/6) / √(1/6) = 2.04 above the mean, the others 0.41 below
    assert math.log(found[0] / found[1]) == pytest.approx(math.sqrt(6), rel=1e-5)
    assert sum(found) == pytest.approx(1)


@pytest.mark.parametrize("norm", ["zscore", "none"])
def test_equal_domain_logits_share_equally(norm: Literal["zscore", "none"]) -> None:
    for value in (0.0, 7.0):
        assert shares(FedAPT(domains=4, domain_logit_norm=norm), [value] * 4) == pytest.approx([0.25] * 4)


def test_a_single_domain_has_it_all() -> None:
    assert shares(FedAPT(domains=1), [3.0]) == [1.0]


# -- inference ----------------------------------------------------------------------------------------------------

LENT = server(torch.tensor([[0.0, 1.0]]), [[0.0, 0.0], [-1.0, -1.0]])
IMAGE = {"x": torch.tensor([[2.0, 0.0]])}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # key 0 leaves the context (0, 1): class 0 is at (1, 1) / √2; key 1 undoes it: class 0 is at (1, 0);
        # class 1 is on its own axis with both, and the domain logits are equal
        ({}, (math.sqrt(0.5) + 1) / 2),
        ({"renorm": True}, math.cos(math.pi / 8)),  # half way between 0° and 45°
        ({"inference": "exact"}, 1 / math.sqrt(1.25)),  # the context (0, ½)
        ({"test_key": "none"}, math.sqrt(0.5)),
        ({"test_key": "fixed", "fixed_key": 0}, math.sqrt(0.5)),
        ({"test_key": "fixed", "fixed_key": 1}, 1.0),
        ({"test_key": "fixed", "fixed_key": 1, "inference": "exact"}, 1.0),
    ],
)
def test_answers_by_hand(changes: dict[str, object], expected: float) -> None:
    method = make(FedAPT, {"mode": "unsupervised", "domains": 2, "tokens": 1} | changes, "method")
    prepared = method.prepare(TASK, LENT)
    torch.testing.assert_close(method.predict(TASK, prepared, IMAGE), torch.tensor([[expected, 0.0]]))
    torch.testing.assert_close(method.predict(TASK, LENT, IMAGE), torch.tensor([[expected, 0.0]]))


@pytest.mark.parametrize(
    "changes", [{}, {"renorm": True}, {"inference": "exact"}, {"test_key": "none"}, {"test_key": "fixed"}]
)
def test_images_are_sorted_by_all_keys_however_they_are_answered(changes: dict[str, object]) -> None:
    method = make(FedAPT, {"mode": "unsupervised", "domains": 2, "tokens": 1} | changes, "method")
    found = method.sorter(TASK, LENT)(IMAGE)
    torch.testing.assert_close(found["shares"], torch.tensor([[0.5, 0.5]]))
    torch.testing.assert_close(found["logits"], torch.tensor([[[math.sqrt(0.5), 0.0], [1.0, 0.0]]]))


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    mode=st.sampled_from(["supervised", "unsupervised"]),
    key=st.sampled_from(["adaptive", "none", "fixed"]),
    renorm=st.booleans(),
    stacked=st.booleans(),
)
def test_fast_is_exact_when_one_key_is_chosen(
    seed: int, mode: Mode, key: Literal["adaptive", "none", "fixed"], renorm: bool, stacked: bool
) -> None:
    draw = torch.Generator().manual_seed(seed)
    encoder = task(TinyDual(classes=3, width=4, sharpness=5.0))
    encoder = replace(encoder, classes=("a", "b", "c"))
    fast = FedAPT(mode=mode, domains=3, tokens=2, test_key=key, fixed_key=1, renorm=renorm)
    params = fast.init_server(encoder, rng(seed=seed)) | {"query.weight": torch.eye(3, 4)}
    params["context"] = torch.randn(params["context"].shape, generator=draw)
    # logits of about (1, 0, 0): after standardising, the second is at least 100 · 1 below the first
    x = torch.eye(3, 4)[torch.randint(3, (5,), generator=draw)] + 0.05 * torch.randn(5, 4, generator=draw)
    if stacked:
        params, x = tree.repeat(params, 2), torch.stack([x, x.flip(0)])
    exact = replace(fast, inference="exact")
    found = fast.predict(encoder, fast.prepare(encoder, params), {"x": x})
    assert found.shape == (*x.shape[:-1], 3)
    torch.testing.assert_close(found, exact.predict(encoder, exact.prepare(encoder, params), {"x": x}))


# -- what is learned ----------------------------------------------------------------------------------------------


def test_keys_come_in_three_kinds() -> None:
    width = task(TinyDual(width=64))
    uniform, normal, orthogonal = (
        make(FedAPT, {"keys": kind, "tokens": 8}, "method").init_server(width, rng())["keys"]
        for kind in ("uniform", "normal", "orthogonal")
    )
    assert uniform.shape == normal.shape == orthogonal.shape == (4, 8, 64)
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert abs(uniform.mean().item() - 0.5) < 0.03
    assert abs(normal.std().item() - 1) < 0.05
    flat = orthogonal.flatten(1)
    torch.testing.assert_close(flat @ flat.T, 512 * torch.eye(4), rtol=1e-4, atol=1e-2)


def test_a_context_starts_small_per_class_or_shared() -> None:
    own = FedAPT().init_server(task(TinyDual(width=64)), rng())
    assert own["context"].shape == (2, 16, 64)
    assert own["query.weight"].shape == (4, 64)
    assert abs(own["context"].std().item() - 0.02) < 0.002
    assert FedAPT(mode="unsupervised").init_server(task(TinyDual(width=64)), rng())["context"].shape == (16, 64)


def test_views_are_wanted_without_labels_only() -> None:
    assert FedAPT().traits.views == 0
    assert FedAPT().draws(TASK) == {}
    assert FedAPT(mode="unsupervised").traits.views == unlabelled.VIEWS
    assert set(FedAPT(mode="unsupervised").draws(TASK)) == {"view"}


# -- bad input ----------------------------------------------------------------------------------------------------


def test_a_domain_without_a_key_is_refused() -> None:
    data = featured(torch.eye(2), [0, 1], [1, 1], domains=[0, 2]).data([1], 0, stacked=False)
    with pytest.raises(PromptFedError, match=r"^method.domains must be at least 3, not 2\.$"):
        FedAPT(domains=2).init_client(TASK, data, rng(1))


def test_a_key_that_is_not_there_is_refused() -> None:
    with pytest.raises(PromptFedError, match=r"^method.fixed_key must be at most 1, not 2\.$"):
        FedAPT(domains=2, test_key="fixed", fixed_key=2).init_server(TASK, rng())


def test_more_orthogonal_keys_than_there_is_room_for_are_refused() -> None:
    with pytest.raises(PromptFedError, match=r"^With orthogonal keys method.domains must be at most 2, not 3\.$"):
        FedAPT(domains=3, tokens=1, keys="orthogonal").init_server(TASK, rng())


def test_a_text_tower_is_needed() -> None:
    with pytest.raises(PromptFedError, match="needs a text tower"):
        FedAPT().init_server(task(FrozenTokens()), rng())


@pytest.mark.parametrize(("key", "value"), [("tokens", 0), ("domains", 0), ("batch", 0), ("threshold", 2.0)])
def test_numbers_that_cannot_train_are_refused(key: str, value: float) -> None:
    with pytest.raises(PromptFedError, match=f"method.{key} must be at"):
        make(FedAPT, {key: value}, "method")


@pytest.mark.parametrize("preset", FedAPT.presets)
def test_presets_are_options(preset: str) -> None:
    make(FedAPT, FedAPT.presets[preset], "method")
