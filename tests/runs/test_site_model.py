"""The files of a site's model: written and read back whole, and what is wrong with them said in one sentence."""

import json
from pathlib import Path

import pytest
import torch

from promptfed.core.errors import PromptFedError
from promptfed.runs import config
from promptfed.runs.site_model import read_model, write_model
from support.datasets import dataset_of


def test_a_model_comes_back_as_it_was_written(tmp_path: Path) -> None:
    recipe = config.load_one("fedavg", ["rounds=3", "seed=5"])
    data = dataset_of([0, 1, 2], False)
    params = {"b": torch.ones(2), "a": torch.arange(3.0)}
    write_model(tmp_path, params, recipe, data, {"client": torch.tensor(2), "counts": torch.tensor([4.0, 0.0, 1.0])}, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.json", "model.safetensors"]
    found = read_model(tmp_path)
    assert list(found.params) == ["b", "a"]
    assert all(torch.equal(found.params[name], value) for name, value in params.items())
    assert (found.recipe, found.round) == (recipe, 3)
    assert (found.classes, found.shape, found.mean, found.std) == (data.classes, data.sides, data.mean, data.std)
    assert {name: value.tolist() for name, value in found.facts.items()} == {"client": 2, "counts": [4.0, 0.0, 1.0]}


def test_damaged_files_get_one_sentence(tmp_path: Path) -> None:
    def fail() -> str:
        with pytest.raises(PromptFedError) as raised:
            read_model(tmp_path)
        return str(raised.value)

    about = tmp_path / "model.json"
    assert fail() == f"{about} is missing, and with it the class names; copy it from the site too."
    for text, wanted in {
        "{": "is damaged",
        "[]": "is damaged",
        '{"format": 1, "classes": ["a"]}': "is damaged",
        '{"format": 1, "classes": []}': "names no classes",
        '{"format": 2}': "has format 2; this version reads 1",
    }.items():
        about.write_text(text)
        assert wanted in fail()
    recipe = config.load_one("fedavg")
    write_model(tmp_path, {"a": torch.ones(1)}, recipe, dataset_of([0, 1], False), {}, 1)
    assert json.loads(about.read_text())["format"] == 1
    (tmp_path / "model.safetensors").write_bytes(b"torn")
    assert "model.safetensors cannot be read" in fail()
