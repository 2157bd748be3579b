"""FedMGP: its loss and a round by hand, which groups travel and where they return to, and what it is at its ends."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar, Literal, cast

import pytest
import torch
from torch import Tensor

from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.method import Task
from promptfed.core.options import make
from promptfed.core.protocols import Data, Tokens
from promptfed.core.tree import Tree
from promptfed.methods.fedmaple import FedMaPLe
from promptfed.methods.fedmgp import FedMGP
from support.toy_clip import NAMES, NET, SHAPE, normal
from support.toys import BLACK, WHITE, TinyDual, dataset, featured, rng, shards, task

CLIP = Task(NET, NAMES, 3)
IMAGES = normal(13, *SHAPE)
LABELS = [n % 3 for n in range(13)]
WRONG = 1 / (1 + math.e)  # what softmax (1, 0) gives to the second
HALF = math.sqrt(0.5)


@dataclass(frozen=True)
class WhiteOrBlack(TinyDual):
    """A TinyDual that sees (1, 0) in a white image and (0, 1) in a black one, plus the mean of its tokens."""

    layers: ClassVar[int] = 1

    def features(self, weights: Tree, x: Tensor, *, tokens: Tokens | None = None, noise: Tree | None = None) -> Tensor:
        assert isinstance(tokens, Tensor)
        white = x[..., 0, 0, 0]
        return torch.stack([white, 1 - white], -1) + tokens.mean(-2).unsqueeze(-2)


TINY = task(WhiteOrBlack())
PAIR: dict[str, Any] = {"groups": 2, "sent": 1, "tokens": 1, "visual": 1}
PLAIN: dict[str, Any] = {"lr": 1.0, "epochs": 1, "momentum": 0.0, "weight_decay": 0.0}


@dataclass
class Drawn:
    """Data of which only one draw is asked for."""

    numbers: Tensor
    asked: list[str]

    def draw(self, name: str, shape: tuple[int, ...] = (), kind: Literal["uniform", "normal"] = "uniform") -> Tensor:
        assert self.numbers.shape[-1:] == shape
        assert kind == "uniform"
        self.asked.append(name)
        return self.numbers


def drawn(numbers: Tensor) -> Data:
    return cast(Data, Drawn(numbers, []))


def personal(text: Tensor, visual: Tensor, seen: float = -1.0, place: int = 0) -> Tree:
    chosen = {f"chosen.{kind}": torch.full((*text.shape[:-3], 1), place) for kind in ("text", "visual")}
    return {"text": text, "visual": visual} | chosen | {"seen": torch.full(text.shape[:-3], seen)}


# -- the loss -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("diversity", "alike"),
    # the texts of class 0 are the same in both groups, those of class 1 at 45 degrees, and so are the images
    [("cosine", ((1 + HALF) / 2 + HALF) / 2), ("released", (1 / 4 + 1 / 2) / 2)],
)
def test_the_loss_by_hand(diversity: Literal["cosine", "released"], alike: float) -> None:
    method = FedMGP(**PAIR, diversity=diversity, lam=0.5)
    groups = {"text": torch.tensor([[[0.0, 0.0]], [[1.0, 0.0]]]), "visual": torch.tensor([[[0.0, 0.0]], [[0.0, 1.0]]])}
    # the second image is not there
    batch = {"x": torch.ones(2, 3, 2, 2), "y": torch.tensor([0, 1]), "mask": torch.tensor([1.0, 0.0])}
    batch["x"][1] = 0.0
    # group 1: logits (1, 0); group 2: image (1, 1) / √2 with texts (1, 0) and (1, 1) / √2
    entropy = (math.log(1 + math.exp(-1)) + math.log(1 + math.exp(1 - HALF))) / 2
    torch.testing.assert_close(method.loss(TINY, {}, groups, batch), torch.tensor(entropy + 0.5 * alike))
    params = personal(groups["text"], groups["visual"]) | {
        "slots.text": torch.ones(1, 1, 2),
        "slots.visual": torch.ones(1, 1, 2),
    }
    found = method.predict(TINY, params | {"stamp": torch.tensor(3.0)}, {"x": batch["x"][:1]})
    torch.testing.assert_close(found, torch.tensor([[(1 + HALF) / 2, 1 / 2]]))


def test_the_diversity_loss_parts_groups_and_the_published_one_joins_them() -> None:
    cosines = {}
    down = FedMGP().init_server(CLIP, rng())
    data = shards_of([6]).data([0], 0, stacked=False)
    start = FedMGP().init_client(CLIP, data, rng(0))
    every: dict[str, Any] = {"none": {"lam": 0.0}, "cosine": {}, "released": {"diversity": "released"}}
    for name, options in every.items():
        method = FedMGP(**{"lam": 50.0, **options}, lr=0.002, epochs=4, momentum=0.0, weight_decay=0.0)
        _, kept = method.fit(CLIP, down, start, data)
        measured = method.measures(CLIP, start, kept)["groups_alike"]
        text = NET.text(kept["text"], per_class=False)
        pairs = [(text[i] * text[j]).sum(-1).mean() for i in range(5) for j in range(i)]
        torch.testing.assert_close(measured, torch.stack(pairs).mean())
        cosines[name] = float(measured)
    before = float(FedMGP().measures(CLIP, start, start)["groups_alike"])
    assert cosines["cosine"] < cosines["none"] < cosines["released"]
    assert cosines["cosine"] < before < cosines["released"]


# -- a round --------------------------------------------------------------------------------------------------


def shards_of(sizes: list[int]) -> Any:
    return featured(IMAGES[: sum(sizes)], LABELS[: sum(sizes)], sizes)


def test_two_rounds_by_hand() -> None:
    # with prompts of zero the wrong class has WRONG. Each of two groups has half of the loss: its text prompt turns
    # away from the image by WRONG / 2, and the image away from the wrong word. Groups that are the same are as alike
    # as can be, and do not move for that
    method = FedMGP(**PAIR, **PLAIN, lam=1.0)
    own = shards(dataset([WHITE, BLACK, BLACK], [0, 1, 1]), [1, 2])
    server = tree.map(torch.zeros_like, method.init_server(TINY, rng()))
    clients, zeros = torch.arange(2), torch.zeros(2, 2, 1, 2)
    start = personal(zeros, zeros)
    down = method.download(TINY, server, clients)
    up, kept = method.fit(TINY, down, start, own.data([0, 1], 0, stacked=True))
    text = -WRONG / 2 * torch.eye(2).unsqueeze(-2)
    visual = text.flip(-1)
    torch.testing.assert_close(up, {"slots.text": text.unsqueeze(1), "slots.visual": visual.unsqueeze(1)})
    torch.testing.assert_close(kept["text"], text.unsqueeze(1).expand(2, 2, 1, 2))
    assert kept["seen"].tolist() == [1, 1]
    server = method.aggregate(TINY, server, clients, up, method.weight(own.facts([0, 1])))
    assert float(server["stamp"]) == 1
    mean = torch.tensor([[[-WRONG / 6, -WRONG / 3]]])  # by images
    torch.testing.assert_close(server["slots.text"], mean)
    torch.testing.assert_close(server["slots.visual"], mean.flip(-1))
    down = method.download(TINY, server, clients)
    written = method.written(down | kept)
    for client in range(2):
        place = int(kept["chosen.text"][client, 0])
        torch.testing.assert_close(written["text"][client, place], mean[0])
        torch.testing.assert_close(written["text"][client, 1 - place], text[client])
    # the next round starts from there
    alone = method.fit(TINY, down, kept | written | {"seen": torch.full((2,), -1.0)}, own.data([0, 1], 1, stacked=True))
    torch.testing.assert_close(method.fit(TINY, down, kept, own.data([0, 1], 1, stacked=True)), alone)


def test_slots_return_to_those_who_made_them_alone() -> None:
    method = FedMGP(**PAIR)
    groups = normal(2, 1, 2)
    slots = {"slots.text": normal(1, 1, 2, seed=1), "slots.visual": normal(1, 1, 2, seed=2)}
    x = {"x": torch.ones(1, 3, 2, 2)}
    for seen, stamp, writes in ((4.0, 4.0, True), (3.0, 4.0, False), (5.0, 4.0, False)):
        mine = personal(groups, groups, seen, place=1)
        found = method.written(slots | {"stamp": torch.tensor(stamp)} | mine)
        assert found["text"][0].equal(groups[0])
        assert found["text"][1].equal(slots["slots.text"][0] if writes else groups[1])
        prepared = method.prepare(TINY, slots | {"stamp": torch.tensor(stamp)} | mine)
        assert prepared["shown"].equal(found["visual"])
    # without a client the slots are all there is
    server = slots | {"stamp": torch.tensor(4.0)}
    model = method.deploy(TINY, server)
    alone = personal(slots["slots.text"], slots["slots.visual"]) | server
    one = FedMGP(**{**PAIR, "groups": 1})
    assert method.predict(TINY, model, x).equal(one.predict(TINY, alone, x))


# -- which groups travel --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stamp", "temperature", "order"), [(1.0, 1.0, [0, 1, 2]), (1.0, 4.0, [1, 0, 2]), (0.0, 1.0, [1, 2, 0])]
)
def test_the_draw_by_hand(stamp: float, temperature: float, order: list[int]) -> None:
    # the cosines with the slot are 1, 0 and −1, and Gumbel's numbers 0, 0.5 and 0.4
    uniform = torch.exp(-torch.exp(-torch.tensor([0.0, 0.5, 0.4])))
    groups = torch.tensor([[[2.0, 0.0]], [[0.0, 3.0]], [[-1.0, 0.0]]])
    down = {"slots.text": torch.tensor([[[5.0, 0.0]]]), "stamp": torch.tensor(stamp)}
    method = FedMGP(groups=3, sent=3, temperature=temperature)
    assert method.chosen("text", groups, down, drawn(uniform)).tolist() == order
    assert (
        FedMGP(groups=3, sent=2, temperature=temperature).chosen("text", groups, down, drawn(uniform)).tolist()
        == (order[:2])
    )


def test_the_draw_is_that_of_the_softmax_without_replacement() -> None:
    # two slots: what counts is the nearer one. The cosines are 1, 1 and 0
    count, temperature = 20_000, 0.5
    groups = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]], [[0.0, 0.0]]])
    down = {"slots.text": torch.tensor([[[3.0, 0.0]], [[0.0, 1.0]]]), "stamp": torch.tensor(2.0)}
    numbers = torch.rand(count, 3, generator=torch.Generator().manual_seed(0))
    stacked = {name: value.expand(count, *value.shape) for name, value in down.items()}
    method = FedMGP(groups=3, sent=2, temperature=temperature)
    picks = method.chosen("text", groups.expand(count, *groups.shape), stacked, drawn(numbers))
    assert (picks[:, 0] != picks[:, 1]).all()
    near, far = math.exp(2), 1.0
    first = [near / (2 * near + far), far / (2 * near + far)]
    wanted = {(0, 1): first[0] * near / (near + far), (0, 2): first[0] * far / (near + far), (2, 0): first[1] / 2}
    for pair, share in wanted.items():
        found = (picks == torch.tensor(pair)).all(-1).float().mean()
        assert abs(float(found) - share) < 0.01, pair


def test_both_towers_draw_by_themselves_and_anew_in_every_round() -> None:
    method, data = FedMGP(epochs=1, batch=8), shards_of([3, 3])
    down = method.init_server(CLIP, rng())
    start = method.init_client(CLIP, data.data([0], 0, stacked=False), rng(0))
    picks = []
    for t in range(12):
        _, kept = method.fit(CLIP, down, start, data.data([0], t, stacked=False))
        picks.append((tuple(kept["chosen.text"].tolist()), tuple(kept["chosen.visual"].tolist())))
    assert sum(text != visual for text, visual in picks) > 6
    assert len(set(picks)) > 9


# -- its ends -------------------------------------------------------------------------------------------------

RATES: dict[str, Any] = {"lr": 0.5, "batch": 6, "epochs": 1, "momentum": 0.9, "weight_decay": 1e-3}


def test_one_group_that_is_sent_is_the_average_of_prompts_in_both_towers() -> None:
    method, ivlp = FedMGP(groups=1, sent=1, **RATES), FedMaPLe(coupled=False, depth=1, tokens=2, **RATES)
    data, clients = shards_of([6, 4]), torch.arange(2)
    server = method.init_server(CLIP, rng())
    plain = {"context": server["slots.text"][0], "visual": server["slots.visual"]}
    kept = [method.init_client(CLIP, data.data([n], 0, stacked=False), rng(n)) for n in clients]
    for t in range(2):
        ups, others = [], []
        for n in range(2):
            own = data.data([n], t, stacked=False)
            up, kept[n] = method.fit(CLIP, server, kept[n], own)
            ups.append(up)
            others.append(ivlp.fit(CLIP, plain, {}, own)[0])
        weights = method.weight(data.facts([0, 1]))
        server = method.aggregate(CLIP, server, clients, tree.stack(ups), weights)
        plain = ivlp.aggregate(CLIP, plain, clients, tree.stack(others), weights)
        torch.testing.assert_close(server["slots.text"][0], plain["context"], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(server["slots.visual"], plain["visual"], rtol=1e-4, atol=1e-5)
    x = {"x": IMAGES[:4]}
    torch.testing.assert_close(
        method.predict(CLIP, server | kept[0], x), ivlp.predict(CLIP, plain, x), rtol=1e-3, atol=1e-3
    )


@dataclass(frozen=True)
class InOrder(FedMGP):
    """FedMGP that sends its first groups, in order."""

    def chosen(self, kind: str, groups: Tensor, down: Tree, data: Data) -> Tensor:
        return torch.arange(self.sent).expand(*groups.shape[:-3], -1)


def test_groups_that_are_all_sent_in_order_are_averaged_as_they_are() -> None:
    method = InOrder(groups=3, sent=3, batch=4, lr=0.1)
    data, clients = shards_of([6, 4]), torch.arange(2)
    server = method.init_server(CLIP, rng())
    start = tree.stack([method.init_client(CLIP, data.data([n], 0, stacked=False), rng(n)) for n in range(2)])
    down = method.download(CLIP, server, clients)
    up, kept = method.fit(CLIP, down, start, data.data([0, 1], 0, stacked=True))
    assert up["slots.visual"].equal(kept["visual"])
    server = method.aggregate(CLIP, server, clients, up, method.weight(data.facts([0, 1])))
    torch.testing.assert_close(server["slots.text"], 0.6 * kept["text"][0] + 0.4 * kept["text"][1])
    written = method.written(method.download(CLIP, server, clients) | kept)
    for kind in ("text", "visual"):
        assert all(written[kind][n].equal(server[f"slots.{kind}"]) for n in range(2))


def test_without_visual_groups_it_reads_features_and_is_the_mean_of_its_texts() -> None:
    method = FedMGP(groups=3, visual=0, tokens=3)
    assert method.traits.reads == "features"
    assert FedMGP().traits.reads == "pixels"
    server = method.init_server(CLIP, rng())
    assert set(server) == {"slots.text", "stamp"}
    features = normal(4, 10)
    mine = method.init_client(CLIP, featured(features, [0, 1, 2, 0], [4]).data([0], 0, stacked=False), rng(0))
    found = method.predict(CLIP, server | mine, {"x": features})
    texts = NET.text(mine["text"], per_class=False)
    unit = torch.nn.functional.normalize(features, dim=-1)
    torch.testing.assert_close(found, NET.scale * unit @ texts.mean(0).mT, rtol=1e-4, atol=1e-4)


def test_groups_start_near_words_and_longer_ones_anywhere() -> None:
    data = shards_of([3]).data([0], 0, stacked=False)
    words = NET.words("a photo of a")
    for tokens, near in ((2, words[:2]), (4, words), (5, torch.zeros(5, 12))):
        method = FedMGP(tokens=tokens, groups=40)
        text = method.init_client(CLIP, data, rng(0))["text"]
        spread = float((text - near).std())
        assert abs(spread - (0.01 if tokens < 5 else 0.02)) < 1e-3
        assert text.equal(method.init_client(CLIP, data, rng(1))["text"])
        assert method.init_server(CLIP, rng())["slots.text"].equal(text[:2])


# -- what travels ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("visual", "sends", "stays"), [(2, 5_120, 12_800), (0, 2_048, 5_120)])
def test_what_travels_and_what_stays(visual: int, sends: int, stays: int) -> None:
    # a CLIP ViT-B/16 as far as its prompts see it
    size = SimpleNamespace(context_width=512, token_width=768, zero_shot=None)
    size.words = lambda said: torch.zeros(len(said.split()), 512)
    wide, method = Task(cast(Any, size), NAMES, 3), FedMGP(visual=visual)
    one = shards_of([3]).data([0], 0, stacked=False)
    down, mine = method.init_server(wide, rng()), method.init_client(wide, one, rng(0))
    up = {name: value for name, value in down.items() if name.startswith("slots.")}
    assert (tree.floats(down), tree.floats(up)) == (sends + 1, sends)  # and the count of rounds
    kinds = 2 if visual else 1
    assert tree.floats(mine) == stays + 2 * kinds + 1  # two places a tower, and a count
    assert sum(value.numel() for name, value in mine.items() if name in ("text", "visual")) == stays


def test_what_is_sent_is_two_groups_of_either_tower() -> None:
    method, data = FedMGP(epochs=1), shards_of([3])
    start = method.init_client(CLIP, data.data([0], 0, stacked=False), rng(0))
    up, kept = method.fit(CLIP, method.init_server(CLIP, rng()), start, data.data([0], 0, stacked=False))
    assert set(up) == {"slots.text", "slots.visual"}
    for kind in ("text", "visual"):
        assert up[f"slots.{kind}"].equal(kept[kind][kept[f"chosen.{kind}"]])


@pytest.mark.parametrize("options", [{}, {"diversity": "released", "groups": 2}, {"visual": 0, "temperature": 0.1}])
def test_a_client_alone_does_what_it_does_in_the_stack(options: Mapping[str, object]) -> None:
    method = make(FedMGP, {"batch": 3, "epochs": 1, "lr": 0.02, **options}, "method")
    x = IMAGES if method.visual else normal(13, 10)
    data = featured(x, LABELS, [5, 1, 7])
    server = method.init_server(CLIP, rng()) | {"stamp": torch.tensor(3.0)}
    starts = [method.init_client(CLIP, data.data([n], 0, stacked=False), rng(n)) for n in range(3)]
    starts = [start | {"seen": torch.tensor(float(n + 2))} for n, start in enumerate(starts)]
    down = tree.repeat(server, 3)
    up, kept = method.fit(CLIP, down, tree.stack(starts), data.data(range(3), 0, stacked=True))
    for n in range(3):
        alone = method.fit(CLIP, server, starts[n], data.data([n], 0, stacked=False))
        torch.testing.assert_close((tree.row(up, n), tree.row(kept, n)), alone, rtol=1e-4, atol=1e-5)


def test_images_count_in_the_mean_or_clients() -> None:
    facts = {"size": torch.tensor([2.0, 8.0])}
    assert FedMGP().weight(facts).tolist() == [2, 8]
    assert make(FedMGP, FedMGP.presets["code"], "method").weight(facts).tolist() == [1, 1]


def test_more_groups_to_send_than_there_are_is_refused() -> None:
    with pytest.raises(PromptFedError, match=r"^method\.sent=3 is more than method\.groups=2; lower it to that\.$"):
        FedMGP(groups=2, sent=3).init_server(CLIP, rng())
