"""TRIP: clusters and their matching by hand, a round by hand, the moving average, its ends, and what travels."""

import math
from typing import Any

import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from promptfed.core import keys, ops, tree
from promptfed.core.errors import PromptFedError
from promptfed.core.method import Task
from promptfed.core.options import make
from promptfed.core.prompts.text import match, said
from promptfed.data.batches import Pool, Shards
from promptfed.methods.promptfl import PromptFL
from promptfed.methods.trip import TRIP, clustered, matched, routed
from support.toy_clip import NAMES, NET, assert_close, normal
from support.toys import BLACK, TinyDual, dataset, rng, shares, task

TASK = task(TinyDual())
CLIP = Task(NET, NAMES, 3)
WRONG = 1 / (1 + math.e)  # what softmax (1, 0) gives to the second
STEP: dict[str, Any] = {"experts": 2, "tokens": 1, "batch": 4, "weight_decay": 0.0, "lr": 0.5}
ACROSS = torch.tensor([[1.0, 0.0]])


def known(features: Tensor, labels: list[int], sizes: list[int], train: Tensor, test: Tensor | None = None) -> Shards:
    """Deal features to clients in order, with their routing weights."""
    images = dataset([BLACK] * len(labels), labels, classes=max(labels) + 1)
    extras = {"constant.train": train, "constant.test": train if test is None else test}
    return Shards(Pool(images, torch.device("cpu"), features, extras), shares(sizes), shares(sizes), 0, {})


def mixtures(count: int, experts: int) -> Tensor:
    return normal(count, experts, seed=5).softmax(-1)


# -- the routing ----------------------------------------------------------------------------------------------------


def row(*places: float, height: float = 5.0) -> Tensor:
    """Return patches of one image at these places, all at the same height."""
    return torch.tensor([[[place, height] for place in places]])


def test_clusters_by_hand() -> None:
    patches = row(0, 1, 2, 10)
    # from 0 and 2 the centres go to ½ and 6, and then 2 would rather be with 0 and 1, where there is no room
    sizes, centres = clustered(patches, ACROSS, 2, 1)
    assert sizes.tolist() == [[2, 1]]
    assert_close(centres, torch.tensor([[[0.5, 5.0], [10.0, 5.0]]]))
    sizes, centres = clustered(patches, ACROSS, 2, 2)
    assert sizes.tolist() == [[3, 1]]
    assert_close(centres, torch.tensor([[[1.0, 5.0], [10.0, 5.0]]]))


def test_an_empty_cluster_starts_again_far_away() -> None:
    # both start at 0, where only one of them is the first; it has room for two
    sizes, centres = clustered(row(0, 0, 0, 9), ACROSS, 2, 1)
    assert sizes.tolist() == [[2, 1]]
    assert_close(centres[..., 0], torch.tensor([[0.0, 9.0]]))


def test_what_is_left_over_goes_to_the_first_clusters() -> None:
    sizes, _ = clustered(row(0, 0, 0, 0, 9, 9, 9), ACROSS, 2, 1)
    assert sizes.tolist() == [[4, 3]]  # 7 patches: room for 4 and 3


def test_experts_are_matched_with_clusters_as_a_whole() -> None:
    # the best pair first would leave 0.9 + 0.1
    assert matched(torch.tensor([[[0.9, 0.8], [0.8, 0.1]]])).tolist() == [[1, 0]]
    scores = normal(20, 5, 5)
    assert matched(scores).tolist() == [linear_sum_assignment(-score.numpy())[1].tolist() for score in scores]


def test_the_share_of_an_expert_is_that_of_its_patches() -> None:
    patches, fixed = row(0, 1, 2, 10), torch.eye(2)
    # the small cluster is far to the right, as the first key points, the large one above, as the second does
    assert_close(routed(patches, fixed, ACROSS, 1), torch.tensor([[1 / 3, 2 / 3]]))
    assert_close(routed(patches, fixed, ACROSS, 2), torch.tensor([[0.25, 0.75]]))


@pytest.mark.parametrize("room", [1, 2])
def test_neither_the_order_of_patches_nor_other_images_matter(room: int) -> None:
    patches, fixed, draw = normal(6, 30, 4), normal(3, 4, seed=1), normal(6, 4, seed=2)
    found = routed(patches, fixed, draw, room)
    assert_close(found.sum(-1), torch.ones(6))
    assert found.std() > (0.01 if room == 2 else 0)
    turned = patches[:, torch.randperm(30, generator=torch.Generator().manual_seed(0))]
    assert_close(routed(turned, fixed, draw, room), found)
    for number in range(6):
        one = slice(number, number + 1)
        assert_close(routed(patches[one], fixed, draw[one], room), found[one])


def test_constants_come_from_the_patches_before_the_space_of_texts() -> None:
    batch = {"x": normal(5, 3, 16, 16), "key": torch.arange(5)}
    found = TRIP(experts=3).constants(CLIP, batch)
    assert {name: tuple(value.shape) for name, value in found.items()} == {"train": (5, 3), "test": (5, 3)}
    assert found["train"].max() <= 6 / 11 + 1e-6  # 16 patches: room for 6, 5 and 5, and none of them need be full
    again = TRIP(experts=3).constants(CLIP, {name: value[2:3] for name, value in batch.items()})
    assert_close(again["test"], found["test"][2:3])
    for method in (TRIP(experts=3), TRIP(experts=3, keys="uniform")):
        fixed = method._keys(CLIP, 16)
        patches = NET.patches({}, batch["x"], project=False)[:, 1:]
        assert patches.shape[-1] == 16 != NET.patches({}, batch["x"]).shape[-1]
        assert_close(method.constants(CLIP, batch)["test"], routed(patches, fixed, keys.normal(batch["key"], (16,)), 2))
    orthogonal = TRIP(experts=3)._keys(CLIP, 16)
    assert_close(orthogonal @ orthogonal.T, torch.eye(3))
    assert orthogonal.equal(TRIP(experts=3)._keys(Task(NET, NAMES, 9), 16))  # of the seed alone


# -- a round by hand ------------------------------------------------------------------------------------------------


def test_one_round_by_hand() -> None:
    train = torch.tensor([[0.25, 0.75], [1.0, 0.0], [1.0, 0.0]])
    data = known(torch.tensor([[2.0, 0.0], [0.0, 5.0], [0.0, 5.0]]), [0, 1, 1], [1, 2], train)
    method, clients = TRIP(**STEP, optimiser="sgd", span=1), torch.arange(2)
    server = method.init_server(TASK, rng()) | {"experts": torch.zeros(2, 1, 2), "average": torch.zeros(2, 1, 2)}
    down = method.download(TASK, server, clients)
    assert down.keys() == {"experts"}
    up, _ = method.fit(TASK, down, {}, data.data([0, 1], 0, stacked=True))
    # the text of the wrong class turns away from the image, by each expert's share. The teacher says what the model
    # says, at first, so it pulls nowhere
    moved = -0.5 * WRONG * torch.tensor([[[[0.25, 0.0]], [[0.75, 0.0]]], [[[0.0, 1.0]], [[0.0, 0.0]]]])
    assert_close(up["experts"], moved)
    after = method.aggregate(TASK, server, clients, up, method.weight(data.facts([0, 1])))
    assert_close(after["experts"], moved[0] / 3 + 2 * moved[1] / 3)  # by images
    # with one round ahead both ends of the Beta distribution weigh the same: half of the start, half of the end
    assert_close(method.deploy(TASK, after)["experts"], after["experts"] / 2)
    assert after["round"] == 1


def test_the_first_step_of_adamw_is_as_long_as_the_rate() -> None:
    train = torch.tensor([[0.25, 0.75]])
    data = known(torch.tensor([[2.0, 0.0]]), [0], [1], train).data([0], 0, stacked=False)
    start = {"experts": torch.tensor([[[0.0, 0.0]], [[0.0, 0.0]]])}
    up, _ = TRIP(**STEP).fit(TASK, start, {}, data)
    assert_close(up["experts"], torch.tensor([[[-0.5, 0.0]], [[-0.5, 0.0]]]))
    still = {"experts": torch.tensor([[[0.0, 0.0]], [[0.0, 8.0]]])}  # the second expert has no part in this image
    data = known(torch.tensor([[2.0, 0.0]]), [0], [1], torch.tensor([[1.0, 0.0]])).data([0], 0, stacked=False)
    up, _ = TRIP(**STEP | {"weight_decay": 0.1}).fit(TASK, still, {}, data)
    assert_close(up["experts"][1], torch.tensor([[0.0, 8.0 - 0.5 * 0.1 * 8.0]]))  # but it decays


def test_rounds_are_averaged_by_the_beta_distribution() -> None:
    method = TRIP(span=3)
    server: dict[str, Tensor] = {"experts": torch.zeros(1), "average": torch.zeros(1), "round": torch.zeros(())}
    server["total"] = method._weight(torch.tensor(0.0))
    weights = [(place * (1 - place)) ** -0.8 for place in (1 / 8, 3 / 8, 5 / 8, 7 / 8, 7 / 8)]  # later ones as the last
    assert_close(server["total"], torch.tensor(weights[0]))
    for count in range(1, 5):
        up = {"experts": torch.full((1, 1), float(count))}
        server = method.aggregate(TASK, server, torch.arange(1), up, torch.ones(1))
        wanted = sum(w * t for t, w in enumerate(weights[: count + 1])) / sum(weights[: count + 1])
        assert_close(method.deploy(TASK, server)["experts"], torch.tensor([wanted]))
    assert TRIP(span=0).init_server(TASK, rng()).keys() == {"experts"}


def test_the_loss_is_cross_entropy_and_what_clip_says() -> None:
    x, y, mask = normal(4, 10), torch.tensor([0, 1, 2, 0]), torch.tensor([1.0, 1.0, 1.0, 0.0])
    params = {"experts": normal(3, 2, 12)}
    batch = {"x": x, "y": y, "mask": mask, "constant.train": mixtures(4, 3), "constant.test": mixtures(4, 3)}
    method = TRIP(teach=2.0, templates=("a photo of a {}.", "a drawing of a {}."))
    logits = method.predict(CLIP, params, batch)
    taught = match(x, said(CLIP, *method.templates), NET.scale).softmax(-1)
    apart = -(taught * logits.log_softmax(-1)).sum(-1)[:3].mean()
    plain = ops.cross_entropy(logits, y, mask)
    assert_close(method.loss(CLIP, {}, params, batch), plain + 2 * apart)
    assert_close(TRIP(teach=0.0).loss(CLIP, {}, params, batch), plain)


# -- what it is at its ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mix", ["contexts", "logits"])
def test_one_expert_without_a_teacher_is_promptfl(mix: str) -> None:
    data = known(normal(7, 10), [n % 3 for n in range(7)], [7], torch.ones(7, 1)).data([0], 0, stacked=False)
    rates: dict[str, Any] = {"lr": 0.1, "batch": 3, "epochs": 2, "momentum": 0.9, "weight_decay": 1e-3}
    method = make(TRIP, {"experts": 1, "teach": 0.0, "mix": mix, "optimiser": "sgd", **rates}, "method")
    start = normal(3, 12)
    up, _ = method.fit(CLIP, {"experts": start[None]}, {}, data)
    plain, _ = PromptFL(csc=False, **rates).fit(CLIP, {"context": start}, {}, data)
    assert (plain["context"] - start).norm() > 0.1
    assert_close(up["experts"][0], plain["context"], 1e-4)


def test_equal_shares_are_the_mean_of_the_contexts() -> None:
    x, experts = normal(5, 10), normal(4, 2, 12)
    found = TRIP().predict(CLIP, {"experts": experts}, {"x": x, "constant.test": torch.full((5, 4), 0.25)})
    text = NET.text(experts.mean(0), per_class=False)
    assert_close(found, match(x, text, NET.scale), 1e-4)


def test_by_sgd_equal_shares_move_as_one_context_at_an_nth_of_the_rate() -> None:
    # each of n experts gets an nth of the gradient, so their mean moves an nth as far; its decay stays as it was
    data = known(normal(7, 10), [n % 3 for n in range(7)], [7], torch.full((7, 4), 0.25)).data([0], 0, stacked=False)
    common: dict[str, Any] = {"batch": 3, "epochs": 2, "momentum": 0.9}
    experts = normal(4, 3, 12)
    rates: dict[str, Any] = {"optimiser": "sgd", "teach": 0.0, "lr": 0.4, "weight_decay": 1e-3}
    up, _ = TRIP(experts=4, **rates, **common).fit(CLIP, {"experts": experts}, {}, data)
    plain, _ = PromptFL(csc=False, lr=0.1, weight_decay=4e-3, **common).fit(
        CLIP, {"context": experts.mean(0)}, {}, data
    )
    assert (plain["context"] - experts.mean(0)).norm() > 0.1
    assert_close(up["experts"].mean(0), plain["context"], 1e-4)


def test_mixed_logits_are_mixed_contexts_where_an_image_has_one_expert() -> None:
    x, experts = normal(6, 10), normal(3, 2, 12)
    fast = TRIP(mix="logits")
    prepared = fast.prepare(CLIP, {"experts": experts})
    assert prepared["text"].shape == (3, 3, 10)
    gaps = []
    for share in (torch.eye(3)[[0, 1, 2, 2, 1, 0]], torch.full((6, 3), 1 / 3)):
        batch = {"x": x, "constant.test": share}
        exact = TRIP().predict(CLIP, {"experts": experts}, batch)
        gaps.append((fast.predict(CLIP, prepared, batch) - exact).abs().max())
    assert gaps[0] < 1e-3 < 0.1 < gaps[1]


@pytest.mark.parametrize("options", [{}, {"mix": "logits"}, {"optimiser": "sgd", "momentum": 0.9}])
def test_a_client_alone_does_what_it_does_in_the_stack(options: dict[str, Any]) -> None:
    data = known(normal(13, 10), [n % 3 for n in range(13)], [5, 1, 7], mixtures(13, 2))
    method = make(TRIP, {"experts": 2, "tokens": 2, "batch": 3, "epochs": 2, "lr": 0.02, **options}, "method")
    down = tree.pick(method.init_server(CLIP, rng()), ["experts"])
    up, _ = method.fit(CLIP, tree.repeat(down, 3), {}, data.data(range(3), 0, stacked=True))
    for client in range(3):
        alone, _ = method.fit(CLIP, down, {}, data.data([client], 0, stacked=False))
        assert_close(tree.row(up, client)["experts"], alone["experts"], 1e-4)


# -- what travels, and what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(("preset", "floats"), [("", 65_536), ("script", 131_072), ("lite", 1_024)])
def test_what_travels(preset: str, floats: int) -> None:
    wide = Task(TinyDual(10, 512), tuple(map(str, range(10))), 4)
    method = make(TRIP, TRIP.presets[preset] if preset else {}, "method")
    one = known(torch.eye(10, 512), list(range(10)), [10], mixtures(10, method.experts)).data([0], 0, stacked=False)
    down = tree.row(method.download(wide, method.init_server(wide, rng()), torch.arange(1)), 0)
    up, kept = method.fit(wide, down, {}, one)
    assert (tree.floats(down), tree.floats(up), tree.floats(kept)) == (floats, floats, 0)


def test_more_experts_than_can_be_matched_are_refused() -> None:
    with pytest.raises(PromptFedError, match=r"^method\.experts must be at most 12, not 13\.$"):
        make(TRIP, {"experts": 13}, "method")
