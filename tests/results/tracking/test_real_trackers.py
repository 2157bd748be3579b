"""The real wandb, Trackio and MLflow, without a network: what they have stored is what the run wrote, once."""

import json
import socket
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from promptfed.core.files import unsealed
from promptfed.results.folder.parts import parse_recipe
from promptfed.results.tracking.numbers import of_recipe, of_round, of_summary
from support.tiny_runs import tiny, write_images
from support.tracked import command, killed, stored, wandb_records

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
KINDS = ("wandb", "trackio", "mlflow")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Return the name of a tracker that is installed."""
    if find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed; make test-trackers installs it.")
    return str(request.param)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("St-Elsewhere") / "ward-seven.npz")


def assert_same(kind: str, folder: Path, home: Path, clocks: bool = True) -> None:
    """Compare what a tracker has with what the run wrote."""
    lines = [unsealed(line) for line in (folder / "rounds.jsonl").read_text("utf-8").splitlines()]
    recipe = of_recipe(parse_recipe(folder / "recipe.toml", (folder / "recipe.toml").read_text("utf-8")))
    found = stored(kind, folder, home)
    rounds = {line["round"]: of_round(line, own=True) for line in lines}
    if not clocks:
        for values in [*found.steps.values(), *rounds.values()]:
            assert values.pop("seconds") > 0
    assert found.steps == rounds
    assert found.end == of_summary(json.loads((folder / "summary.json").read_text("utf-8")))
    assert found.settings == ({key: str(value) for key, value in recipe.items()} if kind == "mlflow" else recipe)
    assert found.states[-1:] in ([], ["finished"])


def test_a_tracker_has_what_the_run_wrote_and_no_more(kind: str, images: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command("run", "pfedpt", *tiny(images), "--out", folder, "--track", kind, home=tmp_path / "home")
    assert_same(kind, folder, tmp_path / "home")
    places = {"wandb": folder / "wandb", "trackio": tmp_path / "home" / "trackio", "mlflow": tmp_path / "home"}
    for path in places[kind].rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        assert not any(word in content for word in (b"St-Elsewhere", b"ward-seven")), path


def test_a_killed_run_goes_on_in_its_tracked_run(kind: str, images: Path, tmp_path: Path) -> None:
    folder, home = tmp_path / "run", tmp_path / "home"
    words = [*tiny(images, "checkpoint_seconds=0", "rounds=60"), "--out", folder, "--track", kind]
    killed(folder, "run", "pfedpt", *words, rounds=5, home=home)
    assert not (folder / "summary.json").exists()
    command("run", "--resume", folder, "--track", kind, home=home)
    assert_same(kind, folder, home, clocks=False)  # a round that was run again took another time


def test_a_finished_run_is_sent_once(kind: str, images: Path, tmp_path: Path) -> None:
    folder, home = tmp_path / "run", tmp_path / "home"
    command("run", "pfedpt", *tiny(images), "--out", folder, home=home)
    for _ in range(2):
        assert "3 rounds are in" in command("track", folder, "--to", kind, home=home)
    assert_same(kind, folder, home)


def test_wandb_is_not_told_on_which_machine_a_run_is(images: Path, tmp_path: Path) -> None:
    pytest.importorskip("wandb.proto", reason="make test-trackers installs it.")
    folder = tmp_path / "run"
    command("run", "pfedpt", *tiny(images), "--out", folder, "--track", "wandb", home=tmp_path / "home")
    (path,) = (folder / "wandb").glob("offline-run-*/*.wandb")
    records = list(wandb_records(path))
    assert [record.run.host for record in records if record.HasField("run")] == [""]
    kept: set[str] = {str(record.WhichOneof("record_type")) for record in records}
    assert kept <= {"header", "run", "telemetry", "history", "summary", "exit", "footer", "final"}
    assert socket.gethostname() not in records_text(records)


def records_text(records: list[Any]) -> str:
    """Return what a run's record says of itself."""
    return "\n".join(str(record.run) for record in records if record.HasField("run"))
