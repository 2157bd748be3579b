"""Schedules, weights of classes and changes of images in whole runs: their fingerprints, fleets, resuming, refusals."""

from pathlib import Path
from typing import Any

import pytest
import torch

from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.method import Method
from promptfed.methods.fedavg import FedAvg
from promptfed.methods.per_fedavg import PerFedAvg
from promptfed.methods.pfedpt import PFedPT
from promptfed.runs import config, runner
from promptfed.runs.recipe import Recipe
from support.loops import make
from support.stopped_runs import assert_same, bits
from support.tiny_runs import tiny, write_images

TABLES: dict[str, Any] = {
    "schedule": {"name": "cosine", "warmup": 1},
    "train": {"augment": "flip+crop+color", "class_weights": "balanced"},
}
WORDS = ("schedule.name=step", "schedule.every=1", "train.augment=flip+crop", "train.class_weights=effective")


def one(*words: str) -> Recipe:
    return config.load_one("fedavg", words)


# -- recipes --------------------------------------------------------------------------------------------------


def test_tables_that_change_nothing_leave_no_trace() -> None:
    plain, spelt = one(), one("schedule.name=constant", "schedule.floor=0.5", "train.augment=none")
    assert (spelt.schedule, spelt.train, spelt.to_toml(), spelt.hash) == ({}, {}, plain.to_toml(), plain.hash)


def test_a_methods_own_schedule_is_where_its_recipes_start() -> None:
    names = [config.load_one("fedtpg", words).schedule["name"] for words in ([], ["schedule.warmup=2"])]
    assert names == ["cosine", "cosine"]
    assert config.load_one("fedtpg", ["schedule.warmup=2"]).schedule["warmup"] == 2


def test_another_schedule_than_the_methods_own_is_read_back(tmp_path: Path) -> None:
    chosen = config.load_one("fedtpg", ["schedule.name=constant"])
    (tmp_path / "recipe.toml").write_text(chosen.to_toml())
    again = config.load_one(str(tmp_path / "recipe.toml"), [])
    assert (again.schedule["name"], again.hash) == ("constant", chosen.hash)


def test_a_recipe_keeps_what_it_was_given() -> None:
    recipe = one(*WORDS)
    assert recipe.schedule == {"name": "step", "warmup": 0, "floor": 0.0, "every": 1, "gamma": 0.1}
    assert recipe.train == {"augment": "flip+crop", "class_weights": "effective", "beta": 0.999}
    assert len({recipe.hash, one().hash, one(*WORDS[:2]).hash, one(*WORDS[2:]).hash}) == 4


def test_another_name_keeps_the_other_keys_of_a_schedule() -> None:
    table = {"method": {"name": "fedavg"}, "schedule": {"name": "linear", "warmup": 3}}
    (recipe,) = config.expand(table, ["schedule.name=cosine"], "the recipe")
    assert (recipe.schedule["name"], recipe.schedule["warmup"]) == ("cosine", 3)


@pytest.mark.parametrize(("name", "same"), [("cosine", False), ("linear", False), ("constant", True)])
def test_the_length_counts_where_the_rates_fall_towards_the_end(name: str, same: bool) -> None:
    short, long = (one(f"schedule.name={name}", "schedule.warmup=2", f"rounds={rounds}") for rounds in (10, 20))
    assert (short.hash == long.hash) == same


@pytest.mark.parametrize(
    ("source", "word", "sentence"),
    [
        ("head-probe", "train.augment=flip", "head-probe reads features that are computed once"),
        ("fedavg", "train.augment=flap", 'Unknown train.augment "flap"; did you mean "flip"?'),
        ("fedavg", "train.class_weight=balanced", 'did you mean "train.class_weights"?'),
        ("fedavg", "train.beta=1", "train.beta must be below 1, not 1"),
        ("fedavg", "schedule.name=cosin", 'did you mean "cosine"?'),
        ("fedavg", "schedule.warmup=10", "schedule.warmup=10 must be less than rounds=10."),
        ("fedavg", "schedule=cosine", "write schedule.name=cosine"),
        ("fedavg", "train=flip", "write train.augment=flip"),
        ("relic", "train.class_weights=balanced", "relic does not weigh images by their labels"),
        ("dp-fpl", "train.class_weights=balanced", "dp-fpl does not weigh images by their labels"),
        ("clip-zs", "train.class_weights=balanced", "clip-zs learns nothing"),
    ],
)
def test_what_cannot_be_is_refused(source: str, word: str, sentence: str) -> None:
    with pytest.raises(PromptFedError) as refused:
        config.load_one(source, [word])
    assert sentence in str(refused.value)


def test_learning_without_labels_has_no_class_weights() -> None:
    words = ["method.mode=unsupervised", "train.class_weights=balanced"]
    for name in ("fedapt", "fedclip", "promptfl"):
        with pytest.raises(PromptFedError, match="does not weigh images by their labels"):
            config.load_one(name, words)
        assert config.load_one(name, words[1:]).train["class_weights"] == "balanced"


# -- runs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    [FedAvg(lr=0.05, epochs=1, batch=8, momentum=0.5), PFedPT(lr=0.05, epochs=1, prompt_epochs=1, batch=8)],
    ids=lambda method: method.name,
)
def test_a_stack_equals_one_by_one(method: Method, tmp_path: Path) -> None:
    one, many = (make(method, tmp_path / fleet, fleet, rounds=3, **TABLES) for fleet in ("one-by-one", "stacked"))
    for t in range(3):
        for loop in (one, many):
            loop.server, _ = loop.round(t)
            loop.store.seal()
        torch.testing.assert_close(one.server, many.server, rtol=1e-4, atol=1e-5)
    for client in range(5):
        torch.testing.assert_close(one.store.get(client), many.store.get(client), rtol=1e-4, atol=1e-5)


def test_the_rate_of_a_round_multiplies_every_learning_rate(tmp_path: Path) -> None:
    # rounds 0 and 1 of a line over two rounds have the factors 1 and ½
    everyone = torch.arange(5)
    fast = make(PerFedAvg(lr=0.1, alpha=0.2, epochs=1), tmp_path / "a", schedule={"name": "linear"})
    slow = make(PerFedAvg(lr=0.05, alpha=0.1, epochs=1), tmp_path / "b")
    down = tree.repeat(fast.server, 5)
    for t, same in ((0, False), (1, True)):
        found, expected = (loop.fleet.fit(t, everyone, down).up for loop in (fast, slow))
        close = all(torch.allclose(found[name], expected[name], rtol=1e-4, atol=1e-6) for name in found)
        assert close == same


def test_a_resumed_run_is_the_same_to_the_bit(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images.npz")
    words = tuple(tiny(images, *WORDS, "method.prompt_epochs=1"))
    straight = runner.run("pfedpt", out=tmp_path / "straight", overrides=words)
    runner.run("pfedpt", out=tmp_path / "stopped", overrides=(*words, "rounds=1"))
    runner.run("pfedpt", resume=tmp_path / "stopped", overrides=words)
    assert_same(bits(straight.folder), bits(tmp_path / "stopped"))


def test_a_run_whose_rates_fall_to_its_end_gets_no_more_rounds(tmp_path: Path) -> None:
    words = tuple(tiny(write_images(tmp_path / "images.npz"), "schedule.name=cosine", "evaluate.after=false"))
    runner.run("fedavg", out=tmp_path / "run", overrides=(*words, "rounds=1"))
    with pytest.raises(PromptFedError, match="was run with rounds=1, not 2; resume it without that change"):
        runner.run("fedavg", resume=tmp_path / "run", overrides=(*words, "rounds=2"))
