"""`promptfed plan`: its table, its JSON, and what it leaves behind, which is nothing."""

import json
from pathlib import Path

import pytest

from support.command import promptfed, sentence
from support.tiny_runs import tiny, write_images


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the words of a tiny recipe; the current folder is an empty one."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return ["plan", "fedavg", *tiny(write_images(tmp_path / "tiny.npz"))]


def test_the_table_and_the_json_say_the_same(words: list[str]) -> None:
    found = json.loads(promptfed(*words, "--json").out)
    parts = ("training", "testing", "server", "loading")
    assert found["seconds"] == pytest.approx(sum(found[f"{part}_seconds"] for part in parts))
    shown = promptfed(*words, "--format", "markdown").out
    assert f"| parameters a client trains | {found['trained']:,} | counted |" in shown
    assert f"| local steps, whole run | {found['steps']} | counted |" in shown
    plain = promptfed(*words, "--format", "csv").out.splitlines()
    assert f'"sent by all clients, whole run",{found["up_bytes"]},counted' in plain
    assert list(Path.cwd().iterdir()) == []


def test_a_sweep_and_a_wrong_key_are_refused(words: list[str]) -> None:
    assert "This recipe is a sweep of 2 runs" in sentence(promptfed(*words, "seed=[0,1]"))
    assert 'did you mean "rounds"?' in sentence(promptfed(*words, "round=3"))
