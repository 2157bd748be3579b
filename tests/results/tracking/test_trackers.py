"""wandb, trackio and mlflow: the exact calls, by stand-ins that write them down."""

import json
import sys
from pathlib import Path

import pytest

from promptfed.core.errors import PromptFedError
from promptfed.results import tracking
from promptfed.results.tracking import send
from support.fake_trackers import fake_mlflow, fake_trackio, fake_wandb
from support.reports import MakeRun


def kept(folder: Path) -> object:
    return json.loads((folder / "tracked.json").read_text())


def cut(folder: Path, rounds: int) -> None:
    """Make of a finished run one that has so many rounds so far."""
    lines = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
    (folder / "rounds.jsonl").write_text("".join(lines[:rounds]))
    (folder / "summary.json").unlink()


# -- wandb ---------------------------------------------------------------------------------------------------------


def test_wandb_gets_the_recipe_the_rounds_and_the_end(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    wandb, folder = fake_wandb(monkeypatch), make_run("one", rounds=2)
    send(folder, ("wandb",))
    ((words,),) = wandb.named("init")
    assert {key: words[key] for key in ("project", "name", "dir", "allow_val_change")} == {
        "project": "promptfed", "name": "one", "dir": str(folder), "allow_val_change": True,
    }  # fmt: skip
    assert words["config"]["method.lr"] == 0.1
    assert "id" not in words
    assert words["settings"] == {
        "console": "off", "disable_code": True, "disable_git": True, "disable_job_creation": True, "save_code": False,
        "host": "",
        "x_disable_machine_info": True, "x_disable_meta": True, "x_disable_stats": True, "x_save_requirements": False,
    }  # fmt: skip
    assert [call[0] for call in wandb.named("log")] == [1, 2]
    assert wandb.named("log")[1][1]["received/mean"] == pytest.approx(0.795)
    ((end,),) = wandb.named("summary")
    assert end["final/mean"] == pytest.approx(0.795)
    assert wandb.named("finish") == [(0,)]
    assert kept(folder) == {"wandb": {"id": "abc123", "project": "promptfed", "final": 2}}


def test_wandb_goes_on_in_the_same_run(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "shops")
    wandb, folder = fake_wandb(monkeypatch), make_run("one", rounds=4)
    (folder / "tracked.json").write_text('{"wandb": {"id": "abc123", "project": "shops"}}')
    wandb.step = 3  # rounds 1 and 2 have arrived
    send(folder, ("wandb",))
    ((words,),) = wandb.named("init")
    assert (words["id"], words["resume"], words["project"]) == ("abc123", "allow", "shops")
    assert [call[0] for call in wandb.named("log")] == [3, 4]


def test_wandb_is_told_that_a_run_stopped(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb, folder = fake_wandb(monkeypatch), make_run("one", rounds=2)
    with pytest.raises(KeyboardInterrupt), tracking.follow(folder, ("wandb",)):
        raise KeyboardInterrupt
    assert wandb.named("finish") == [(1,)]


# -- trackio -------------------------------------------------------------------------------------------------------


def test_trackio_gets_the_rounds_once(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    trackio, folder = fake_trackio(monkeypatch), make_run("one", rounds=4)
    whole = {name: (folder / name).read_bytes() for name in ("rounds.jsonl", "summary.json")}
    cut(folder, 2)
    send(folder, ("trackio",))
    for name, content in whole.items():
        (folder / name).write_bytes(content)
    send(folder, ("trackio",))
    first, second = (call[0] for call in trackio.named("init"))
    assert first == second
    assert first.keys() == {"project", "name", "config", "resume", "auto_log_gpu"}
    assert (first["project"], first["resume"], first["auto_log_gpu"]) == ("promptfed", "allow", False)
    assert first["name"].startswith("one-")
    assert len(first["name"]) == len("one-") + 6
    steps = [(step, "final/mean" in values) for step, values in trackio.named("log")]
    assert steps == [(1, False), (2, False), (3, False), (4, False), (4, True)]
    assert len(trackio.named("finish")) == 2
    assert kept(folder) == {"trackio": {"name": first["name"], "round": 4, "final": 4}}


# -- mlflow --------------------------------------------------------------------------------------------------------


def test_mlflow_gets_a_batch_per_round(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    mlflow, folder = fake_mlflow(monkeypatch), make_run("one", rounds=2)
    send(folder, ("mlflow",))
    assert [call[0] for call in mlflow.calls] == [
        "get_experiment_by_name", "create_experiment", "create_run", "log_batch", "log_batch", "log_batch", "log_batch",
        "set_terminated",
    ]  # fmt: skip
    assert mlflow.named("create_experiment") == [("promptfed",)]
    assert mlflow.named("create_run") == [("7", "one")]
    recipe, first, second, end = mlflow.named("log_batch")
    assert recipe[2]["method.lr"] == "0.1"
    assert first[1]["loss"] == (2.0, 1)
    assert second[1]["received/worst"] == (pytest.approx(0.76), 2)
    assert end[1]["final/worst"] == (pytest.approx(0.76), 2)
    assert mlflow.named("set_terminated") == [("r1", "FINISHED")]


def test_mlflow_goes_on_after_the_last_round_it_has(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow, folder = fake_mlflow(monkeypatch), make_run("one", rounds=4)
    (folder / "tracked.json").write_text('{"mlflow": {"run_id": "r1", "final": 4}}')
    mlflow.history = [1, 2, 3]
    send(folder, ("mlflow",))
    assert mlflow.calls[:2] == [("get_metric_history", "r1", "seconds"), ("update_run", "r1", "RUNNING")]
    ((_, metrics, parameters),) = mlflow.named("log_batch")
    assert (metrics["loss"], parameters) == ((0.5, 4), {})


def test_mlflow_gets_no_name_that_it_refuses(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow, folder = fake_mlflow(monkeypatch), make_run("one", rounds=1)
    lines = (folder / "rounds.jsonl").read_text().replace('"street"', '"rue: d\'Été"')
    (folder / "rounds.jsonl").write_text(lines)
    send(folder, ("mlflow",))
    assert "deployed/rue_ d_Été" in mlflow.named("log_batch")[1][1]


def test_the_names_of_real_sites_stay(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb, folder = fake_wandb(monkeypatch), make_run("one", rounds=1)
    (folder / "federation.json").write_text("{}")
    send(folder, ("wandb",))
    ((_, values),) = wandb.named("log")
    assert [name for name in values if name.startswith("deployed/")] == [
        "deployed/all",
        "deployed/domain-0",
        "deployed/domain-1",
    ]


# -- what goes wrong -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", ["init", "log", "summary", "finish"])
def test_a_tracker_that_fails_is_left_out_with_one_sentence(
    broken: str, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wandb, folder = fake_wandb(monkeypatch), make_run("one", rounds=4)
    trackio = fake_trackio(monkeypatch)
    wandb.broken = broken
    with tracking.follow(folder, ("wandb", "trackio")) as following:
        for line in (folder / "rounds.jsonl").read_text().splitlines():
            following.log(json.loads(line))
        following.finish(json.loads((folder / "summary.json").read_text()))
    assert capsys.readouterr().err == (
        "Tracking with wandb failed (ConnectionError: no network); the run goes on without it. "
        "Send the rest later with promptfed track RUN --to wandb\n"
    )
    assert len(wandb.named(broken)) == 1
    assert [step for step, _ in trackio.named("log")] == [1, 2, 3, 4, 4], "the other one is not disturbed"


def test_sending_afterwards_says_what_failed(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb, folder = fake_wandb(monkeypatch), make_run("one", rounds=3)
    wandb.broken = "log"
    with pytest.raises(PromptFedError) as caught:
        send(folder, ("wandb",))
    assert str(caught.value) == f"{folder} could not be sent to wandb (ConnectionError: no network)."


@pytest.mark.parametrize(
    ("name", "package"),
    [("tensorboard", '"promptfed[tensorboard]"'), ("wandb", "wandb"), ("trackio", "trackio"), ("mlflow", "mlflow")],
)
def test_a_tracker_that_is_not_installed_is_named(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(PromptFedError) as caught:
        tracking.check((name,))
    assert str(caught.value) == f"Tracking with {name} needs: pip install {package}."


def test_an_unknown_tracker_is_refused() -> None:
    with pytest.raises(PromptFedError, match=r'^Unknown tracker "tensorbord"; did you mean "tensorboard"\?$'):
        tracking.check(("tensorbord",))


def test_a_damaged_tracked_json_is_started_anew(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_wandb(monkeypatch)
    folder = make_run("one", rounds=1)
    (folder / "tracked.json").write_text("{")
    send(folder, ("wandb",))
    assert kept(folder) == {"wandb": {"id": "abc123", "project": "promptfed", "final": 1}}
