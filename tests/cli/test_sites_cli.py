"""`promptfed sites` says in one sentence what is wrong."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from promptfed.cli.sites import _accuracy, app, describe_round
from promptfed.core.errors import PromptFedError
from promptfed.results.folder.names import WINDOW
from promptfed.sites.pid_file import watching
from promptfed.sites.provisioning import provision

LINE = {
    "round": 3,
    "clients": [0, 2],
    "received": {"mean": 0.5},
    "sites": {
        "silent": {"south": "it is not connected"},
        "refused": {"west": ["it is not a message"]},
        "late": {"south": 1},
    },
    "traffic": {"down_bytes": 1500, "up_bytes": 1500},
    "seconds": 0.25,
}


def fail(*words: str) -> str:
    """Run a command that must fail; return its sentence."""
    result = CliRunner().invoke(app, list(words))
    assert isinstance(result.exception, PromptFedError)
    return str(result.exception)


@pytest.mark.parametrize("command", ["start", "status", "stop", "run"])
def test_without_a_federation_the_way_to_one_is_named(command: str, tmp_path: Path) -> None:
    sentence = fail(command, "--federation", str(tmp_path))
    assert sentence == f"{tmp_path} is not a federation; make one with: promptfed sites init fed.toml --out {tmp_path}"


def test_a_run_needs_a_recipe_and_leaves_the_clients_to_the_federation(tmp_path: Path) -> None:
    (tmp_path / "fed.toml").write_text('sites = ["a", "b"]')
    place = ["--federation", str(tmp_path)]
    assert fail("run", *place).startswith("Nothing to run: name a recipe or a method")
    assert fail("run", "fedavg", "clients=5", *place) == "clients=5 cannot be set: the clients are the 2 sites."
    assert fail("run", "fedavgg", *place).endswith('did you mean "fedavg"?')
    assert fail("run", *place, "--resume", str(tmp_path)).endswith("is not a run over sites.")


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a kit of the site "a"."""
    folder = tmp_path_factory.mktemp("kits")
    (folder / "fed.toml").write_text('sites = ["a", "b"]')
    provision(folder / "fed.toml", folder / "federation")
    return folder / "federation" / "kits" / "a.zip"


def test_a_site_needs_a_kit_and_data(kit: Path, tmp_path: Path) -> None:
    assert "is not a site's kit" in fail("join", str(tmp_path), "--data", "nothing.npz")
    assert "nothing.npz" in fail("join", str(kit), "--data", "nothing.npz")
    assert fail("join", str(kit), "--data", "fashion-shop").endswith('did you mean "fashion-shops"?')
    assert not kit.with_suffix("").exists()


def test_terms_are_read_before_a_site_joins(kit: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[guards]\nnoize = 1")
    said = fail("join", str(kit), "--data", "fashion-shops", "--terms", str(tmp_path / "mine.toml"))
    assert said.endswith('did you mean "noise"?')
    assert not kit.with_suffix("").exists()


def test_status_without_a_server(tmp_path: Path) -> None:
    (tmp_path / "fed.toml").write_text('sites = ["a", "b"]')
    result = CliRunner().invoke(app, ["status", "--federation", str(tmp_path)])
    assert result.stdout == "server: down\na: unknown\nb: unknown\n"
    assert CliRunner().invoke(app, ["stop", "--federation", str(tmp_path)]).stdout == "The server is not running.\n"


def test_status_says_why_a_run_has_stopped(tmp_path: Path) -> None:
    (tmp_path / "fed.toml").write_text('sites = ["a", "b"]')
    for name in ("failed.json", "failed-told.json"):
        run = tmp_path / "runs" / name
        run.mkdir(parents=True)
        (run / "recipe.toml").touch()
        (run / name).write_text('{"reason": "The run cannot begin."}')
    (tmp_path / "runs" / "killed").mkdir()
    (tmp_path / "runs" / "killed" / "recipe.toml").touch()
    lines = CliRunner().invoke(app, ["status", "--federation", str(tmp_path)]).stdout.replace("\n", " ")
    assert lines.count("0 rounds, stopped: The run cannot begin.") == 2
    assert lines.rstrip().endswith("killed: 0 rounds, stopped")


def test_status_tells_a_run_that_will_go_on_from_one_that_has_stopped(tmp_path: Path) -> None:
    (tmp_path / "fed.toml").write_text('sites = ["a", "b"]')
    run = tmp_path / "runs" / "one"
    run.mkdir(parents=True)
    (run / "recipe.toml").touch()

    def last() -> str:
        return CliRunner().invoke(app, ["status", "--federation", str(tmp_path)]).stdout.replace("\n", " ").rstrip()

    with watching(run / WINDOW), watching(run / WINDOW):  # two windows may look at one run
        assert last().endswith("0 rounds, waiting for its next job")
    assert last().endswith("0 rounds, stopped")


def test_accuracy_is_told_with_what_was_received() -> None:
    assert _accuracy({"mean": 0.5, "before": {"mean": 0.5}}) == "Accuracy 50.0 %"
    assert _accuracy({"mean": None}) == "Accuracy unknown"
    told = _accuracy({"mean": 0.7195, "before": {"mean": 0.6935}})
    assert told == "Accuracy 72.0 % after the method's own adaptation, 69.3 % as received"


def test_a_round_is_told_in_one_line() -> None:
    assert describe_round(LINE, ("north", "south", "west")) == (
        "round 3 · accuracy 50.0 % · 2 of 3 sites · south: it is not connected · west refused: it is not a message · "
        "south: 1 late · 3 kB · 0.2 s"
    )
