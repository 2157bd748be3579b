"""The server's own model on other data sets, whose classes it knows by name alone."""

from pathlib import Path

import pytest

import promptfed
from promptfed.core.errors import PromptFedError
from promptfed.runs import config
from promptfed.sites.coordinator import create
from promptfed.sites.settings import Federation

SMALL = (
    *("data.name=fashion-shops", "data.limit=5", "clients=3", "rounds=1", "partition.name=iid"),
    *("evaluate.after=false", "device=cpu"),
)
BASE = ("data.half=base", "partition.name=disjoint-random", "evaluate.elsewhere=fashion-shops")


def test_all_classes_by_name_are_tested_as_if_they_were_the_runs_own(tmp_path: Path) -> None:
    whole = promptfed.run("clip-zs", out=tmp_path / "whole", overrides=SMALL).summary["accuracy"]
    half = promptfed.run("clip-zs", out=tmp_path / "half", overrides=SMALL + BASE).summary["accuracy"]
    assert half["elsewhere"] == {"fashion-shops": whole["deployed"]["all"]}
    assert half["deployed"]["all"] != whole["deployed"]["all"]
    assert "elsewhere" not in whole


def test_validation_images_choose_without_a_look_elsewhere(tmp_path: Path) -> None:
    words = (*SMALL, *BASE, "evaluate.split=val")
    assert "elsewhere" not in promptfed.run("clip-zs", out=tmp_path / "run", overrides=words).summary["accuracy"]


def test_what_has_no_answer_is_refused() -> None:
    with pytest.raises(PromptFedError, match=r'data set in evaluate\.elsewhere "cifer10"; did you mean "cifar10"'):
        config.load_one("clip-zs", ["evaluate.elsewhere=office-caltech10+cifer10"])
    with pytest.raises(PromptFedError, match="does not know classes by name alone, so it has no answer for other data"):
        config.load_one("vit-tuning", ["evaluate.elsewhere=cifar10"])


def test_no_site_is_asked(tmp_path: Path) -> None:
    recipe = config.load_one("clip-zs", ["evaluate.elsewhere=cifar10", "clients=2"])
    with pytest.raises(PromptFedError, match=r"^evaluate\.elsewhere is not supported over sites"):
        create(tmp_path / "run", recipe, Federation(("a", "b")))


def test_it_is_no_part_of_what_a_paper_measures_and_there_only_if_asked() -> None:
    plain = config.load_one("clip-zs", SMALL)
    assert "elsewhere" not in plain.evaluate
    asked = config.load_one("clip-zs", [*SMALL, "evaluate.elsewhere=cifar10 + cifar10+fashion-mnist"])
    assert asked.evaluate["elsewhere"] == "cifar10+fashion-mnist"
