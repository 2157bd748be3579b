"""TensorBoard's event files, written and read back by TensorBoard itself."""

import json
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from promptfed.results.tracking import send
from support.reports import MakeRun

Curves = dict[str, list[Any]]  # of a step and a value


def curves(folder: Path) -> Curves:
    """Return what TensorBoard shows of a run: every scalar's steps and values."""
    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    return {tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_every_round_is_a_step_with_its_numbers(make_run: MakeRun) -> None:
    folder = make_run("one", rounds=4, level=0.8)
    assert send(folder, ("tensorboard",)) == 4
    found = curves(folder)
    assert [step for step, _ in found["loss"]] == [1, 2, 3, 4]
    assert [value for _, value in found["loss"]] == pytest.approx([2.0, 1.0, 2 / 3, 0.5])
    assert found["received/mean"][-1] == (4, pytest.approx(0.795))
    assert [step for step, _ in found["received/mean"]] == [1, 2, 4], "round 3 was not evaluated"
    assert found["deployed/street"][-1] == (4, pytest.approx(0.6))
    assert found["final/worst"] == [(4, pytest.approx(0.76))]
    assert found["final/after"] == [(4, pytest.approx(0.825))]


def test_the_recipe_is_in_the_table_of_hyper_parameters(make_run: MakeRun) -> None:
    folder = make_run("one", rounds=2, lr=0.25)
    send(folder, ("tensorboard",))
    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    (plugin,) = [name for name in events.summary_metadata if "hparams" in name]
    content = events.summary_metadata[plugin].plugin_data.content
    assert b"method.lr" in content
    assert b"dirichlet" in content


def test_what_is_there_is_not_sent_again(make_run: MakeRun) -> None:
    folder = make_run("one", rounds=4)
    lines = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
    summary = (folder / "summary.json").read_text()
    (folder / "summary.json").unlink()
    (folder / "rounds.jsonl").write_text("".join(lines[:2]) + '{"round": 3, ')
    assert send(folder, ("tensorboard",)) == 2
    (folder / "rounds.jsonl").write_text("".join(lines))
    (folder / "summary.json").write_text(summary)
    assert send(folder, ("tensorboard",)) == 4
    assert send(folder, ("tensorboard",)) == 4
    found = curves(folder)
    assert [step for step, _ in found["loss"]] == [1, 2, 3, 4]
    assert [step for step, _ in found["final/mean"]] == [4]
    assert json.loads((folder / "tracked.json").read_text()) == {"tensorboard": {"folder": "tensorboard", "final": 4}}


def test_an_event_file_that_was_cut_off_is_gone_on_with(make_run: MakeRun) -> None:
    folder = make_run("one", rounds=3, done=3)
    send(folder, ("tensorboard",))
    (file,) = (folder / "tensorboard").iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) * 2 // 3])
    before = [step for step, _ in curves(folder)["loss"]]
    assert before in ([1], [1, 2])
    (folder / "tracked.json").unlink()
    send(folder, ("tensorboard",))
    assert [step for step, _ in curves(folder)["loss"]] == [1, 2, 3]
