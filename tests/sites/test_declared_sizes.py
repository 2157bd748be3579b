"""How many images a site says it has: not more than it may, not far more than the others, and then held to it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from promptfed.cli.sites import app
from promptfed.core.errors import PromptFedError
from promptfed.sites import coordinator, wire
from promptfed.sites.settings import Federation
from promptfed.sites.wire import Message
from support.faults import ignore
from support.three_sites import NAMES, Ask, Change, begin, exchange, lines


def boasting(kind: str, head: Mapping[str, object] | None = None, tensors: Mapping[str, float] | None = None) -> Change:
    """Return sites of which "west" changes some of its answers of one kind."""

    def wrap(site: str, ask: Ask) -> Ask:
        def answer(request: bytes) -> bytes:
            found = wire.unpack(ask(request), 2**30)
            if site != "west" or found.head["kind"] != kind:
                return wire.pack(found)
            changed = {name: torch.full_like(found.tree[name], value) for name, value in (tensors or {}).items()}
            return wire.pack(Message(found.head | dict(head or {}), found.tree | changed))

        return answer

    return wrap


@pytest.mark.parametrize(
    ("head", "weight", "sentence"),
    [
        ({"train": 10**12}, 1e12, r"west: it declares 1,000,000,000,000 training images, more than max_images=10,"),
        ({"test": 10**12}, 12.0, r"west: it declares 1,000,000,000,000 test images, more than max_images=10,000,000"),
        ({"train": 5000}, 5000.0, r"west declares 5,000 images, more than max_ratio=100 times .* median of 10.*raise"),
        ({}, 5000.0, r"west declares 5,000 images, more than max_ratio=100 times"),
        ({"train": -1}, 12.0, r"west: it does not say how many training images it has"),
        ({"test": "many"}, 12.0, r"west: it does not say how many test images it has"),
    ],
)
def test_a_site_cannot_own_the_mean_by_what_it_declares(
    head: Mapping[str, object], weight: float, sentence: str, tmp_path: Path
) -> None:
    out, federation = begin(tmp_path, "fedavg")
    with pytest.raises(PromptFedError, match=f"The run cannot begin: {sentence}"):
        coordinator.conduct(out, federation, exchange(tmp_path, boasting("hello", head, {"weight": weight})), ignore)
    assert not (out / "sites.json").exists()


def test_a_federation_may_allow_sites_of_very_different_sizes(tmp_path: Path) -> None:
    federation = Federation(NAMES, max_ratio=1000.0, min_sites=2)
    out, _ = begin(tmp_path, "fedavg", "rounds=1", federation=federation)
    change = boasting("hello", {"train": 5000}, {"weight": 5000.0})
    coordinator.conduct(out, federation, exchange(tmp_path, change), ignore)
    assert json.loads((out / "sites.json").read_text())["weights"][2] == 5000


@pytest.mark.parametrize("kind", ["fit", "evaluate"])
def test_more_test_images_than_declared_are_refused_by_name(kind: str, tmp_path: Path) -> None:
    out, federation = begin(tmp_path, "fedavg", "rounds=1", federation=Federation(NAMES, min_sites=2))
    change = boasting(kind, tensors={"tested.count": 1000.0, "tested.correct": 1000.0})
    coordinator.conduct(out, federation, exchange(tmp_path, change), ignore)
    line: Any = lines(out)[0]
    assert "it counts 1000 test images, but it declared 4" in line["sites"]["refused"]["west"][0]
    assert line["received"]["per_client"][2] is None or kind == "fit"


def test_status_shows_what_sites_declared(tmp_path: Path) -> None:
    (tmp_path / "fed.toml").write_text('sites = ["north", "south", "west"]')
    out, federation = begin(tmp_path / "runs", "fedavg", "rounds=1")
    folder = tmp_path / "data"
    folder.mkdir()
    coordinator.conduct(out, federation, exchange(folder), ignore)
    said = CliRunner().invoke(app, ["status", "--federation", str(tmp_path)]).stdout
    assert "north declared 11 training and 3 test images" in said
    assert "west declared 12 training and 4 test images" in said
