"""SGPT: a round by hand on a network of sums, the choice of groups, its ends, and what travels."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import Tensor

from promptfed.backbones.pretrained import ViT
from promptfed.core import extensions, local, ops, tree
from promptfed.core.errors import PromptFedError
from promptfed.core.method import Task
from promptfed.core.options import make
from promptfed.core.protocols import Batch, Tokens
from promptfed.core.tree import Tree
from promptfed.data.batches import Pool, Shards
from promptfed.data.dataset import Dataset
from promptfed.data.features import constants_of
from promptfed.methods.sgpt import HEAD, SGPT
from support.toy_clip import NAMES, NET, assert_close, normal
from support.toys import BLACK, WHITE, Linear, dataset, rng, shares, task

VIT = ViT.random((3, 8, 8), 3, width=16, depth=2, heads=2, patch=4, precision="fp32")
REAL = Task(VIT, ("a", "b", "c"), 3)
WHERE = torch.device("cpu")
ONE = SGPT(shared=1, grouped=1, groups=2, lr=1.0, epochs=1, batch=2, momentum=0.0, weight_decay=0.0)


@dataclass(frozen=True)
class Sums(Linear):
    """A class token that is (1, 0, …) of a white image and (0, 1, …) of a black one, plus all tokens that enter."""

    width: int = 2
    depth: int = 2

    @property
    def token_width(self) -> int:
        return self.width

    @property
    def layers(self) -> int:
        return self.depth

    def _affine(self, generator: torch.Generator) -> Tree:
        return {"head.weight": torch.zeros(self.classes, self.width), "head.bias": torch.zeros(self.classes)}

    def patches(self, weights: Tree, x: Tensor, *, tokens: Tokens | None = None, project: bool = True) -> Tensor:
        raise NotImplementedError

    def grown(
        self, weights: Tree, x: Tensor, *, tokens: Mapping[int, Tensor], nearest: int = 0, upto: int = 0
    ) -> Tensor:
        light = x.flatten(-3).mean(-1, keepdim=True)
        token = torch.cat([light, 1 - light, light.new_zeros(*light.shape[:-1], self.width - 2)], -1)
        each = [ops.spread(given, 2, x.flatten(-3).unsqueeze(-2)).mean(-2) for _, given in sorted(tokens.items())]
        token = token + sum(each, torch.zeros(()))
        last = each[len(each) - nearest :]
        return (token + sum(last, torch.zeros(()))) / (1 + nearest)


def dealt(method: SGPT, where: Task, data: Dataset, sizes: Sequence[int]) -> Shards:
    """Deal images to clients in order, with what the bare network says of them."""
    known = constants_of(data, WHERE, 0, partial(extensions.constants, method, where))
    return Shards(Pool(data, WHERE, extras=known), shares(sizes), shares(sizes), 0, {})


def toy_images(count: int) -> Dataset:
    return dataset([37 * n % 256 for n in range(count)], [n % 3 for n in range(count)], side=8, classes=3)


# -- a round by hand ------------------------------------------------------------------------------------------------


def test_a_round_by_hand() -> None:
    where = task(Sums())
    data = dealt(ONE, where, dataset([WHITE, BLACK, WHITE], [0, 1, 0]), [2, 1])
    server = ONE.init_server(where, rng()) | {"groups": torch.zeros(1, 2, 2), "keys": torch.eye(2)}
    both = torch.arange(2)
    up, _ = ONE.fit(where, ONE.download(where, server, both), tree.repeat({}, 2), data.data([0, 1], 0, stacked=True))
    # stage 1: logits are 0, so the first client's head is ±¼ after it, and the prompt, behind a head of 0, stays.
    # stage 2: of its white image the logits are ±⅛, half of the head's for half of the class token, and e is wrong
    e = 1 / (1 + math.exp(0.25))
    assert_close(up["shared"], torch.zeros(2, 1, 2))
    assert_close(up["head.weight"][0], (0.25 + 0.25 * e) * torch.tensor([[1.0, -1.0], [-1.0, 1.0]]))
    assert_close(up["groups"][0], 0.25 * e * torch.tensor([[[1.0, -1.0], [-1.0, 1.0]]]))
    assert_close(up["groups"][1, 0, 1], torch.zeros(2))  # the second client has no image of that group
    assert_close(up["used"], torch.tensor([[0.5, 0.5], [1.0, 0.0]]))
    assert_close(up["weighted"], torch.tensor([[[0.5, 0.0], [0.0, 0.5]], [[1.0, 0.0], [0.0, 0.0]]]))  # at their images
    after = ONE.aggregate(where, server, both, up, ONE.weight(data.facts([0, 1])))
    assert_close(after["groups"][0, 1], 0.5 * 2 / 3 * up["groups"][0, 0, 1])  # by images, half of it new
    assert_close(after["uses"], torch.tensor([2 / 3, 1 / 3]))
    assert_close(after["keys"], torch.eye(2))


def test_keys_are_averaged_by_the_images_that_chose_them() -> None:
    method = SGPT(group_momentum=0.0, key_momentum=0.25)
    fixed = {"head.weight": torch.zeros(2, 3, 1), "head.bias": torch.zeros(2, 3), "shared": torch.zeros(2, 1, 1)}
    used = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])  # of 30 and 10 images: 15, 15 and 0, and 10
    keys = torch.tensor([[[1.0], [2.0], [3.0]], [[6.0], [7.0], [8.0]]])
    up = fixed | {"groups": keys.unsqueeze(1), "used": used, "weighted": used.unsqueeze(-1) * keys}
    server = tree.row(fixed, 0) | {"groups": torch.zeros(1, 3, 1), "keys": torch.full((3, 1), 5.0)}
    server |= {"uses": torch.ones(3)}
    after = method.aggregate(REAL, server, torch.arange(2), up, torch.tensor([30.0, 10.0]))
    assert_close(after["keys"], 0.75 * torch.tensor([[(15 * 1 + 10 * 6) / 25], [2.0], [5.0]]) + 0.25 * 5)
    assert_close(after["groups"], torch.tensor([[[2.25], [3.25], [4.25]]]))
    assert_close(after["uses"], 1 + torch.tensor([0.625, 0.375, 0.0]))


# -- the choice of a group ------------------------------------------------------------------------------------------


def choices(method: SGPT, uses: Tensor, query: Tensor, mask: Tensor) -> Tensor:
    """Return how many images of a batch choose each group in training; its keys are the axes."""
    params = ONE.init_server(task(Sums()), rng()) | {"keys": torch.eye(2), "count": torch.zeros(2)}
    batch = {"x": torch.zeros(len(mask), 3, 2, 2), "y": torch.zeros(len(mask), dtype=torch.long), "mask": mask}
    batch |= {"constant.query": torch.nn.functional.normalize(query, dim=-1)}
    found: Tree = method.in_groups(task(Sums()), {"uses": uses}, params, batch)[1]
    return found["count"]


def test_groups_that_are_rarely_used_are_favoured_in_training() -> None:
    query, there = torch.tensor([[3.0, 2.0], [3.0, 1.0], [1.0, 2.0], [9.0, 0.0]]), torch.tensor([1.0, 1.0, 1.0, 0.0])
    nearest = choices(ONE, torch.zeros(2), query, there)
    assert nearest.tolist() == choices(ONE, torch.full((2,), 7.0), query, there).tolist() == [2, 1]
    # distances (0.168, 0.445) and (0.051, 0.684): times shares 0.9 and 0.1, the first image goes to the second group
    assert choices(ONE, torch.tensor([9.0, 1.0]), query, there).tolist() == [1, 2]


def test_a_batch_may_vote() -> None:
    query, there = torch.tensor([[3.0, 2.0], [3.0, 1.0], [1.0, 2.0], [0.0, 1.0]]), torch.tensor([1.0, 1.0, 1.0, 0.0])
    voting = SGPT(**{**vars(ONE), "vote": True})
    assert choices(voting, torch.zeros(2), query, there).tolist() == [3, 0]


def test_each_image_is_tested_in_its_nearest_group_whatever_is_used() -> None:
    method = SGPT(shared=1, grouped=1, groups=3)
    server, x = method.init_server(REAL, rng()), normal(6, 3, 8, 8)
    server |= {"shared": normal(1, 16, seed=1), "groups": normal(1, 3, 16, seed=2), "keys": normal(3, 16, seed=3)}
    query = method.constants(REAL, {"x": x})["query"]
    near = (query @ torch.nn.functional.normalize(server["keys"], dim=-1).T).argmax(-1)
    assert len(near.unique()) > 1
    found = method.predict(REAL, server | {"uses": torch.tensor([9.0, 0.0, 0.0])}, {"x": x, "constant.query": query})
    for number, group in enumerate(near):
        given = {0: server["shared"], 1: server["groups"][:, group]}
        features = VIT.grown({}, x[number : number + 1], tokens=given, nearest=1)
        assert_close(found[number : number + 1], ops.linear(features, server["head.weight"], server["head.bias"]))
    assert method.predict(REAL, server, {"x": x}).equal(found)  # a query that is not at hand is computed


def test_a_query_is_the_bare_class_token() -> None:
    x = normal(4, 3, 8, 8)
    found = SGPT(query=1).constants(REAL, {"x": x})["query"]
    assert_close(found.norm(dim=-1), torch.ones(4))
    assert_close(found, torch.nn.functional.normalize(VIT.grown({}, x, tokens={}, upto=1).relu(), dim=-1))
    whole = SGPT().constants(REAL, {"x": x})["query"]
    assert_close(whole, torch.nn.functional.normalize(VIT.features({}, x).relu(), dim=-1))


# -- what it is at its ends -----------------------------------------------------------------------------------------


def test_without_groups_there_is_one_stage() -> None:
    method = SGPT(shared=2, grouped=0, epochs=2, batch=4, lr=0.1)
    data = dealt(method, REAL, toy_images(7), [7]).data([0], 0, stacked=False)
    server = method.init_server(REAL, rng())
    up, _ = method.fit(REAL, server, {}, data)
    assert up.keys() == server.keys() == {"shared", *HEAD}

    def plain(some: Task, start: Tree, params: Tree, batch: Batch) -> Tensor:
        given = {0: params["shared"][..., :1, :], 1: params["shared"][..., 1:, :]}
        features = VIT.grown({}, batch["x"], tokens=given)
        return ops.cross_entropy(
            ops.linear(features, params["head.weight"], params["head.bias"]), batch["y"], batch["mask"]
        )

    batches = data.batches("shared", size=4, epochs=2)
    wanted = local.sgd(plain, REAL, batches, start={}, params=server, lr=0.1, momentum=0.9, weight_decay=1e-5)
    assert all(up[name].equal(wanted[name]) for name in up)


def test_of_one_group_there_is_no_choice() -> None:
    method = SGPT(shared=1, grouped=1, groups=1, epochs=1, batch=4, lr=0.1)
    data = dealt(method, REAL, toy_images(7), [7]).data([0], 0, stacked=False)
    up, _ = method.fit(REAL, method.init_server(REAL, rng()), {}, data)
    assert up["used"].tolist() == [1]
    model = method.trained(REAL, method.init_server(REAL, rng()), {}, up)
    assert model["keys"].equal(up["weighted"])
    x = normal(3, 3, 8, 8)
    features = VIT.grown({}, x, tokens={0: up["shared"], 1: up["groups"][:, 0]}, nearest=1)
    assert_close(method.predict(REAL, model, {"x": x}), ops.linear(features, up["head.weight"], up["head.bias"]))


def test_a_client_alone_does_what_it_does_in_the_stack() -> None:
    method = SGPT(shared=1, grouped=1, groups=3, epochs=2, batch=3, lr=0.05)
    data = dealt(method, REAL, toy_images(13), [5, 1, 7])
    server = method.init_server(REAL, rng()) | {"uses": torch.tensor([3.0, 1.0, 0.0]), "shared": normal(1, 16)}
    up, _ = method.fit(REAL, tree.repeat(server, 3), {}, data.data(range(3), 0, stacked=True))
    for client in range(3):
        alone, _ = method.fit(REAL, server, {}, data.data([client], 0, stacked=False))
        torch.testing.assert_close(tree.row(up, client), alone, rtol=1e-4, atol=1e-5)


# -- what travels, and what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(("preset", "classes", "floats"), [("cifar", 100, 141_412), ("office", 10, 20_746)])
def test_what_travels(preset: str, classes: int, floats: int) -> None:
    method = make(SGPT, {**SGPT.presets[preset], "epochs": 1}, "method")
    where = task(Sums(classes=classes, width=768, depth=12))
    data = dealt(method, where, dataset([WHITE, BLACK], [0, 1]), [2]).data([0], 0, stacked=False)
    server = method.init_server(where, rng())
    up, _ = method.fit(where, server, {}, data)
    assert tree.floats(server) == tree.floats(up) == floats + method.groups  # and a count for every group
    assert_close(server["keys"] @ server["keys"].T, torch.eye(method.groups))
    assert server["groups"].abs().max() <= 0.0625


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (SGPT(shared=2, grouped=1), r"^method\.shared=2 and method\.grouped=1 are more than the backbone's 2 blocks;"),
        (SGPT(shared=1, grouped=1, groups=17), r"^method\.groups=17 is more than the backbone's width; set at most 16"),
    ],
)
def test_what_does_not_fit_is_refused(method: SGPT, sentence: str) -> None:
    with pytest.raises(PromptFedError, match=sentence):
        method.init_server(REAL, rng())


def test_a_projected_transformer_is_refused() -> None:
    clip = Task(NET, NAMES, 3)
    with pytest.raises(PromptFedError, match=r"^sgpt reads a transformer's own features, without a projection;"):
        SGPT(shared=1, grouped=0).init_server(clip, rng())


def test_a_network_without_patches_is_refused() -> None:
    with pytest.raises(PromptFedError, match=r"^This method needs a transformer's patches; set backbone\.name=vit"):
        SGPT().init_server(task(), rng())
