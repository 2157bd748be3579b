"""What a recipe says of learning holds at real sites too: rates of the round, weighted classes, changed images."""

from pathlib import Path

import pytest

from promptfed.core.errors import PromptFedError
from promptfed.sites import coordinator
from promptfed.sites.settings import Federation
from support.three_sites import NAMES, begin, exchange, furthest, recipe, server_tree, simulate

LEARNING = ("schedule.name=cosine", "schedule.warmup=1", "train.augment=flip+crop", "train.class_weights=balanced")


def test_sites_learn_as_the_simulation_does(tmp_path: Path) -> None:
    simulated = simulate(tmp_path, "fedavg", *LEARNING)
    out, federation = begin(tmp_path, "fedavg", *LEARNING)
    coordinator.conduct(out, federation, exchange(tmp_path), lambda line: None)
    assert furthest(server_tree(simulated), server_tree(out)) <= 1e-6


def test_early_stopping_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PromptFedError, match="not supported over sites; leave it out, and set rounds"):
        coordinator.create(tmp_path / "run", recipe("fedavg", "stop.patience=2"), Federation(NAMES))
    assert not (tmp_path / "run").exists()
