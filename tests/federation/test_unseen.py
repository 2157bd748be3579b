"""A domain nobody trains on: the server's own model is tested on it, and the others' numbers have no gap."""

from pathlib import Path

import pytest

from promptfed.core.errors import PromptFedError
from promptfed.runs import config
from promptfed.runs.execution import start
from promptfed.runs.resuming import resume
from promptfed.runs.runner import Result

BACKBONE = [f"backbone.{word}" for word in ("name=vit-tiny", "width=8", "depth=1", "heads=2", "patch=16")]


def shops(folder: Path, unseen: str, *more: str) -> Result:
    words = ["data.name=fashion-shops", "data.limit=2", "partition.name=domain", "rounds=2", "method.epochs=1"]
    words += ["device=cpu", f"partition.unseen={unseen}", *BACKBONE, *more]
    (recipe,) = config.load("fedavg", words)
    return start(recipe, folder)


def test_it_is_tested_last_and_nobody_holds_it(tmp_path: Path) -> None:
    result = shops(tmp_path / "run", "catalogue", "clients=3")
    accuracy = result.summary["accuracy"]
    assert list(accuracy["deployed"]) == ["all", "studio", "sketch", "street", "catalogue"]
    assert len(accuracy["per_client"]) == 3
    seen = [accuracy["deployed"][shop] for shop in ("studio", "sketch", "street")]
    assert accuracy["per_client"] == pytest.approx(seen)  # the received model is the server's own
    # all shops have 500 test images
    assert accuracy["deployed"]["all"] == pytest.approx((sum(seen) + accuracy["deployed"]["catalogue"]) / 4)


def test_the_trained_models_of_the_last_round_are_in_the_summary(tmp_path: Path) -> None:
    result = shops(tmp_path / "run", "street", "clients=3")
    assert result.summary["accuracy"]["trained"] == result.rounds[-1]["trained"]


def test_it_is_unseen_after_a_stop_too(tmp_path: Path) -> None:
    straight = shops(tmp_path / "straight", "sketch", "clients=3", "rounds=3")
    shops(tmp_path / "run", "sketch", "clients=3")
    (longer,) = config.load(str(tmp_path / "run" / "recipe.toml"), ["rounds=3"])
    resumed = resume(tmp_path / "run", longer)
    assert resumed.summary["accuracy"]["deployed"] == straight.summary["accuracy"]["deployed"]


def test_an_unknown_domain_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(PromptFedError, match=r'Unknown domain "skech".*did you mean "sketch"'):
        shops(tmp_path / "run", "skech", "clients=3")


def test_there_is_a_client_less(tmp_path: Path) -> None:
    with pytest.raises(PromptFedError, match='has 3 domains less "sketch", so use 3 clients, not 4'):
        shops(tmp_path / "run", "sketch", "clients=4")
