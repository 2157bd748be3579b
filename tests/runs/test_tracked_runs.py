"""Runs that are tracked while they train: the same numbers, every step once, whatever happens to run or tracker."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from promptfed.core.errors import PromptFedError
from promptfed.runs.runner import Result, run
from support.command import promptfed, sentence
from support.fake_trackers import fake_wandb
from support.tiny_runs import plain, tiny, write_images


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images") / "tiny.npz")


def go(images: Path, out: Path, *more: str, **words: Any) -> Result:
    return run("fedavg", out=out, overrides=tuple(tiny(images, "checkpoint_seconds=0", *more)), **words)


def steps(folder: Path, tag: str = "loss") -> list[int]:
    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    return [one.step for one in events.Scalars(tag)]


def test_a_tracked_run_has_the_numbers_of_any_other(images: Path, tmp_path: Path) -> None:
    one, other = go(images, tmp_path / "one"), go(images, tmp_path / "other", track="tensorboard")
    assert plain(one.rounds) == plain(other.rounds)
    assert one.summary["recipe_hash"] == other.summary["recipe_hash"]
    assert (one.folder / "recipe.toml").read_text() == (other.folder / "recipe.toml").read_text()
    assert steps(other.folder) == [1, 2, 3]
    assert steps(other.folder, "final/mean") == [3]
    assert not (one.folder / "tracked.json").exists()


def test_rounds_that_are_run_again_are_not_tracked_twice(images: Path, tmp_path: Path) -> None:
    folder = go(images, tmp_path / "run", "rounds=1").folder
    shutil.copytree(folder / "checkpoint", tmp_path / "after one round")
    run(str(folder / "recipe.toml"), resume=folder, rounds=3, track="tensorboard")
    assert steps(folder) == [1, 2, 3], "the round before the tracker came is in it, too"
    # as after kill -9: three rounds are on record and tracked, but only the first is committed
    shutil.rmtree(folder / "checkpoint")
    shutil.copytree(tmp_path / "after one round", folder / "checkpoint")
    (folder / "summary.json").unlink()
    run(str(folder / "recipe.toml"), resume=folder, rounds=4, track=("tensorboard",))
    assert len((folder / "rounds.jsonl").read_text().splitlines()) == 4
    assert steps(folder) == [1, 2, 3, 4]
    assert steps(folder, "final/mean") == [3, 4]


def test_a_tracker_that_fails_does_not_stop_the_run(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wandb = fake_wandb(monkeypatch)
    wandb.broken = "log"
    result = go(images, tmp_path / "run", track="wandb")
    assert len(result.rounds) == 3
    assert (result.folder / "report.html").is_file()
    assert capsys.readouterr().err.count("Tracking with wandb failed") == 1


def test_own_images_leave_neither_path_nor_folder(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = fake_wandb(monkeypatch)
    go(images, tmp_path / "run", "rounds=1", track="wandb")
    ((words,),) = wandb.named("init")
    assert words["config"]["data.name"] == "npz:…"
    assert str(images.parent) not in json.dumps([words["config"], wandb.named("log"), wandb.named("summary")])


def test_an_unknown_tracker_is_refused_before_anything_is_written(images: Path, tmp_path: Path) -> None:
    with pytest.raises(PromptFedError, match="Unknown tracker"):
        go(images, tmp_path / "run", track="tensorbored")
    assert not (tmp_path / "run").exists()


def test_commands_track_and_send(images: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = promptfed("run", "fedavg", *tiny(images), "--out", folder, "--track", "tensorboard")
    assert done.code == 0, done.err
    assert steps(folder) == [1, 2, 3]
    shutil.rmtree(folder / "tensorboard")
    (folder / "tracked.json").unlink()
    sent = promptfed("track", folder, "--to", "tensorboard")
    assert (sent.code, steps(folder)) == (0, [1, 2, 3])
    assert sent.out == (
        f"{folder}: 3 rounds are in tensorboard\nLook at them with: tensorboard --logdir {folder / 'tensorboard'}\n"
    )


def test_a_stopped_run_names_its_trackers(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*words: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("promptfed.runs.execution.start", stop)
    done = promptfed("run", "fedavg", "--out", tmp_path / "run", "--track", "tensorboard", "--track", "wandb")
    assert done.code == 130
    assert done.err == (
        f"Stopped. Resume with: promptfed run --resume {tmp_path / 'run'} --track tensorboard --track wandb\n"
    )


def test_a_folder_that_is_no_run_is_not_sent(tmp_path: Path) -> None:
    assert "is not a run folder" in sentence(promptfed("track", tmp_path, "--to", "tensorboard"))
