"""`promptfed new`: what it writes works as it is, and it never writes over anything."""

import subprocess
import sys
from pathlib import Path

import pytest

from promptfed.runs import config
from promptfed.runs.registry import find_method
from support.command import environment, promptfed, sentence


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, an empty one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_new_method_passes_its_own_test_and_keeps_every_promise(here: Path) -> None:
    done = promptfed("new", "method", "half-way")
    assert done.code == 0, done
    assert sorted(path.name for path in here.iterdir()) == ["half_way.py", "test_half_way.py"]
    words = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "test_half_way.py"]
    tested = subprocess.run(words, cwd=here, env=environment(), capture_output=True, text=True, check=False)
    assert "2 passed" in tested.stdout, tested.stdout


def test_a_new_method_is_found_in_the_current_folder_and_refused_elsewhere(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert promptfed("new", "method", "third-way", "--dir", "deep/down").code == 0
    assert sentence(promptfed("run", "third_way:ThirdWay")).startswith('promptfed: There is no method "third_way')
    monkeypatch.chdir(here / "deep" / "down")
    (recipe,) = config.load("third_way:ThirdWay", ["method.step=0.25"])
    assert recipe.method["step"] == 0.25
    assert find_method("third_way:ThirdWay").name == "third-way"


def test_a_new_recipe_runs(here: Path) -> None:
    assert promptfed("new", "recipe", "first").code == 0
    recipe = config.load_one("first.toml")
    assert (recipe.rounds, recipe.clients, recipe.method["size"]) == (10, 10, 4)
    small = ["rounds=1", "clients=3", "data.limit=2", "backbone.channels=[2,2]", "backbone.hidden=[4]"]
    done = promptfed("run", "first.toml", *small, "evaluate.after=false", "--out", "run")
    assert done.code == 0, done
    assert (here / "run" / "summary.json").is_file()


@pytest.mark.parametrize("existing", ["mine.py", "test_mine.py"])
def test_no_file_is_overwritten_and_none_is_written_beside_it(here: Path, existing: str) -> None:
    (here / existing).write_text("mine", encoding="utf-8")
    assert f"{existing} exists, and nothing is overwritten" in sentence(promptfed("new", "method", "mine"))
    assert [path.name for path in here.iterdir()] == [existing]
    assert (here / existing).read_text(encoding="utf-8") == "mine"


def test_no_recipe_is_overwritten(here: Path) -> None:
    (here / "mine.toml").write_text("seed = 1\n", encoding="utf-8")
    assert "mine.toml exists" in sentence(promptfed("new", "recipe", "mine"))
    assert (here / "mine.toml").read_text(encoding="utf-8") == "seed = 1\n"


@pytest.mark.parametrize(
    ("kind", "name", "because"),
    [
        ("method", "My-Method", "small letters"),
        ("method", "../mine", "small letters"),
        ("method", "mine-", "small letters"),
        ("recipe", "mine.toml", "small letters"),
        ("method", "fedavg", 'There is a method "fedavg" already'),
        ("method", "class", '"class" is a word or a module'),
        ("method", "random", '"random" is a word or a module'),
        ("method", "torch", '"torch" is a word or a module'),
        ("method", "whole", "would be Whole, which"),
        ("method", "tensor", "would be Tensor, which"),
    ],
)
def test_a_name_that_would_not_work_is_refused(here: Path, kind: str, name: str, because: str) -> None:
    assert because in sentence(promptfed("new", kind, name))
    assert list(here.iterdir()) == []
