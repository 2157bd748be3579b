"""RELIC and its kin on a painter: its denoiser errs by ᾱ/(1−ᾱ) times the mean square of (image − picture described).

At the four times that factor is 4, 1.5, 2/3 and 1/4. The picture is the word plus a tenth of the template's number.
"""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from promptfed.backbones.cached import Cached
from promptfed.backbones.painter import Painter
from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.extensions import LearnsWord
from promptfed.core.method import Task
from promptfed.core.protocols import Batch
from promptfed.core.tree import Tree
from promptfed.data.batches import Pool, Shards
from promptfed.methods.relic import RELIC, FedCPW, FedProto, FedTI, TICentral, TILocal
from support import toys

WIDTH = 12
PAINTER = Painter((3, 2, 2), 2)
TASK = Task(Cached(PAINTER), ("no", "yes"), 2)
ALL = (RELIC, FedTI, FedCPW, FedProto, TILocal, TICentral)


def shards(colours: Sequence[int], sizes: Sequence[int], method: RELIC) -> Shards:
    """Deal images of one colour each, black 0 and white 1, already turned into the painter's rows."""
    data = toys.dataset(colours, [0] * len(colours))
    plain = Pool(data, torch.device("cpu"))
    pool = Pool(data, torch.device("cpu"), PAINTER.features({}, plain.images(torch.arange(len(colours)))))
    return Shards(pool, toys.shares(sizes), toys.shares(sizes), 0, method.draws(TASK))


def batch(images: Tensor, **draws: list[float]) -> Batch:
    """Return a batch of images [B, 3, 2, 2]; without draws, time and template are the first."""
    count = len(images)
    made = {"x": PAINTER.features({}, images), "mask": torch.ones(count), "noise": torch.randn(count, 3, 2, 2)}
    given_draws = {name: draws.get(name, [0.0] * count) for name in ("time", "template")}
    return made | {name: torch.tensor(values) for name, values in (given_draws | draws).items()}


def plain(colour: float) -> Tensor:
    return torch.full((3, 2, 2), colour)


def word(value: float, vectors: int = 1) -> Tensor:
    return torch.full((vectors, WIDTH), value)


def start(method: RELIC, sizes: Sequence[int] = (1, 1), colours: Sequence[int] = (0, 255)) -> tuple[Tree, Tree, Shards]:
    """Return what client 0 first receives and keeps, and everyone's data."""
    dealt = shards(colours, sizes, method)
    server = method.init_server(TASK, toys.rng())
    down = tree.row(method.download(TASK, server, torch.tensor([0])), 0)
    return down, method.init_client(TASK, dealt.data([0], 0, stacked=False), toys.rng(0)), dealt


# -- the reconstruction loss ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("time", "factor"), [(0.0, 4.0), (0.25, 1.5), (0.5, 2 / 3), (0.99, 0.25)])
def test_loss_by_hand(time: float, factor: float) -> None:
    # white image, word 0.5: each of the 12 numbers is off by a half
    value = FedTI().loss(TASK, {}, {"word": word(0.5)}, batch(plain(1.0)[None], time=[time]))
    assert value.item() == pytest.approx(factor * 0.25, rel=1e-5)


def test_template_is_chosen_evenly() -> None:
    # of four templates a draw of 0.3 takes number 1: the picture is 0.5 + 0.1
    value = FedTI(first=4).loss(TASK, {}, {"word": word(0.5)}, batch(plain(1.0)[None], template=[0.3]))
    assert value.item() == pytest.approx(4 * 0.16, rel=1e-5)


def test_loss_is_the_mean_over_examples_with_mask_one() -> None:
    samples = batch(torch.stack([plain(1.0), plain(0.0), plain(9.0)]))
    samples["mask"] = torch.tensor([1.0, 1.0, 0.0])
    value = FedTI().loss(TASK, {}, {"word": word(0.0)}, samples)
    assert value.item() == pytest.approx((4 + 0) / 2, rel=1e-5)


def test_mirrored_images() -> None:
    left = torch.tensor([[1.0, 0.0], [1.0, 0.0]]).expand(3, 2, 2)
    exact = left.flip(-1).flatten()[None]  # the picture is the mirror image
    straight, mirrored = (
        FedTI().loss(TASK, {}, {"word": exact}, batch(left[None], mirrored=[draw])).item() for draw in (0.7, 0.2)
    )
    assert straight == pytest.approx(4.0, rel=1e-5)
    assert mirrored == pytest.approx(0.0, abs=1e-6)


def test_several_vectors_stand_side_by_side() -> None:
    method = FedTI(vectors=2)
    assert method.init_server(TASK, toys.rng())["word"].shape == (2, WIDTH)
    both = torch.cat([word(0.0), word(1.0)])  # the painter takes their mean
    assert method.loss(TASK, {}, {"word": both}, batch(plain(1.0)[None])).item() == pytest.approx(1.0, rel=1e-5)


# -- the conditional pseudo-word --------------------------------------------------------------------------------------


def test_branches_change_nothing_at_first() -> None:
    down, personal, _ = start(RELIC(align=0.0))
    chosen = torch.tensor([0, 5, 26])
    assert RELIC().spoken(TASK, down | personal, chosen, torch.randn(3, 3)).equal(word(1.0).expand(3, 1, WIDTH))


def test_sizes_of_branches() -> None:
    _, personal, _ = start(RELIC())
    shapes = {name: tuple(value.shape) for name, value in personal.items()}
    assert shapes == {
        "local.prototype": (27, 12),
        "shift1.weight": (32, 3),
        "shift1.bias": (32,),
        "shift2.weight": (12, 32),
        "shift2.bias": (12,),
        "scale1.weight": (32, 12),
        "scale1.bias": (32,),
        "scale2.weight": (12, 32),
        "scale2.bias": (12,),
        "visual": (3,),
    }


def test_branches_of_stable_diffusion_2() -> None:
    # 1024·32 + 32 + 32·1024 + 1024
    assert tree.floats(RELIC()._branch("shift", 1024, 1024, torch.Generator())) == 66_592


def conditions(shift: float, scale: float) -> Tree:
    """Return branches of one hidden unit: shift·(sum of visual features), scale·(mean of the context)."""
    return {
        "shift1.weight": torch.ones(1, 3),
        "shift1.bias": torch.zeros(1),
        "shift2.weight": torch.full((WIDTH, 1), shift),
        "shift2.bias": torch.zeros(WIDTH),
        "scale1.weight": torch.full((1, WIDTH), 1 / WIDTH),
        "scale1.bias": torch.zeros(1),
        "scale2.weight": torch.full((WIDTH, 1), scale),
        "scale2.bias": torch.zeros(WIDTH),
    }


@pytest.mark.parametrize(("form", "expected"), [("residual", 3 + 2 * 1.5), ("printed", 3 + 2 * 0.5)])
def test_conditional_word_by_hand(form: str, expected: float) -> None:
    # visual features 1, 2, 3 shift by 0.5·6; the context of template 2 is two, which scales by 0.25·2
    params = {"word": word(2.0)} | conditions(0.5, 0.25)
    method = RELIC(form=form)  # type: ignore[arg-type]
    spoken = method.spoken(TASK, params, torch.tensor([2]), torch.tensor([[1.0, 2.0, 3.0]]))
    torch.testing.assert_close(spoken, torch.full((1, 1, WIDTH), expected))


def test_templates_need_not_be_the_methods_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def lengths(self: Painter, templates: Sequence[str]) -> Tensor:
        return torch.tensor([[float(len(template))] * WIDTH for template in templates])

    monkeypatch.setattr(Painter, "context", lengths)
    params = {"word": word(2.0)} | conditions(0.0, 0.25)
    spoken = RELIC().spoken(TASK, params, torch.tensor([1, 0]), torch.zeros(2, 3), templates=["{}", "my {}"])
    assert spoken[:, 0, 0].tolist() == [2 * (1 + 0.25 * 5), 2 * (1 + 0.25 * 2)]


@pytest.mark.parametrize(("relu", "expected"), [(True, 1.0), (False, 1.0 - 3.0)])
def test_branches_with_and_without_relu(relu: bool, expected: float) -> None:
    params = {"word": word(1.0)} | conditions(0.5, 0.0)
    spoken = RELIC(relu=relu).spoken(TASK, params, torch.tensor([0]), torch.tensor([[-1.0, -2.0, -3.0]]))
    torch.testing.assert_close(spoken, torch.full((1, 1, WIDTH), expected))


def test_without_bias_branches_have_two_matrices_each() -> None:
    _, personal, _ = start(RELIC(bias=False, align=0.0))
    assert sorted(personal) == ["scale1.weight", "scale2.weight", "shift1.weight", "shift2.weight", "visual"]
    # what the shift makes of features 1, 2, 3 is 0.5·6, with biases of zero as without any
    weights = {name: value for name, value in conditions(0.5, 0.25).items() if "bias" not in name}
    spoken = RELIC(bias=False).spoken(
        TASK, {"word": word(2.0)} | weights, torch.tensor([2]), torch.tensor([[1.0, 2.0, 3.0]])
    )
    torch.testing.assert_close(spoken, torch.full((1, 1, WIDTH), 3 + 2 * 1.5))


def test_visual_features_of_unit_length() -> None:
    method = RELIC(visual="unit", align=0.0, lr=0.1)
    _, personal, _ = start(method, sizes=(2,))
    torch.testing.assert_close(personal["visual"], torch.full((3,), 3**-0.5))
    # a grey image's features (0.5, 0.5, 0.5) count as (1, 1, 1) / √3, which shift by √3: the picture is 1 + √3
    params = {"word": word(1.0)} | conditions(1.0, 0.0)
    value = method.loss(TASK, {}, params, batch(plain(0.5)[None]))
    assert value.item() == pytest.approx(4 * (0.5 + 3**0.5) ** 2, rel=1e-5)


def test_without_an_image_the_clients_mean_stands_in() -> None:
    # a black and a white image: 0.5 in each of three channels
    _, personal, _ = start(RELIC(), sizes=(2,))
    torch.testing.assert_close(personal["visual"], torch.full((3,), 0.5))
    params = {"word": word(1.0), "visual": personal["visual"]} | conditions(1.0, 0.0)
    torch.testing.assert_close(RELIC().spoken(TASK, params, torch.tensor([0])), torch.full((1, 1, WIDTH), 2.5))


def test_server_speaks_the_plain_word() -> None:
    server = RELIC().init_server(TASK, toys.rng())
    assert list(RELIC().deploy(TASK, server)) == ["word"]
    assert RELIC().spoken(TASK, {"word": word(3.0)}, torch.tensor([4])).equal(word(3.0)[None])


# -- prototypes -------------------------------------------------------------------------------------------------------


def memory(target: Tensor, step: float = 0.0, epoch: float = 10.0) -> Tree:
    """Return what the aligned objective carries, with sums of nines to be continued or forgotten."""
    return {
        "target": target,
        "epoch": torch.tensor(epoch),
        "sum": torch.full_like(target, 9.0),
        "count": torch.full_like(target[..., 0], 9.0),
        "step": torch.tensor(step),
    }


@pytest.mark.parametrize(("distance", "gap"), [("mse", 0.25), ("norm", (12 * 0.25) ** 0.5)])
def test_alignment_by_hand(distance: str, gap: float) -> None:
    # template 1 of 2, word 0.9: its state is 1.0, half from its target 0.5; the white image costs nothing
    target = torch.tensor([0.0, 0.5])[:, None].expand(2, WIDTH)
    method = FedProto(first=2, distance=distance)  # type: ignore[arg-type]
    samples = batch(plain(1.0)[None], template=[0.5])
    value, _ = method.aligned(TASK, {}, {"word": word(0.9)} | memory(target), samples)
    assert value.item() == pytest.approx(0.7 * gap, rel=1e-4)


def test_template_without_a_prototype_is_not_aligned() -> None:
    target = torch.tensor([0.0, 0.5])[:, None].expand(2, WIDTH)
    value, _ = FedProto(first=2).aligned(TASK, {}, {"word": word(0.5)} | memory(target), batch(plain(1.0)[None]))
    assert value.item() == pytest.approx(4 * 0.25, rel=1e-5)


def test_sums_start_anew_in_every_epoch() -> None:
    method = FedProto(first=2)
    samples = batch(torch.stack([plain(1.0)] * 3), template=[0.0, 0.5, 0.5])
    samples["mask"] = torch.tensor([1.0, 1.0, 0.0])
    params = {"word": word(0.5)}
    zero = torch.zeros(2, WIDTH)
    _, later = method.aligned(TASK, {}, params | memory(zero, step=3.0), samples)
    torch.testing.assert_close(later["sum"], torch.tensor([9.5, 9.6])[:, None].expand(2, WIDTH))
    torch.testing.assert_close(later["count"], torch.tensor([10.0, 10.0]))
    _, first = method.aligned(TASK, {}, params | memory(zero, step=20.0), samples)
    torch.testing.assert_close(first["sum"], torch.tensor([0.5, 0.6])[:, None].expand(2, WIDTH))
    torch.testing.assert_close(first["count"], torch.tensor([1.0, 1.0]))
    assert first["step"].item() == 21


def test_target_mixes_the_servers_prototype_with_the_clients_own() -> None:
    server = torch.tensor([1.0, 1.0, 0.0])[:, None]
    own = torch.tensor([2.0, 0.0, 2.0])[:, None]
    # the client's own counts a tenth; it has none of the second template; the server has none of the third
    torch.testing.assert_close(RELIC()._target(server, own), torch.tensor([1.1, 1.0, 0.0])[:, None])


def test_prototypes_average_over_those_who_used_a_template() -> None:
    server = {"word": word(0.0), "prototype": torch.tensor([5.0, 5.0, 5.0])[:, None].expand(3, WIDTH)}
    sent = torch.tensor([[1.0, 2.0, 0.0], [3.0, 0.0, 0.0]])[..., None].expand(2, 3, WIDTH)
    up = {"word": torch.stack([word(1.0), word(5.0)]), "prototype": sent}
    new = RELIC(first=3).aggregate(TASK, server, torch.tensor([0, 1]), up, torch.tensor([1.0, 3.0]))
    torch.testing.assert_close(new["word"], word(4.0))  # by size
    torch.testing.assert_close(new["prototype"], torch.tensor([2.0, 2.0, 5.0])[:, None].expand(3, WIDTH))


@given(st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=1, max_size=5))
def test_a_prototype_is_the_mean_of_those_sent(rows: list[list[int]]) -> None:
    server = {"word": word(0.0), "prototype": torch.full((3, WIDTH), 7.0)}
    sent = torch.tensor(rows).float()[..., None].expand(-1, -1, WIDTH)
    up = {"word": word(0.0).expand(len(rows), 1, WIDTH), "prototype": sent}
    new = RELIC(first=3).aggregate(TASK, server, torch.arange(len(rows)), up, torch.ones(len(rows)))
    for number in range(3):
        used = [row[number] for row in rows if row[number]]
        assert new["prototype"][number, 0].item() == pytest.approx(sum(used) / len(used) if used else 7.0)


# -- one round --------------------------------------------------------------------------------------------------------


def test_fit_by_hand() -> None:
    # Adam's first step is as long as the rate, towards the black image
    method = FedTI(lr=0.1, epochs=1, repeats=1, first=1)
    down, personal, dealt = start(method)
    up, kept = method.fit(TASK, down, personal, dealt.data([0], 0, stacked=False))
    torch.testing.assert_close(up, {"word": word(0.9)})
    assert kept == {}


def test_branches_have_a_rate_of_their_own() -> None:
    # the last layers start at zero; Adam's first step moves every number of them by the rate
    method = RELIC(lr=0.1, branch_lr=0.02, align=0.0, epochs=1, repeats=1, first=1)
    down, personal, dealt = start(method, colours=(255, 0))
    up, kept = method.fit(TASK, down | {"word": word(0.5)}, personal, dealt.data([0], 0, stacked=False))
    torch.testing.assert_close(up["word"], word(0.6))
    torch.testing.assert_close(kept["shift2.bias"], torch.full((WIDTH,), 0.02))


def test_decay_acts_on_word_and_branches() -> None:
    # p − η (1 + λ p): 1 − 0.1 · (1 + 0.5)
    method = FedTI(lr=0.1, weight_decay=0.5, epochs=1, repeats=1, first=1)
    down, personal, dealt = start(method)
    up, _ = method.fit(TASK, down, personal, dealt.data([0], 0, stacked=False))
    torch.testing.assert_close(up, {"word": word(0.85)})


def test_every_image_is_repeated() -> None:
    method = FedTI(epochs=2, repeats=5)
    down, personal, dealt = start(method, sizes=(2,))
    method.fit(TASK, down, personal, dealt.data([0], 0, stacked=False))
    assert dealt.pool.seen == 2 * 5 * 2


def test_fit_sends_a_prototype_for_each_template_it_used() -> None:
    method = FedProto(lr=0.1, epochs=1, repeats=1)
    down, personal, dealt = start(method)
    up, kept = method.fit(TASK, down, personal, dealt.data([0], 0, stacked=False))
    (used,) = up["prototype"].any(-1).nonzero().flatten().tolist()
    torch.testing.assert_close(up["prototype"][used], torch.full((WIDTH,), 1 + 0.1 * used))
    assert kept["local.prototype"].equal(up["prototype"])


def test_own_prototypes_of_templates_not_used_are_kept() -> None:
    method = FedProto(lr=0.1, epochs=1, repeats=1)
    down, personal, dealt = start(method)
    personal = {"local.prototype": torch.full((27, WIDTH), 3.0)}
    up, kept = method.fit(TASK, down, personal, dealt.data([0], 0, stacked=False))
    assert (kept["local.prototype"] == 3).all(-1).sum() == 26
    assert up["prototype"].any(-1).sum() == 1


def rounds(method: RELIC, count: int) -> list[Tree]:
    """Return the server's tree after each round of two clients."""
    dealt = shards([0, 255], [1, 1], method)
    server = method.init_server(TASK, toys.rng())
    personal = [method.init_client(TASK, dealt.data([c], 0, stacked=False), toys.rng(c)) for c in range(2)]
    clients, history = torch.arange(2), []
    for number in range(count):
        down, sent = method.download(TASK, server, clients), []
        for client in range(2):
            data = dealt.data([client], number, stacked=False)
            up, personal[client] = method.fit(TASK, tree.row(down, client), personal[client], data)
            sent.append(up)
        weights = method.weight(dealt.facts([0, 1]))
        server = method.aggregate(TASK, server, clients, tree.stack(sent), weights)
        history.append(server)
    return history


def test_prototypes_count_from_the_second_round() -> None:
    options = {"lr": 0.01, "repeats": 4, "first": 2}
    with_them, without = rounds(FedProto(**options), 2), rounds(FedTI(**options), 2)  # type: ignore[arg-type]
    assert with_them[0]["word"].equal(without[0]["word"])
    assert not with_them[1]["word"].equal(without[1]["word"])


def test_client_0_is_the_centre() -> None:
    method = TICentral(lr=0.1, epochs=1, repeats=1)
    assert method.weight({"client": torch.tensor([2, 0]), "size": torch.tensor([9.0, 3.0])}).tolist() == [0, 1]
    server, up = {"word": word(7.0)}, {"word": torch.stack([word(1.0), word(2.0)])}
    weights = torch.tensor([0.0, 1.0])
    assert method.aggregate(TASK, server, torch.tensor([2, 0]), up, weights)["word"].equal(word(2.0))
    assert method.aggregate(TASK, server, torch.tensor([2, 1]), up, torch.zeros(2)) is server


def test_uniform_weights() -> None:
    facts = {"size": torch.tensor([9.0, 3.0])}
    assert FedTI().weight(facts).tolist() == [9, 3]
    assert FedTI(weighting="uniform").weight(facts).tolist() == [1, 1]


# -- what travels -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "floats"),
    [
        (FedTI(repeats=1), WIDTH),
        (FedTI(repeats=1, vectors=3), 3 * WIDTH),
        (FedCPW(repeats=1), WIDTH),
        (FedProto(repeats=1), WIDTH + 27 * WIDTH),
        (RELIC(repeats=1), WIDTH + 27 * WIDTH),
        (RELIC(repeats=1, first=10), WIDTH + 10 * WIDTH),
        (RELIC(repeats=1, templates="style"), WIDTH + 17 * WIDTH),
        (TICentral(repeats=1), WIDTH),
        (TILocal(repeats=1), 0),
    ],
    ids=lambda value: value.name if isinstance(value, RELIC) else str(value),
)
def test_traffic(method: RELIC, floats: int) -> None:
    down, personal, dealt = start(method)
    up, _ = method.fit(TASK, down, personal, dealt.data([0], 0, stacked=False))
    assert tree.floats(down) == tree.floats(up) == floats


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.name)
def test_branches_never_leave(kind: type[RELIC]) -> None:
    method = kind(repeats=1)
    down, personal, dealt = start(method)
    up, kept = method.fit(TASK, down, personal, dealt.data([0], 0, stacked=False))
    assert up.keys() <= {"word", "prototype"}
    assert not up.keys() & kept.keys()
    assert any(name.startswith("shift") for name in kept) == method.conditional


def test_what_each_learns() -> None:
    moved = {}
    for kind in ALL:
        method = kind(lr=0.1, repeats=2)
        down, personal, dealt = start(method)
        up, kept = method.fit(TASK, down, personal, dealt.data([0], 0, stacked=False))
        before = down | personal
        moved[method.name] = {name for name, value in (up | kept).items() if not value.equal(before[name])}
    branches = {f"{name}2.{part}" for name in ("shift", "scale") for part in ("weight", "bias")}
    assert moved["fedti"] == moved["ti-local"] == moved["ti-central"] == {"word"}
    assert moved["fedproto"] == {"word", "prototype", "local.prototype"}
    assert moved["fedcpw"] - {"shift1.weight", "shift1.bias", "scale1.weight", "scale1.bias"} >= {"word"}
    assert moved["relic"] >= {"word", "prototype", "local.prototype"} | (branches & moved["fedcpw"])
    assert branches & moved["fedcpw"] >= {"shift2.bias", "scale2.bias"}


# -- what is used -----------------------------------------------------------------------------------------------------


def test_evaluation_counts_images_the_word_describes_better_than_its_start() -> None:
    # the start is 1: a word of 0 is right about the black image and the dark one, and wrong about the white one
    samples = batch(torch.stack([plain(0.0), plain(1.0), plain(0.25), plain(0.0)]))
    samples["mask"] = torch.tensor([1.0, 1.0, 1.0, 0.0])
    found = FedTI().evaluate(TASK, {"word": word(0.0)}, samples)
    assert {name: round(value.item(), 4) for name, value in found.items()} == {"correct": 2, "loss": 4.25, "count": 3}


def test_a_trained_client_speaks_its_own_word() -> None:
    up = {"word": word(2.0), "prototype": torch.ones(27, WIDTH)}
    down = {"word": word(1.0), "prototype": torch.zeros(27, WIDTH)}
    assert RELIC().trained(TASK, down, {"visual": torch.zeros(3)}, up)["word"].equal(word(2.0))


def test_exhibits() -> None:
    server = {"word": word(1.0), "prototype": torch.zeros(27, WIDTH)}
    one = conditions(1.0, 0.0) | {"visual": torch.ones(3)}
    personal = tree.stack([one, one | {"visual": torch.zeros(3)}])
    shown = RELIC().exhibits(TASK, server, torch.arange(2), personal)
    torch.testing.assert_close(shown["prompts"], torch.stack([word(4.0), word(1.0)]))
    assert shown["descriptors"].shape == (2, 1, 3)
    alone = TILocal().exhibits(TASK, {}, torch.arange(2), {"word": torch.stack([word(1.0), word(2.0)])})
    assert list(alone) == ["prompts"]


@pytest.mark.parametrize("kind", ALL)
def test_all_of_them_learn_a_word(kind: type[RELIC]) -> None:
    method: LearnsWord = kind()
    assert isinstance(method, LearnsWord)
    assert method.shared == (kind is not TILocal)
    assert method.spoken(TASK, {"word": word(3.0)}, torch.tensor([0])).equal(word(3.0)[None])


def test_without_a_text_to_image_model() -> None:
    with pytest.raises(PromptFedError, match=r"needs a text-to-image model; set backbone\.name=diffusion"):
        RELIC().init_server(toys.task(), toys.rng())
