"""Which folder a new run gets, alone or as one of a sweep."""

from pathlib import Path

import pytest

from promptfed.core.errors import PromptFedError
from promptfed.runs import config, folders


def test_a_sweep_has_a_folder_per_combination() -> None:
    found = config.load("fedavg", ["seed=[0,1]", "method.lr=[0.1,0.2]"])
    names = [folder.name for folder in folders.sweep_folders(found, Path("out"))]
    assert names == [f"seed={seed},method.lr={lr}" for lr in (0.1, 0.2) for seed in (0, 1)]
    assert folders.sweep_folders(found[:1], Path("out")) == [Path("out")]


def test_a_folder_of_a_sweep_names_no_consequences() -> None:
    found = config.load("fedavg", ['method.name=["fedavg","moon","pfedpg"]'])  # they differ in many more keys
    names = [folder.name for folder in folders.sweep_folders(found, Path("out"))]
    assert names == ["method.name=fedavg", "method.name=moon", "method.name=pfedpg"]


def test_a_sweep_has_no_run_twice() -> None:
    with pytest.raises(PromptFedError, match="contains a run twice"):
        folders.sweep_folders(config.load("fedavg", ["seed=[1,1]"]), Path("out"))
