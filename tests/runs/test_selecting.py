"""data.half and data.shots: keys of every data set, in the recipe only where they say something."""

from pathlib import Path

import numpy as np
import pytest

from promptfed.core.errors import PromptFedError
from promptfed.runs import planning
from promptfed.runs.config import load_one
from promptfed.runs.execution import start
from promptfed.runs.recipe import Recipe
from support.tiny_runs import tiny, write_images


def one(*overrides: str) -> Recipe:
    return load_one("fedavg", overrides)


def test_a_recipe_without_them_is_as_it_was() -> None:
    plain = one("data.name=cifar10")
    said = one("data.name=cifar10", "data.shots=0", "data.half=all")
    assert plain.data == said.data == {"name": "cifar10", "limit": 0}
    assert plain.hash == said.hash
    assert plain.to_toml() == said.to_toml()


def test_they_are_keys_of_every_data_set() -> None:
    for name in ("cifar10", "fashion-shops", "office-caltech10"):
        recipe = one(f"data.name={name}", "data.shots=4", "data.half=base", "data.shots_per=client")
        assert recipe.data.items() >= {("shots", 4), ("half", "base"), ("shots_per", "client")}
        assert recipe.hash != one(f"data.name={name}").hash


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("data.shot=4", r'^Unknown key "data\.shot" in the recipe; did you mean "data\.shots"\?$'),
        ("data.shots=-1", r"^data\.shots must be at least 0, not -1\.$"),
        ("data.half=bas", r'^Unknown data\.half "bas"; did you mean "base"\?$'),
        ("data.shots_per=client", r"^data\.shots_per=client says how data\.shots is counted; set data\.shots too\.$"),
    ],
)
def test_mistakes(override: str, sentence: str) -> None:
    with pytest.raises(PromptFedError, match=sentence):
        one("data.name=cifar10", override)


def test_shots_of_images_that_the_partition_divides() -> None:
    with pytest.raises(PromptFedError, match=r"^data\.shots .* pfllib-iid .*; set data\.shots_per=client\.$"):
        one("data.name=cifar10", "partition.name=pfllib-iid", "data.shots=4")
    assert one("data.name=cifar10", "partition.name=pfllib-iid", "data.shots=4", "data.shots_per=client")


def test_a_run_uses_what_its_recipe_says(tmp_path: Path) -> None:
    images = write_images(tmp_path / "tiny.npz")
    recipe = load_one("fedavg", tiny(images, "data.half=base", "data.shots=3"))
    plan = planning.prepare(recipe, None, None)
    assert len(plan.task.classes) == (len(plan.dataset.classes + plan.dataset.others) + 1) // 2
    assert plan.partition.counts(plan.dataset).sum(0).tolist() == [3] * len(plan.task.classes)
    other = planning.prepare(load_one("fedavg", tiny(images, "data.shots=3", "seed=1")), None, None)
    assert other.partition.hash != plan.partition.hash
    start(recipe, tmp_path / "run")
    again = planning.prepare(recipe, None, tmp_path / "run" / "partition.json")
    assert again.partition == plan.partition


def test_shots_per_client_are_drawn_once(tmp_path: Path) -> None:
    images = write_images(tmp_path / "tiny.npz")
    recipe = load_one("fedavg", tiny(images, "data.shots=2", "data.shots_per=client"))
    plan = planning.prepare(recipe, None, None)
    counts = plan.partition.counts(plan.dataset)
    assert counts.max() == 2
    plan.partition.save(tmp_path / "partition.json", plan.dataset)
    again = planning.prepare(recipe, None, tmp_path / "partition.json")
    assert all(map(np.array_equal, again.partition.train, plan.partition.train))
