"""A run is resumed on the images and frozen weights it began with, or not at all."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from promptfed.backbones.digest import digest_weights
from promptfed.core.errors import PromptFedError
from promptfed.core.files import unsealed
from promptfed.data import open_dataset
from promptfed.data.digest import digest_images
from promptfed.runs import config
from promptfed.runs.execution import start
from promptfed.runs.planning import make_task
from promptfed.runs.resuming import resume
from support.tiny_hub import saved, vit
from support.tiny_runs import tiny, write_images

Arrays = dict[str, np.ndarray]


def other_pixel(arrays: Arrays) -> None:
    arrays["x"][5, 0, 0, 0] ^= 1


def other_label(arrays: Arrays) -> None:
    arrays["y"][:2] = arrays["y"][:2][::-1]


def rewrite(path: Path, change: Callable[[Arrays], None]) -> None:
    with np.load(path) as opened:
        arrays = dict(opened)
    change(arrays)
    np.savez(path, **arrays)


@pytest.mark.parametrize("change", [other_pixel, other_label])
def test_other_images_are_refused_when_a_run_is_resumed(change: Callable[[Arrays], None], tmp_path: Path) -> None:
    images = write_images(tmp_path / "images.npz")
    start(config.load_one("fedavg", tiny(images)), tmp_path / "run")
    before = (tmp_path / "run" / "checkpoint" / "state.json").read_bytes()
    rewrite(images, change)
    with pytest.raises(PromptFedError, match=r"state\.json was made with other images; restore them, or start a new"):
        resume(tmp_path / "run", config.load_one("fedavg", tiny(images, "rounds=4")))
    assert (tmp_path / "run" / "checkpoint" / "state.json").read_bytes() == before


def test_a_folder_without_digests_is_resumed(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images.npz")
    start(config.load_one("fedavg", tiny(images)), tmp_path / "run")
    path = tmp_path / "run" / "checkpoint" / "state.json"
    state = unsealed(path.read_text())  # nor had such a folder checksums
    assert set(state.pop("sources")) == {"images"}  # this backbone is trained, not frozen
    path.write_text(json.dumps(state))
    assert len(resume(tmp_path / "run", config.load_one("fedavg", tiny(images, "rounds=4"))).rounds) == 4
    assert "sources" in json.loads(path.read_text())


def test_other_frozen_weights_are_refused_when_a_run_is_resumed(tmp_path: Path) -> None:
    images, model = write_images(tmp_path / "images.npz"), vit()
    words = [f"data.name=npz:{images}", "clients=4", "partition.name=iid", "method.epochs=1"]
    words += ["backbone.name=vit", f"backbone.weights={saved(model, tmp_path / 'weights')}"]
    start(config.load_one("fedvpt", [*words, "rounds=1"]), tmp_path / "run")
    with torch.no_grad():
        next(model.parameters()).add_(0.5)
    saved(model, tmp_path / "weights")
    with pytest.raises(PromptFedError, match=r"state\.json was made with other frozen weights; restore them"):
        resume(tmp_path / "run", config.load_one("fedvpt", [*words, "rounds=2"]))


def test_digests_of_large_data_look_at_evenly_chosen_images(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    dataset = open_dataset(f"npz:{write_images(tmp_path / 'images.npz')}")
    monkeypatch.setattr("promptfed.data.digest.HASHED_BYTES", dataset.images.nbytes // 4)
    whole = digest_images(dataset)
    dataset.images[1] ^= 255
    assert digest_images(dataset) == whole
    dataset.images[4] ^= 255
    assert digest_images(dataset) != whole


@pytest.mark.parametrize("name", ["vit", "clip", "diffusion", "cnn"])
def test_digests_of_embedded_weights_are_there_where_weights_are_frozen(name: str) -> None:
    recipe = config.load_one({"cnn": "fedavg", "vit": "fedvpt", "clip": "promptfl", "diffusion": "relic"}[name], [])
    task = make_task(recipe, (32, 32), ("a", "b"), torch.device("cpu"))
    digest = digest_weights(task.backbone)
    assert (len(digest) == 64) == (name != "cnn")
    assert digest == digest_weights(task.backbone)
