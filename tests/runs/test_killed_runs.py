"""Runs killed at any moment, the very first and the very last among them, lack nothing once they are resumed."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from promptfed.runs import runner
from support.command import environment, promptfed
from support.scripts import ROOT, load_script
from support.stopped_runs import assert_same, bits, content
from support.tiny_runs import tiny, write_images

FEW = ("relic", "stacked pfedpt")


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    images = write_images(tmp_path_factory.mktemp("images") / "tiny.npz")
    return tiny(images, "method.prompt_epochs=1", "per_round=2")


@pytest.fixture(scope="module")
def straight(words: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runner.run("pfedpt", out=tmp_path_factory.mktemp("straight") / "run", overrides=tuple(words)).folder


@pytest.fixture
def folder(straight: Path, tmp_path: Path) -> Path:
    """Return a run that was killed before its summary."""
    shutil.copytree(straight, tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    return tmp_path / "run"


def resumed(folder: Path) -> int:
    return promptfed("run", "--resume", folder).code


# -- the first and the last moment ----------------------------------------------------------------------------------


@pytest.mark.parametrize("last", ["exhibits.write_figures", "exhibits.draw_prompts", "write_report"])
def test_a_run_stopped_at_its_very_end_lacks_nothing_when_it_is_resumed(
    last: str, words: list[str], straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*given: object) -> None:
        raise KeyboardInterrupt

    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(f"promptfed.runs.execution.{last}", stop)
        done = promptfed("run", "pfedpt", *words, "--out", folder)
    finished = last == "write_report"
    said = "Stopped after the last round: the run is finished. Its report: promptfed report"
    assert done.err == (
        f"{said} {folder}\n" if finished else f"Stopped. Resume with: promptfed run --resume {folder}\n"
    )
    assert done.code == 130
    assert (folder / "summary.json").is_file() == finished
    assert resumed(folder) == 0
    # which files the checkpoint consists of depends on when it was written
    found, wanted = ({name for name in content(one) if not name.startswith("checkpoint")} for one in (folder, straight))
    assert found == wanted
    assert_same(bits(folder), bits(straight))


def test_leftovers_of_a_run_killed_right_after_its_last_commit_are_removed(folder: Path) -> None:
    named = set(content(folder / "checkpoint"))
    for name in ("server-000002.safetensors", "personal-000000.safetensors"):
        (folder / "checkpoint" / name).write_bytes(b"stale")
    assert resumed(folder) == 0
    assert set(content(folder / "checkpoint")) == named


def test_a_run_killed_as_it_began_gets_what_it_lacks(folder: Path, tmp_path: Path) -> None:
    (began := tmp_path / "began").mkdir()
    shutil.copy(folder / "recipe.toml", began)
    assert resumed(began) == 0
    found, whole = (json.loads((one / "env.json").read_text()) for one in (began, folder))
    assert [found[key] for key in ("torch", "threads")] == [whole[key] for key in ("torch", "threads")]
    assert_same(bits(began), bits(folder))


# -- any moment -----------------------------------------------------------------------------------------------------


def kill(tmp_path: Path, *words: object) -> str:
    """Run the campaign of tools/kill_runs.py, which must find no difference; return what it prints."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "kill_runs.py"), *map(str, words)],
        env=environment(PROMPTFED_HOME=str(tmp_path)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_few_kills(tmp_path: Path) -> None:
    said = kill(tmp_path, "--kills", 2, "--cases", *FEW)
    assert f"{len(FEW)} cases: {2 * len(FEW)} kills" in said
    assert said.endswith(" 0 differing files\n")


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_many_kills_of_every_case(tmp_path: Path) -> None:
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")  # noqa: T201  (to try the same again)
    assert " 0 differing files\n" in kill(tmp_path, "--kills", 1, "--seed", seed)


def test_every_registered_method_is_a_case() -> None:
    from promptfed.runs import registry

    cases = load_script("tools/kill_runs.py").cases()
    assert registry.methods().keys() <= cases.keys()
    assert {method for method, _ in cases.values()} == registry.methods().keys()
    assert len(cases) > 60


SPOILED: dict[str, tuple[str, Any]] = {
    "a score": ("rounds.jsonl", lambda text: text.replace(b'"mean": 0.', b'"mean": 1.', 1)),
    "a picture": ("pictures/prompt-client-000.png", lambda text: text[:-1] + b"!"),
    "the report": ("report.html", lambda text: text.replace(b"pfedpt", b"fedavg", 1)),
    "an answer": ("predictions.npz", lambda text: text[:-1] + b"!"),
}


@pytest.mark.parametrize("what", SPOILED)
def test_the_campaign_sees_a_difference(what: str, straight: Path, tmp_path: Path) -> None:
    tool, folder = load_script("tools/kill_runs.py"), tmp_path / "run"
    shutil.copytree(straight, folder)
    report = folder / "report.html"
    report.write_bytes(report.read_bytes().replace(str(straight).encode(), str(folder).encode()))
    assert tool.differences(tool.content(straight), tool.content(folder)) == []
    name, spoil = SPOILED[what]
    whole = (folder / name).read_bytes()
    spoiled = b"\n".join(unsealed_line(line) for line in spoil(whole).split(b"\n"))
    assert spoiled != whole
    (folder / name).write_bytes(spoiled)
    assert tool.differences(tool.content(straight), tool.content(folder)) == [name]


def unsealed_line(line: bytes) -> bytes:
    """Return a line of rounds.jsonl without its seal, which a spoiled one would break."""
    head, found, _ = line.partition(b', "crc32"')
    return head + b"}" if found else line
