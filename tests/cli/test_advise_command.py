"""`promptfed advise`: what it prints, what it refuses, and that it needs no torch."""

import csv
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from promptfed.runs import config
from support.command import environment, promptfed, sentence
from support.photographs import put, put_sites


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMPTFED_HOME", str(tmp_path / "home"))


def test_folders_of_sites(tmp_path: Path) -> None:
    root = put_sites(tmp_path / "pets", ["north", "south", "west"], each=5)
    done = promptfed("advise", f"folder:{root}", "--newcomers", 1)
    assert done.code == 0
    for said in (
        "at 3 sites.",
        "Method: pfedvpt",
        "Backbone: vit, facebook/dinov2-small",
        "Run:",
        "docs/results/pfedvpt.md",
    ):
        assert said in done.out
    (command,) = (line for line in done.out.splitlines() if line.startswith("    promptfed run pfedvpt"))
    (recipe,) = config.load("pfedvpt", shlex.split(command)[3:])
    assert (recipe.clients, recipe.newcomers, recipe.partition["name"]) == (3, 1, "domain")


def test_a_list_and_its_options(tmp_path: Path) -> None:
    with (tmp_path / "list.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "label", "site"])
        for level in range(12):
            put(tmp_path / f"{level}.png", level)
            rows.writerow([f"{level}.png", "cat" if level < 6 else "dog", "north" if level < 6 else "south"])
    done = promptfed("advise", f"csv:{tmp_path / 'list.csv'}", "data.test_fraction=0.5", "--no-download", "--json")
    found = json.loads(done.out)
    assert found["method"]["keys"] == {"method.name": "head-probe"}
    assert "data.test_fraction=0.5" in found["run"]
    assert "6 training and 6 test images of 2 classes at 2 sites." in found["seen"]
    assert found["evidence"]["cifar10/alone"] == {
        "percent": 98.17,
        "table": "pfedpg-cifar10-0.01",
        "column": "c10-disjoint",
        "row": "head-probe",
    }


def test_what_it_refuses(tmp_path: Path) -> None:
    root = put_sites(tmp_path / "pets", ["north", "south"], each=5)
    assert "multiple of 2" in sentence(promptfed("advise", f"folder:{root}", "--clients", 5))
    assert "leave out --no-download" in sentence(
        promptfed("advise", f"folder:{root}", "--new-classes", "--no-download")
    )
    assert "did you mean" in sentence(promptfed("advise", "fashion-shop"))
    assert promptfed("advise", f"folder:{root}", "--clients", -1).code == 2


def test_it_needs_no_torch() -> None:
    code = (
        "import sys; sys.argv = ['promptfed', 'advise', 'fashion-shops', '--json']\n"
        "from promptfed import cli\n"
        "try:\n    cli.main()\nexcept SystemExit:\n    pass\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["backbone"]["keys"] == {"backbone.name": "vit"}
