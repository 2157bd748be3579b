"""domains.json: which key the images of a domain get, and how right every key is."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from promptfed import domains
from promptfed.checks import toy_dataset, toy_loop
from promptfed.data.dataset import Dataset
from promptfed.methods.fedapt import FedAPT
from promptfed.methods.promptfl import PromptFL


def two_domains() -> Dataset:
    """Return the toy images, the odd ones from another domain; the third domain has none."""
    data = toy_dataset()
    return replace(data, domains=np.arange(len(data)) % 2, domain_names=("even", "odd", "none"))


def shown(method: FedAPT, folder: Path, data: Dataset) -> tuple[Any, Any]:
    loop = toy_loop(method, folder / "run")
    domains.show(loop, data, folder)
    return loop, json.loads((folder / "domains.json").read_text())


@pytest.mark.parametrize("inference", ["fast", "exact"])
def test_every_number_is_what_the_method_answers_under_that_key(inference: Any, tmp_path: Path) -> None:
    data = two_domains()
    method = FedAPT(domains=4, tokens=2, batch=8, inference=inference, tau=0.3)
    loop, found = shown(method, tmp_path, data)
    rows = np.concatenate(loop.shards.rows["test"])
    assert (found["domains"], found["keys"]) == (["even", "odd"], ["even", "odd", "none", "key 3"])
    for number in range(2):
        own = rows[data.domains[rows] == number]
        batch = {"x": loop.shards.pool.x[torch.from_numpy(own)]}
        labels = torch.from_numpy(data.labels[own])

        def right(how: FedAPT, batch: Any = batch, labels: Any = labels) -> int:
            return int((how.predict(loop.task, loop.server, batch).argmax(-1) == labels).sum())

        under = [replace(method, test_key="fixed", fixed_key=key, inference="fast") for key in range(4)]
        assert found["right"][number] == [right(how) for how in under]
        assert found["correct"][number] == right(replace(method, inference="fast"))
        chosen = method.shares(loop.server, batch["x"]).argmax(-1)
        assert found["chosen"][number] == torch.bincount(chosen, minlength=4).tolist()
        assert found["count"][number] == len(own) == sum(found["chosen"][number])


def test_the_sheet_has_a_line_for_every_domain(tmp_path: Path) -> None:
    data = two_domains()
    loop, found = shown(FedAPT(domains=2, tokens=2, batch=8), tmp_path, data)
    with Image.open(tmp_path / found["sheet"]["file"]) as sheet:
        assert sheet.size == (8 * 64, 2 * 64)
        corner = np.asarray(sheet)[:8, :8].reshape(-1, 3).mean(0)
    rows = np.concatenate(loop.shards.rows["test"])
    first = rows[data.domains[rows] == 0][0]
    np.testing.assert_allclose(corner, data.images[first, 0, 0], atol=12)  # a pixel enlarged eight times, as JPEG
    assert [len(line) for line in found["sheet"]["key"]] == [8, 8]
    assert found["sheet"]["class"][0][0] == data.classes[data.labels[first]]
    assert {value for line in found["sheet"]["right"] for value in line} <= {0, 1}


def test_a_method_without_keys_shows_nothing(tmp_path: Path) -> None:
    loop = toy_loop(PromptFL(tokens=2, batch=8), tmp_path / "run")
    domains.show(loop, two_domains(), tmp_path)
    assert not (tmp_path / "domains.json").exists()
