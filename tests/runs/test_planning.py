"""From a recipe to all that it names: which images are dealt, and on which device."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from promptfed.runs import config, planning
from promptfed.runs.runner import run
from support.tiny_runs import tiny, write_images


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images") / "tiny.npz")


@pytest.mark.parametrize("name", ["pfllib-iid", "pfllib-pathological", "pfllib-dirichlet", "dirichlet"])
def test_validation_trains_and_scores_no_image_that_the_final_run_tests_on(
    name: str, images: Path, tmp_path: Path
) -> None:
    words = tiny(images, f"partition.name={name}", *(["partition.classes_per_client=2"] if "patho" in name else []))
    final, choice = (
        planning.prepare(config.load("fedavg", [*words, f"evaluate.split={split}"])[0], None, None).partition
        for split in ("test", "val")
    )
    tested = set(np.concatenate(final.test).tolist())
    assert tested
    assert not tested & set(np.concatenate([*choice.train, *choice.test]).tolist())
    done = run("fedavg", out=tmp_path / "run", overrides=(*words, "evaluate.split=val", "rounds=1"))
    again = run("fedavg", resume=done.folder, overrides=(*words, "evaluate.split=val", "rounds=2"))
    assert [line["round"] for line in again.rounds] == [1, 2]
    (recipe,) = config.load(str(done.folder / "recipe.toml"))
    assert planning.prepare(recipe, None, done.folder / "partition.json").partition.hash == choice.hash


def test_a_device_is_picked() -> None:
    assert planning.pick_device("cpu").type == "cpu"
    (recipe,) = config.load("fedavg", ["device=cpu"])
    assert replace(recipe, device="auto").hash == recipe.hash
