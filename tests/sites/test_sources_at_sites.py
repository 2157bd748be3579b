"""A site takes part with the images and weights that its run began with."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from promptfed.core.errors import PromptFedError
from promptfed.data import open_dataset
from promptfed.data.digest import digest_images
from promptfed.sites import coordinator, wire
from promptfed.sites.settings import Federation
from promptfed.sites.wire import Message
from promptfed.sites.worker import Worker
from support.faults import ignore
from support.sites_in_threads import Threads
from support.three_sites import NAMES, Ask, begin, exchange, lines, workers


def test_a_site_whose_images_have_changed_says_so_and_takes_no_part(tmp_path: Path) -> None:
    answering = dict(workers(tmp_path))

    def newest(name: str, request: bytes) -> bytes:
        return answering[name].answer(request)

    post = Threads({name: partial(newest, name) for name in NAMES})

    def restart(line: dict[str, Any]) -> None:
        if line["round"] == 1:
            path = Path(answering["south"].data)
            with np.load(path) as opened:
                arrays = dict(opened)
            arrays["x_train"][0, 0, 0, 0] ^= 1
            np.savez(path, **arrays)
            answering["south"] = Worker("south", answering["south"].home, str(path), "cpu")

    out, federation = begin(tmp_path, "fedavg", federation=Federation(NAMES, min_sites=2))
    coordinator.conduct(out, federation, post, restart)
    found: list[Any] = lines(out)
    assert [line["clients"] for line in found] == [[0, 1, 2], [0, 2], [0, 2]]
    assert "its images are not those that this run began with" in found[1]["sites"]["refused"]["south"][0]


def test_what_a_site_says_of_its_images_tells_only_whether_they_changed(tmp_path: Path) -> None:
    out, federation = begin(tmp_path, "fedavg", "rounds=1")
    coordinator.conduct(out, federation, exchange(tmp_path), ignore)
    told = json.loads((out / "sites.json").read_text())["sites"]["north"]["sources"]["images"]
    assert len(told) == 64
    assert told != digest_images(open_dataset(f"npz:{tmp_path / 'north.npz'}"))


def test_a_site_with_other_frozen_weights_is_refused_by_name(tmp_path: Path) -> None:
    def wrap(site: str, ask: Ask) -> Ask:
        def answer(request: bytes) -> bytes:
            found = wire.unpack(ask(request), 2**30)
            if site == "west" and found.head["kind"] == "hello":
                found.head["sources"]["frozen weights"] = "0" * 64
            return wire.pack(Message(found.head, found.tree))

        return answer

    out, federation = begin(tmp_path, "pfedpg", "rounds=1")
    with pytest.raises(
        PromptFedError, match=r"^west has other frozen weights than the coordinator; give both the same"
    ):
        coordinator.conduct(out, federation, exchange(tmp_path, wrap), ignore)
