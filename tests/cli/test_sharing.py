"""`promptfed run --gpus` and `--processes`, and a run under torchrun."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from promptfed.cli import sharing
from support.command import environment, promptfed
from support.stopped_runs import Run, assert_same, bits
from support.tiny_runs import tiny, write_images


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images") / "tiny.npz")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--gpus", "2", "--processes", "2"), "--gpus and --processes are two ways to share a run; give one of them."),
        (("--gpus", "2", "device=cpu"), "device=cpu and --gpus contradict each other; leave one of them out."),
        (("--processes", "2", "--device", "cuda:1"), "device=cuda:1 and --processes contradict each other; leave one"),
        (("--processes", "2", "rouns=3"), 'did you mean "rounds"?'),
    ],
)
def test_what_does_not_go_together(words: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    done = promptfed("run", "pfedpt", *words, "--out", tmp_path / "run")
    assert done.code == 2
    assert sentence in done.err
    assert not (tmp_path / "run").exists()


def test_processes_under_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    done = promptfed("run", "pfedpt", "--processes", "2")
    assert done.code == 2
    assert done.err == "promptfed: --processes starts the processes itself; leave it out under torchrun.\n"


def test_one_process_needs_no_others(images: Path, tmp_path: Path) -> None:
    done = promptfed("run", "local", *tiny(images, "rounds=1"), "--processes", "1", "--out", tmp_path / "run")
    assert done.code == 0
    assert "processes" not in json.loads((tmp_path / "run" / "env.json").read_text())


def test_who_was_killed(capsys: pytest.CaptureFixture[str]) -> None:
    again = "promptfed run --resume runs/a --gpus 4"
    assert sharing._ended({0: -signal.SIGTERM, 3: -signal.SIGKILL}, 4, again) == 1
    assert capsys.readouterr().err == f"Process 3 of 4 was ended by SIGKILL. Resume with: {again}\n"
    assert sharing._ended({0: 2, 1: 2, 2: -signal.SIGTERM}, 3, again) == 2
    assert sharing._ended({1: -signal.SIGTERM}, 3, again) == 1
    assert capsys.readouterr().err == ""


def words(images: Path, folder: Path, rounds: int) -> list[str]:
    return ["run", "pfedpt", *tiny(images, "method.prompt_epochs=1", f"rounds={rounds}"), "--out", str(folder)]


def wait_for(folder: Path, lines: int, process: "subprocess.Popen[str]") -> None:
    path = folder / "rounds.jsonl"
    while not path.exists() or path.read_bytes().count(b"\n") < lines:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_processes_end_with_who_started_them(sign: signal.Signals, images: Path, tmp_path: Path) -> None:
    folder, straight = tmp_path / "run", tmp_path / "straight"
    command = [sys.executable, "-m", "promptfed", *words(images, folder, 300), "--processes", "2"]
    first = subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True)
    wait_for(folder, 3, first)
    first.send_signal(sign)
    assert first.communicate()[1] == f"Stopped. Resume with: promptfed run --resume {folder}\n"
    assert first.returncode == 128 + sign
    reached = json.loads((folder / "checkpoint" / "state.json").read_text())["round"]
    assert reached == (folder / "rounds.jsonl").read_bytes().count(b"\n") >= 3
    again = [sys.executable, "-m", "promptfed", "run", "--resume", str(folder), "--processes", "3"]
    subprocess.run(again, env=environment(), check=True)
    assert Run(straight, *words(images, straight, 300)[1:]).end() == 0
    assert_same(bits(folder), bits(straight))


@pytest.mark.slow
def test_a_run_under_torchrun(images: Path, tmp_path: Path) -> None:
    folder, straight = tmp_path / "run", tmp_path / "straight"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, "-m", "promptfed", *words(images, folder, 4)]
    done = subprocess.run(command, env=environment(), check=True, capture_output=True, text=True)
    assert done.stdout.count("Run folder") == 1
    assert Run(straight, *words(images, straight, 4)[1:]).end() == 0
    assert_same(bits(folder), bits(straight))
