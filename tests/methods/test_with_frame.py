"""+PT: the prompt's phase by hand, bit for bit pFedPT around FedAvg, and every promise around other methods."""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch

from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.method import Method, Traits
from promptfed.core.options import make
from promptfed.core.tree import Tree
from promptfed.data.batches import ClientData, PlannedBatches
from promptfed.methods.fedavg import FedAvg
from promptfed.methods.fedbabu import FedBABU
from promptfed.methods.fedmtl import FedMTL
from promptfed.methods.fedper import FedPer
from promptfed.methods.fedprox import FedProx
from promptfed.methods.fedrep import FedRep
from promptfed.methods.fedrod import FedRoD
from promptfed.methods.local_only import Local
from promptfed.methods.moon import Moon
from promptfed.methods.per_fedavg import PerFedAvg
from promptfed.methods.pfedpt import PFedPT
from promptfed.methods.with_frame import WithFrame
from promptfed.runs import config, resuming, runner
from promptfed.runs.checks import PROMISES, check_method, toy_loop
from support.tiny_runs import tiny, write_images
from support.toys import BLACK, Linear, dataset, numbered, rng, shards, task

Kind = Literal["frame", "patch", "random-patch"]
TASK = task()
LN3 = math.log(3)
# as in pFedPT's test: with w = (1, …, 1; 0, …, 0) and a black image of class 0 this rate makes δ = ln 3 / 12 everywhere
RATE = LN3 / 6


def around(inner: Method, size: int = 1) -> WithFrame:
    return WithFrame(inner, size=size, lr=RATE, epochs=1, batch=1)


def server() -> Tree:
    return {"head.weight": torch.tensor([[1.0] * 12, [0.0] * 12]), "head.bias": torch.zeros(2)}


def black() -> ClientData:
    return shards(dataset([BLACK], [0]), [1]).data([0], 0, stacked=False)


def untouched(method: WithFrame) -> Tree:
    return tree.map(torch.zeros_like, method.init_client(TASK, black(), rng(0)))


# -- by hand ------------------------------------------------------------------------------------------------------


def test_first_the_prompt_then_the_method_on_prompted_images() -> None:
    method = around(FedProx(mu=0.5, lr=0.8, epochs=1, batch=1))
    up, personal = method.fit(TASK, server(), untouched(method), black())
    torch.testing.assert_close(personal["pt.up"], torch.full((3, 1, 2), LN3 / 12))
    torch.testing.assert_close(personal["velocity.pt.up"], torch.full((3, 1, 2), -0.5))
    # with δ the logits are (ln 3, 0), p = 3/4: the bias moves by 0.8 · 1/4, the weights by that times δ
    torch.testing.assert_close(up["head.bias"], torch.tensor([0.2, -0.2]))
    torch.testing.assert_close(up["head.weight"][1], torch.full((12,), -0.2 * LN3 / 12))


def test_the_prompt_is_held_while_the_head_stays_home() -> None:
    method = around(Local(lr=0.8, epochs=1, batch=1))
    own = untouched(method) | server()
    up, personal = method.fit(TASK, {}, own, black())
    assert up == {}
    assert set(personal) == set(own)
    torch.testing.assert_close(personal["pt.down"], torch.full((3, 1, 2), LN3 / 12))
    torch.testing.assert_close(personal["head.bias"], torch.tensor([0.2, -0.2]))


def test_momentum_of_the_prompt_lives_across_rounds() -> None:
    method = around(FedAvg(epochs=0))
    _, once = method.fit(TASK, server(), untouched(method), black())
    _, twice = method.fit(TASK, server(), once, black())
    # round 2: velocity = 1/2 · (−1/2) − 1/4, δ = ln 3 / 12 + ln 3 / 6 · 1/2
    torch.testing.assert_close(twice["velocity.pt.up"], torch.full((3, 1, 2), -0.5))
    torch.testing.assert_close(twice["pt.up"], torch.full((3, 1, 2), LN3 / 6))
    assert float(method.measures(TASK, once, twice)["prompt_drift"]) == pytest.approx(LN3 / 12)


def test_without_momentum_there_is_none_to_keep() -> None:
    method = replace(around(FedAvg()), momentum=0.0)
    start = untouched(method)
    assert set(start) == {"pt.up", "pt.down", "pt.left", "pt.right"}
    assert set(method.fit(TASK, server(), start, black())[1]) == set(start)


def test_adapting_sees_prompted_images_too() -> None:
    method = around(FedAvg(lr=0.8, batch=1, tune_epochs=1))
    own = untouched(method) | {f"pt.{side}": torch.full((3, 1, 2), LN3 / 12) for side in ("up", "down")}
    adapted = method.adapt(TASK, server(), own, black())
    torch.testing.assert_close(adapted["head.bias"], torch.tensor([0.2, -0.2]))
    assert set(adapted) == set(own) | set(server())


def test_the_inner_method_meets_only_its_own_names() -> None:
    @dataclass(frozen=True)
    class Strict(FedAvg):
        name: ClassVar[str] = "strict"

        def loss(self, task: Any, start: Tree, params: Tree, batch: Tree) -> torch.Tensor:
            assert set(params) == {"head.weight", "head.bias"}
            return super().loss(task, start, params, batch)

        def predict(self, task: Any, params: Tree, batch: Tree) -> torch.Tensor:
            assert set(params) == {"head.weight", "head.bias"}
            return super().predict(task, params, batch)

    method = around(Strict(epochs=1))
    up, personal = method.fit(TASK, server(), untouched(method), black())
    (batch,) = black().batches(size=1)
    model = method.prepare(TASK, method.trained(TASK, server(), personal, up))
    assert set(model) == set(personal) | set(up)
    assert float(method.evaluate(TASK, model, batch)["correct"]) == 1
    assert method.predict(TASK, model, tree.drop(batch, ["y"])).shape == (1, 2)


def test_it_takes_over_what_the_engine_asks_first() -> None:
    assert WithFrame(FedMTL()).traits.needs_rows
    assert not WithFrame(FedAvg()).traits.needs_rows

    @dataclass(frozen=True)
    class Once(FedAvg):
        traits = Traits(once=("keys",))

    assert WithFrame(Once()).traits.once == ("keys",)
    assert WithFrame(FedAvg()).deploy(TASK, server()) == {}


@pytest.mark.parametrize(("drop_last", "images"), [(False, 3 * 5 + 2 * 5), (True, 3 * 4 + 2 * 5)])
def test_epochs_and_drop_last_are_the_prompts_own(drop_last: bool, images: int) -> None:
    own = numbered([5])
    method = WithFrame(FedAvg(epochs=2, batch=2), size=1, epochs=3, batch=2, drop_last=drop_last)
    method.fit(TASK, server(), untouched(method), own.data([0], 0, stacked=False))
    assert own.pool.seen == images


def test_pictures_show_the_prompt() -> None:
    six = task(Linear(shape=(3, 6, 6)))
    for kind, shown in (("frame", 3 * 32), ("patch", 12), ("random-patch", 12)):
        method = WithFrame(FedAvg(), kind=kind, size=2)  # type: ignore[arg-type]
        picture = method.pictures(six, method.init_client(six, black(), rng(0)))["prompt"]
        assert picture.shape == (3, 6, 6)
        assert int((picture != 0).sum()) == shown


# -- pFedPT, and every promise ------------------------------------------------------------------------------------


@pytest.mark.parametrize("fleet", ["one-by-one", "stacked"])
@pytest.mark.parametrize(("kind", "size"), [("frame", 2), ("patch", 3), ("random-patch", 3)])
def test_around_fedavg_it_is_pfedpt_bit_for_bit(
    kind: Kind, size: int, fleet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = ClientData.batches

    def same_order(self: ClientData, purpose: str = "train", **how: Any) -> PlannedBatches:
        # FedAvg and pFedPT call this phase by different names, and the name is part of the key of the order
        return batches(self, "backbone" if purpose == "train" else purpose, **how)

    monkeypatch.setattr(ClientData, "batches", same_order)
    theirs = PFedPT(prompt=kind, size=size, lr=0.05, epochs=1, prompt_epochs=2, batch=8)
    ours = WithFrame(FedAvg(lr=0.05, epochs=1, batch=8), kind=kind, size=size, epochs=2, batch=8)
    one, other = toy_loop(theirs, tmp_path / "one", fleet), toy_loop(ours, tmp_path / "other", fleet)
    for t in range(3):
        lines = []
        for loop in (one, other):
            loop.server, line = loop.round(t)
            loop.store.seal()
            lines.append({key: line[key] for key in ("received", "trained", "loss", "traffic", "measures")})
        assert lines[0] == lines[1]
        torch.testing.assert_close(one.server, other.server, rtol=0, atol=0)
    for client in range(4):
        renamed = {name.replace("prompt.", "pt."): value for name, value in one.store.get(client).items()}
        torch.testing.assert_close(renamed, other.store.get(client), rtol=0, atol=0)


AROUND: dict[str, Method] = {
    "fedprox": FedProx(lr=0.05, epochs=1, batch=8),
    "moon": Moon(lr=0.05, epochs=1, batch=8),
    "fedper": FedPer(lr=0.05, epochs=1, batch=8),
    "fedrep": FedRep(epochs=1, head_epochs=1, batch=8),
    "fedmtl": FedMTL(lr=0.05, epochs=1, batch=8),
}


@pytest.mark.parametrize("promise", PROMISES)
@pytest.mark.parametrize("inner", AROUND)
def test_every_promise_is_kept_around(inner: str, promise: str) -> None:
    check_method(WithFrame(AROUND[inner], size=1, lr=0.1, epochs=1, batch=8), only=promise)


@pytest.mark.parametrize("kind", ["patch", "random-patch"])
@pytest.mark.parametrize(
    "inner",
    [PerFedAvg(epochs=1, batch=4), FedRoD(epochs=1, batch=8), FedBABU(epochs=1, batch=8), Local(epochs=1, batch=8)],
    ids=lambda inner: inner.name,
)
def test_it_goes_around_the_others_too(inner: Method, kind: Kind) -> None:
    method = WithFrame(inner, kind=kind, size=3, lr=0.1, epochs=1, batch=8)
    for promise in ("names", "stacked"):
        check_method(method, only=promise)


# -- from a recipe ------------------------------------------------------------------------------------------------


def one(source: str, *words: str) -> config.Recipe:
    (recipe,) = config.load(source, words)
    return recipe


def test_a_prompt_table_wraps_the_method() -> None:
    recipe = one("fedprox", "prompt.kind=patch", "prompt.size=3", "method.mu=0.5")
    assert recipe.method["name"] == "fedprox+pt"
    assert recipe.prompt == {
        "kind": "patch", "size": 3, "lr": 1.0, "epochs": 5, "momentum": 0.5, "batch": 16, "drop_last": False,
    }  # fmt: skip
    assert config.build_method(recipe) == WithFrame(FedProx(mu=0.5), kind="patch", size=3)


def test_the_name_alone_gives_the_default_prompt() -> None:
    assert one("fedavg+pt") == one("fedavg", "prompt.kind=frame")
    assert one("fedavg", "prompt.kind=frame", "prompt.pad=3") == one("fedavg", "prompt.kind=frame", "prompt.size=3")
    assert config.build_method(one("fedavg+pt")) == WithFrame(FedAvg())
    assert one("fedavg").prompt == {}


def test_a_resolved_recipe_resolves_to_itself(tmp_path: Path) -> None:
    recipe = one("fedrep", "prompt.kind=frame", "prompt.momentum=0", "seed=3")
    (tmp_path / "again.toml").write_text(recipe.to_toml(), encoding="utf-8")
    again = one(str(tmp_path / "again.toml"))
    assert (again, again.hash) == (recipe, recipe.hash)
    assert again.hash != one("fedrep", "seed=3").hash


def test_prompts_can_be_swept() -> None:
    found = config.load("moon", ["prompt.size=[1,2]", "method.mu=[0.1,1.0]"])
    assert {(recipe.prompt["size"], recipe.method["mu"]) for recipe in found} == {(1, 0.1), (1, 1), (2, 0.1), (2, 1)}
    assert len(found) == 4


def test_without_a_prompt_a_recipe_is_as_it_was() -> None:
    assert "prompt" not in one("fedavg").to_toml()


@pytest.mark.parametrize(
    ("source", "words", "sentence"),
    [
        ("pfedpt", ["prompt.kind=frame"], "pfedpt has a prompt of its own: set method.prompt"),
        ("pfedpt+pt", [], "pfedpt has a prompt of its own"),
        ("fedprox", ["prompt.pad=2", "prompt.size=2"], "give only prompt.size"),
        ("fedprox", ["prompt.pad=2", "prompt.kind=patch"], "give only prompt.size"),
        ("fedprox", ["prompt.kind=fram"], 'Unknown prompt.kind "fram"; did you mean "frame"?'),
        ("fedprox", ["prompt.sise=2"], 'did you mean "prompt.size"?'),
        ("fedprox", ["prompt.name=frame"], 'Unknown key "prompt.name"'),
        ("fedprox", ["prompt.inner=fedavg"], 'Unknown key "prompt.inner"'),
        ("fedprox", ["prompt.size=0"], "prompt.size must be at least 1"),
        ("fedprox", ["prompt=frame"], "write prompt.kind=frame"),
        ("fedprog+pt", [], 'Unknown method or recipe "fedprog+pt"'),
        ("pt", [], 'Unknown method or recipe "pt"'),
        ("promptfed.methods.with_frame:WithFrame", [], "wraps another method; run that method"),
        ("test_with_frame:ReadsFeatures", ["prompt.kind=frame"], "features that are computed once"),
    ],
)
def test_a_mistake_gets_one_sentence(source: str, words: list[str], sentence: str) -> None:
    with pytest.raises(PromptFedError) as caught:
        config.load(source, words)
    assert sentence in str(caught.value)
    assert 'did you mean "prompt.name"' not in str(caught.value)


@dataclass(frozen=True)
class ReadsFeatures(FedAvg):
    """A method that never sees a pixel."""

    name: ClassVar[str] = "reads-features"
    traits = Traits(reads="features")


def test_a_frame_that_does_not_fit_is_refused() -> None:
    with pytest.raises(PromptFedError, match="does not fit 2×2 images"):
        make(WithFrame, {"size": 5}, "prompt", {"inner": FedAvg()}).init_client(TASK, black(), rng(0))


def test_a_run_says_what_it_was_and_goes_on(tmp_path: Path) -> None:
    images = write_images(tmp_path / "tiny.npz")
    words = (*tiny(images, "rounds=2"), "prompt.kind=frame", "prompt.size=1", "prompt.epochs=1")
    done = runner.run("moon", out=tmp_path / "run", overrides=words)
    assert done.summary["method"] == "moon+pt"
    assert "[prompt]" in (tmp_path / "run" / "recipe.toml").read_text(encoding="utf-8")
    assert len(list((tmp_path / "run" / "pictures").glob("prompt-*.png"))) > 0
    plain = runner.run("moon", out=tmp_path / "plain", overrides=tuple(tiny(images, "rounds=2")))
    assert done.summary["traffic"] == plain.summary["traffic"]  # the prompt stays home
    (longer,) = config.load(str(tmp_path / "run" / "recipe.toml"), ["rounds=3"])
    again = resuming.resume(tmp_path / "run", longer)
    assert len(again.rounds) == 3
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["method"] == "moon+pt"
    with pytest.raises(PromptFedError, match=r"method\.name=moon\+pt, not moon"):
        resuming.resume(tmp_path / "run", one("moon", *tiny(images, "rounds=3")))
