"""domains.json: which key the images of a domain get, and how right every key is, of any method that sorts them."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from promptfed.core.method import Method, Task
from promptfed.core.protocols import Batch, Sorter
from promptfed.core.tree import Tree
from promptfed.data.dataset import Dataset
from promptfed.methods.fedapt import FedAPT
from promptfed.methods.fedavg import FedAvg
from promptfed.methods.promptfl import PromptFL
from promptfed.runs import domains
from promptfed.runs.checks import toy_dataset, toy_loop


def two_domains() -> Dataset:
    """Return the toy images, the odd ones from another domain; the third domain has none."""
    data = toy_dataset()
    return replace(data, domains=np.arange(len(data)) % 2, domain_names=("even", "odd", "none"))


@dataclass(frozen=True)
class Stubborn(FedAvg):
    """Takes every image for one of domain 1, by three quarters; in domain k it always answers class k."""

    def sorter(self, task: Task, server: Tree) -> Sorter:
        def sort(batch: Batch) -> Tree:
            assert "y" not in batch
            count = len(batch["x"])
            answers = torch.eye(2, len(task.classes))
            return {"shares": torch.tensor([0.25, 0.75]).expand(count, 2), "logits": answers.expand(count, -1, -1)}

        return sort


def shown(method: Method, folder: Path, data: Dataset) -> tuple[Any, Any]:
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


def test_any_method_that_sorts_is_shown(tmp_path: Path) -> None:
    data = two_domains()
    loop, found = shown(Stubborn(batch=8), tmp_path, data)
    rows = np.concatenate(loop.shards.rows["test"])
    of = [data.labels[rows[data.domains[rows] == number]] for number in range(2)]
    assert found["keys"] == ["even", "odd"]
    assert found["count"] == [len(own) for own in of]
    assert found["chosen"] == [[0, len(own)] for own in of]
    assert found["right"] == [[int((own == 0).sum()), int((own == 1).sum())] for own in of]
    assert found["correct"] == [int((own == 1).sum()) for own in of]


def test_without_test_images_there_is_nothing_to_show(tmp_path: Path) -> None:
    loop = toy_loop(Stubborn(batch=8), tmp_path / "run")
    loop.shards.rows["test"] = [own[:0] for own in loop.shards.rows["test"]]
    domains.show(loop, two_domains(), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"run"}


def test_a_method_that_does_not_sort_shows_nothing(tmp_path: Path) -> None:
    loop = toy_loop(PromptFL(tokens=2, batch=8), tmp_path / "run")
    domains.show(loop, two_domains(), tmp_path)
    assert not (tmp_path / "domains.json").exists()
