"""Recipes: from TOML and dotted overrides to frozen values, and back."""

import tomllib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptfed.core import options
from promptfed.core.errors import PromptFedError
from promptfed.core.method import Method
from promptfed.methods.fedavg import FedAvg
from promptfed.methods.pfedpt import PFedPT
from promptfed.runs.config import Recipe, build_method, load, load_one, resolve


@dataclass(frozen=True)
class Mine(Method):
    """A method with a field that is a list."""

    name: ClassVar[str] = "mine"
    lr: float = 0.1
    stages: tuple[int, ...] = (1, 2)


def one(source: str, *overrides: str) -> Recipe:
    (recipe,) = load(source, overrides)
    return recipe


# -- overrides ----------------------------------------------------------------------------------------------------


def test_a_bare_name_runs_on_the_embedded_data_set() -> None:
    recipe = one("pfedpt")
    assert recipe.data["name"] == "fashion-shops"
    plain = Recipe()
    assert recipe.partition.items() >= plain.partition.items()
    for key in ("rounds", "clients", "seed", "device"):
        assert getattr(recipe, key) == getattr(plain, key)
    assert recipe.method == {"name": "pfedpt", **options.defaults(PFedPT)}


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("rounds=20", "rounds", 20),
        ("method.lr=0.25", "method.lr", 0.25),
        ("method.lr=1e-3", "method.lr", 0.001),
        ("method.lr=1", "method.lr", 1.0),
        ("method.drop_last=true", "method.drop_last", True),
        ('device="cpu"', "device", "cpu"),
        ("device=cpu", "device", "cpu"),
        ("fleet.name=one-by-one", "fleet.name", "one-by-one"),
        ("evaluate.every=3", "evaluate.every", 3),
        ("rounds = 7", "rounds", 7),
        ("data.name=npz:/a b/c=d.npz", "data.name", "npz:/a b/c=d.npz"),
    ],
)
def test_an_override_is_read_as_toml(override: str, key: str, value: object) -> None:
    found = one("fedavg", override).flatten()[key]
    assert found == value
    assert type(found) is type(value)


def test_the_last_override_wins() -> None:
    assert one("fedavg", "rounds=3", "rounds=4").rounds == 4


def test_a_file_and_overrides(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('seed = 3\n[method]\nname = "fedavg"\nlr = 0.5\nepochs = 2\n')
    recipe = one(str(path), "method.lr=0.75")
    assert (recipe.seed, recipe.method["lr"], recipe.method["epochs"]) == (3, 0.75, 2)


def test_a_new_name_resets_its_table() -> None:
    assert one("frames/pfedpt", "method.name=fedavg").method == one("fedavg").method
    assert one("frames/pfedpt", "method.name=pfedpt").method == one("frames/pfedpt").method
    assert (
        one("frames/pfedpt", "partition.name=dirichlet").partition
        == one("fedavg", "partition.name=dirichlet").partition
    )


def test_the_order_of_overrides_does_not_matter() -> None:
    words = ["method.lr=0.5", "method.name=fedavg", "partition.alpha=0.3", "partition.name=dirichlet"]
    assert load("frames/pfedpt", words) == load("frames/pfedpt", words[::-1])
    assert one("frames/pfedpt", *words).method["lr"] == 0.5


@pytest.mark.parametrize("data", ["data.name=folder:x", "data.name=npz:x"])
def test_a_backbone_need_not_fit_images_of_another_size(data: str) -> None:
    # 28×28 images are cut by patches of 7; that 32×32 are not is no mistake
    assert one("fedavg", data, "backbone.name=vit-tiny", "backbone.patch=7").backbone["patch"] == 7


def test_naming_the_default_again_keeps_what_stands_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[data]\nlimit = 20\n[method]\nepochs = 3\n")
    recipe = one(str(path), "data.name=fashion-shops", "method.name=pfedpt")
    assert (recipe.data["limit"], recipe.method["epochs"]) == (20, 3)
    assert one(str(path), "method.name=fedavg").method["epochs"] == one("fedavg").method["epochs"]


# -- sweeps -------------------------------------------------------------------------------------------------------


def test_a_list_is_a_sweep() -> None:
    found = load("fedavg", ["seed=[0,1]", "method.lr=[0.1,0.2,0.4]"])
    assert len(found) == 6
    assert {(recipe.seed, recipe.method["lr"]) for recipe in found} == {
        (s, lr) for s in (0, 1) for lr in (0.1, 0.2, 0.4)
    }


def test_names_can_be_swept() -> None:
    found = load("fedavg", ['method.name=["local","fedavg"]', "method.epochs=2"])
    assert [(recipe.method["name"], recipe.method["epochs"]) for recipe in found] == [("local", 2), ("fedavg", 2)]


def test_a_list_in_a_file_is_a_sweep(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('seed = [4, 5]\n[method]\nname = "local"\n')
    assert [recipe.seed for recipe in load(str(path))] == [4, 5]


def test_a_field_that_is_a_list_stays_one() -> None:
    recipe = one("fedavg", "backbone.name=cnn", "backbone.channels=[8,16]")
    assert recipe.backbone["channels"] == (8, 16)
    assert one("test_config:Mine", "method.stages=[3]").method["stages"] == (3,)


def test_a_sweep_over_lists() -> None:
    found = load("fedavg", ["backbone.name=cnn", "backbone.channels=[8,16]", "seed=[0,1]"])
    assert [(recipe.seed, recipe.backbone["channels"]) for recipe in found] == [(0, (8, 16)), (1, (8, 16))]


# -- presets ------------------------------------------------------------------------------------------------------


def test_presets() -> None:
    paper, code = one("pfedpt", "method.preset=paper").method, one("pfedpt", "method.preset=code").method
    assert (paper["size"], paper["prompt_momentum"], paper["lr"]) == (4, 0.0, 0.005)
    assert (code["size"], code["prompt_momentum"], code["lr"], code["drop_last"]) == (2, 0.5, 0.05, True)
    assert "preset" not in paper


def test_a_key_wins_over_the_preset() -> None:
    assert one("pfedpt", "method.preset=paper", "method.size=3").method["size"] == 3
    assert one("pfedpt", "method.size=3", "method.preset=paper").method["prompt_momentum"] == 0.0


def test_a_method_without_presets() -> None:
    with pytest.raises(PromptFedError, match='preset "paper" in method fedavg'):
        load("fedavg", ["method.preset=paper"])


def test_build_method() -> None:
    assert build_method(one("fedavg", "method.lr=0.5")) == FedAvg(lr=0.5)


# -- the recipe as a value ----------------------------------------------------------------------------------------


def test_resolving_twice_changes_nothing() -> None:
    recipe = one("frames/pfedpt")
    assert resolve(tomllib.loads(recipe.to_toml())) == recipe


WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=12)
POSITIVE = st.floats(min_value=1e-30, max_value=1e30)


@settings(max_examples=80, deadline=None)
@given(
    top=st.fixed_dictionaries(
        {},
        optional={
            "seed": st.integers(0, 2**40),
            "rounds": st.integers(1, 10**6),
            "checkpoint_seconds": st.floats(0, 1e9),
            "device": st.sampled_from(["auto", "cpu", "cuda", "cuda:1"]),
        },
    ),
    lr=POSITIVE,
    joint=st.booleans(),
    path=WORDS,
    channels=st.lists(st.integers(1, 99), min_size=1, max_size=2),
)
def test_written_and_read_a_recipe_is_the_same(
    top: dict[str, Any], lr: float, joint: bool, path: str, channels: list[int]
) -> None:
    content = {
        **top,
        "method": {"name": "pfedpt", "lr": lr, "joint": joint},
        "data": {"name": f"npz:/{path}"},
        "backbone": {"name": "cnn", "channels": channels},
    }
    recipe = resolve(content)
    again = resolve(tomllib.loads(recipe.to_toml()))
    assert again == recipe
    assert again.hash == recipe.hash


def test_a_word_is_learned_from_a_few_photographs_each() -> None:
    assert one("relic").partition == {"name": "equal", "each": 3, "repeat": False}
    assert one("fedti", "partition.each=5").partition["each"] == 5
    assert one("relic", "partition.name=iid").partition["name"] == "iid"
    assert one("fedavg").partition["name"] == "pathological"


def test_a_word_is_learned_for_what_the_embedded_model_has_never_seen() -> None:
    assert one("relic").data == {"name": "fashion-shops", "limit": 50, "only": "Ankle boot"}
    assert one("fedti", "data.limit=10").data == {"name": "fashion-shops", "limit": 10, "only": "Ankle boot"}
    assert one("relic", "data.only=Bag").data["only"] == "Bag"
    assert one("fedavg").data["only"] == ""
    stored = replace(one("relic"), data={"name": "fashion-shops", "limit": 50})
    assert resolve(asdict(stored)).data["only"] == ""  # what is named stays as it is written


# -- mistakes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"sed": 1}, 'Unknown key "sed" in the recipe; did you mean "seed"?'),
        ({"method": "fedavg"}, "method in the recipe must be a table"),
        ({"method": {"lr": 1, "name": 3}}, "method.name"),
        ({"clients": 2, "per_round": 3}, "per_round=3 is more than clients=2"),
        ({"device": "tpu"}, 'Unknown device "tpu"'),
        ({"fleet": {"width": -1}}, "fleet.width must be at least 0"),
        ({"evaluate": {"every": 0}}, "evaluate.every must be at least 1"),
    ],
)
def test_resolve_refuses(content: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PromptFedError) as caught:
        resolve(content)
    assert sentence in str(caught.value)


# -- a method's bare name ---------------------------------------------------------------------------------------------


def test_a_bare_name_starts_from_the_methods_quick_keys() -> None:
    (recipe,) = load("relic")
    assert (recipe.rounds, recipe.clients, recipe.method["repeats"], recipe.evaluate["every"]) == (5, 4, 10, 5)
    (recipe,) = load("pfedpg")
    assert (recipe.partition["name"], recipe.clients, recipe.data["limit"]) == ("domain", 4, 5)


def test_keys_that_are_given_win_over_quick_ones() -> None:
    (recipe,) = load("relic", ["rounds=7", "method.repeats=2"])
    assert (recipe.rounds, recipe.clients, recipe.method["repeats"]) == (7, 4, 2)


def test_on_other_data_and_in_a_file_nothing_is_quick(tmp_path: Path) -> None:
    (recipe,) = load("pfedpg", ["data.name=cifar10"])
    assert (recipe.rounds, recipe.clients, recipe.partition["name"]) == (10, 20, "pathological")
    path = tmp_path / "mine.toml"
    path.write_text('[method]\nname = "relic"\n', encoding="utf-8")
    (recipe,) = load(str(path))
    assert (recipe.rounds, recipe.clients, recipe.method["repeats"]) == (10, 20, 100)


def test_only_a_run_on_embedded_data_starts_from_quick_keys() -> None:
    quick = one("pfedpg")
    assert (quick.rounds, quick.evaluate["every"]) == (5, 5)
    over_sites = load_one("pfedpg", [], embedded=False)
    assert (over_sites.rounds, over_sites.evaluate["every"]) == (10, 1)
