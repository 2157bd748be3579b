"""A recipe as a value: its fingerprint, its dotted keys, and how two recipes differ."""

from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from promptfed.results.recipe_keys import OURS
from promptfed.runs.config import load
from promptfed.runs.recipe import Recipe, differences, first_difference


def one(source: str, *overrides: str) -> Recipe:
    (recipe,) = load(source, overrides)
    return recipe


def test_a_recipe_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        one("fedavg").seed = 3  # type: ignore[misc]


def test_flatten() -> None:
    flat = one("local", "seed=3").flatten()
    assert (flat["seed"], flat["method.name"], flat["fleet.precision"]) == (3, "local", "tf32")


# -- its fingerprint ------------------------------------------------------------------------------------------------


def test_the_hash_ignores_length_and_place_of_the_run() -> None:
    recipe = one("fedavg")
    for change in ({"rounds": 99}, {"device": "cpu"}, {"checkpoint_seconds": 77.0}):
        assert replace(recipe, **change).hash == recipe.hash


def test_the_hash_ignores_nothing_else() -> None:
    recipe = one("fedavg", "partition.name=dirichlet", "backbone.name=vit-tiny")
    hashes, keys = (
        {recipe.hash},
        [key for key in recipe.flatten() if key not in ("rounds", "device", "checkpoint_seconds")],
    )
    for key in keys:
        table, _, name = key.rpartition(".")
        if table:
            changed = replace(recipe, **{table: {**getattr(recipe, table), name: "other"}})  # type: ignore[arg-type]
        else:
            changed = replace(recipe, **{key: 12345})  # type: ignore[arg-type]
        hashes.add(changed.hash)
    assert len(hashes) == len(keys) + 1


def test_young_keys_at_their_first_value_leave_the_hash_as_it_was() -> None:
    recipe = one("fedavg", "partition.name=domain", "data.name=office-caltech10")
    bare = {key: value for key, value in recipe.data.items() if key != "split"}
    assert replace(recipe, data=bare, partition={"name": "domain"}).hash == recipe.hash
    changes: list[dict[str, Any]] = [{"sampling": "one-per-domain"}, {"data": recipe.data | {"split": "fedapt"}}]
    for change in [*changes, {"partition": {"name": "domain", "unseen": "dslr"}}]:
        assert replace(recipe, **change).hash != recipe.hash


@pytest.mark.parametrize("method", ["per-fedavg", "fedrep", "fedbabu", "fedavg"])
def test_a_key_that_is_young_to_some_methods_alone(method: str) -> None:
    recipe = one(method)
    bare = replace(recipe, method={key: value for key, value in recipe.method.items() if key != "drop_last"})
    assert (bare.hash == recipe.hash) == (method != "fedavg")
    assert one(method, "method.drop_last=true").hash != recipe.hash


def test_keys_that_are_young_to_some_partitions_alone() -> None:
    iid, dirichlet, pathological = (
        one("fedavg", f"partition.name=pfllib-{kind}") for kind in ("iid", "dirichlet", "pathological")
    )
    bare: dict[str, Any] = {"name": "pfllib-iid", "train_fraction": 0.75}
    assert replace(iid, partition=bare).hash == iid.hash
    ordered = {"name": "pfllib-dirichlet", "alpha": 0.3, "train_fraction": 0.75}
    assert replace(dirichlet, partition=ordered).hash == dirichlet.hash
    without = {key: value for key, value in pathological.partition.items() if key != "balanced"}
    assert replace(pathological, partition=without).hash != pathological.hash
    for key, recipe in (("draw", iid), ("draw", dirichlet), ("draw", pathological), ("balanced", iid)):
        changed = recipe.partition | {key: "authors" if key == "draw" else True}
        assert replace(recipe, partition=changed).hash != recipe.hash


# -- differences ------------------------------------------------------------------------------------------------------


def test_differences_have_both_values() -> None:
    found = differences(one("fedavg", "seed=1", "device=cpu"), one("fedavg", "method.lr=0.5", "rounds=3"))
    assert found == {"seed": (1, 0), "rounds": (10, 3), "method.lr": (one("fedavg").method["lr"], 0.5)}
    assert differences(one("fedavg", "device=cpu", "checkpoint_seconds=1"), one("fedavg")) == {}
    evaluated = one("fedavg", "seed=1", "evaluate.every=3", "evaluate.personal=false", "evaluate.after=false")
    assert differences(evaluated, one("fedavg"), OURS) == {}


def test_a_key_that_one_recipe_lacks_is_a_difference() -> None:
    found = differences(one("fedavg", "partition.name=iid"), one("fedavg"))
    assert found["partition.classes_per_client"] == (None, one("fedavg").partition["classes_per_client"])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["rounds=3", "device=cpu", "method.lr=0.5"], "method.lr=0.05, not 0.5"),
        (["rounds=3", "clients=7"], "clients=20, not 7"),
        (["rounds=3", "device=cpu"], "rounds=10, not 3"),
        (["guards.clip=2"], "guards.clip=None, not 2.0"),
    ],
)
def test_the_first_difference_is_one_that_matters(words: list[str], sentence: str) -> None:
    assert first_difference(one("fedavg", "method.lr=0.05"), one("fedavg", "method.lr=0.05", *words)) == sentence
