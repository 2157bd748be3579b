"""A run that was stopped, by Ctrl-C or by anything worse, goes on to the same bits as one that never stopped."""

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from promptfed.core.files import unsealed, unsealed_toml, write_sealed
from promptfed.core.tree import Tree
from promptfed.federation.loop import Loop
from promptfed.results.folder.record import Line, Record
from promptfed.runs import config, runner
from support.command import Done, environment, promptfed
from support.stopped_runs import Run, assert_same, bits, content, lines_in, same
from support.tiny_runs import tiny, write_images

ROUNDS = 8
METHODS: dict[str, tuple[str, ...]] = {
    "local": ("local", "per_round=2"),
    "pfedpt": ("pfedpt", "per_round=2", "method.prompt_epochs=1"),
    "clocked": ("pfedpt", "method.prompt_epochs=1", "clock.mode=fedbuff", "clock.profile=mobile", "clock.hours=24"),
    "spilling": ("pfedpt", "per_round=2", "method.prompt_epochs=1", "fleet.memory_mb=0.001"),
}


def words(images: Path, method: str, *more: str) -> list[str]:
    name, *rest = METHODS[method]
    return [name, *tiny(images, *rest, f"rounds={ROUNDS}", "checkpoint_seconds=0", *more)]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images") / "tiny.npz")


@pytest.fixture(scope="module")
def straight(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the folder of an uninterrupted run."""
    made: dict[str, Path] = {}

    def run(method: str) -> Path:
        if method not in made:
            folder = tmp_path_factory.mktemp("straight") / method
            assert Run(folder, *words(images, method), "--out", str(folder)).end() == 0
            made[method] = folder
        return made[method]

    return run


@pytest.fixture(scope="module")
def stopped(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run whose state is saved and whose summary is not yet written."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    runner.run("pfedpt", out=folder, overrides=tuple(tiny(images, "method.prompt_epochs=1", "per_round=2")))
    (folder / "summary.json").unlink()
    return folder


@pytest.fixture
def folder(stopped: Path, tmp_path: Path) -> Path:
    shutil.copytree(stopped, tmp_path / "run")
    return tmp_path / "run"


# -- killed -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_killed_again_and_again(method: str, images: Path, tmp_path: Path, straight: Callable[[str], Path]) -> None:
    moments, folder = random.Random(method), tmp_path / "run"
    first = signal.SIGKILL, 1, moments.randrange(8)
    code = Run(folder, *words(images, method), "--out", str(folder), stop=first).end()
    kills = 0
    while code == -signal.SIGKILL:
        kills += 1
        code = Run(folder, "--resume", str(folder), stop=(signal.SIGKILL, 1 + 3 * kills, moments.randrange(8))).end()
    assert code == 0
    assert kills >= 2
    assert_same(bits(folder), bits(straight(method)))
    done, expected = (json.loads((one / "summary.json").read_text()) for one in (folder, straight(method)))
    assert (done["accuracy"], done["traffic"]) == (expected["accuracy"], expected["traffic"])


@pytest.mark.parametrize("lines", [1, 3])
def test_killed_before_the_first_checkpoint(
    lines: int, images: Path, tmp_path: Path, straight: Callable[[str], Path]
) -> None:
    folder = tmp_path / "run"
    given = [*words(images, "pfedpt", "checkpoint_seconds=1000"), "--out", str(folder)]
    assert Run(folder, *given, stop=(signal.SIGKILL, lines, 0)).end() == -signal.SIGKILL
    assert not (folder / "checkpoint" / "state.json").exists()
    assert Run(folder, "--resume", str(folder)).end() == 0
    assert_same(bits(folder), bits(straight("pfedpt")))


@pytest.mark.slow
def test_a_real_process_killed_and_resumed(images: Path, tmp_path: Path) -> None:
    folder, command = tmp_path / "run", [sys.executable, "-m", "promptfed", "run"]
    many = words(images, "pfedpt", "rounds=300")  # so that it cannot end before it is killed
    first = subprocess.Popen([*command, *many, "--out", str(folder)], env=environment())
    lines = folder / "rounds.jsonl"
    while not lines.exists() or lines.read_bytes().count(b"\n") < 3:
        assert first.poll() is None
        time.sleep(0.002)
    first.kill()
    assert first.wait() == -signal.SIGKILL
    subprocess.run([*command, "--resume", str(folder)], env=environment(), check=True, stdout=subprocess.DEVNULL)
    assert Run(tmp_path / "straight", *many, "--out", str(tmp_path / "straight")).end() == 0
    assert_same(bits(folder), bits(tmp_path / "straight"))


# -- Ctrl-C -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0, 1000])
def test_ctrl_c_says_how_to_go_on(seconds: int, images: Path, tmp_path: Path, straight: Callable[[str], Path]) -> None:
    folder = tmp_path / "run"
    given = [*words(images, "pfedpt", f"checkpoint_seconds={seconds}"), "--out", str(folder)]
    run = Run(folder, *given, stop=(signal.SIGINT, 3, 2))
    assert run.end() == 130
    assert run.errors.read_text() == f"Stopped. Resume with: promptfed run --resume {folder}\n"
    state = json.loads((folder / "checkpoint" / "state.json").read_text())
    assert state["round"] == lines_in(folder)
    assert Run(folder, "--resume", str(folder)).end() == 0
    assert_same(bits(folder), bits(straight("pfedpt")))


# -- a checkpoint that is not what was saved ------------------------------------------------------------------------


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def write(text: str) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        path.write_text(text)

    return spoil


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(bytes(raw))


DAMAGE: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "server truncated": ("checkpoint/server-000003.safetensors", truncate, "is damaged"),
    "server flipped": ("checkpoint/server-000003.safetensors", flip, "is damaged"),
    "server missing": ("checkpoint/server-000003.safetensors", Path.unlink, "is missing"),
    "personal truncated": ("checkpoint/personal-000001.safetensors", truncate, "is damaged"),
    "personal flipped": ("checkpoint/personal-000001.safetensors", flip, "is damaged"),
    "personal missing": ("checkpoint/personal-000001.safetensors", Path.unlink, "is missing"),
    "state truncated": ("checkpoint/state.json", truncate, "is damaged or not a checkpoint"),
    "state empty": ("checkpoint/state.json", write(""), "is damaged or not a checkpoint"),
    "state a list": ("checkpoint/state.json", write("[]"), "is damaged or not a checkpoint"),
    "rounds missing": ("rounds.jsonl", Path.unlink, "holds 0 rounds, the checkpoint 3"),
    "rounds short": ("rounds.jsonl", truncate, "is damaged within its first 3 rounds"),
    "partition torn": ("partition.json", truncate, "is damaged or was edited"),
    "recipe missing": ("recipe.toml", Path.unlink, "recipe.toml is missing"),
    "recipe torn": ("recipe.toml", write("seed = "), "is not valid TOML"),
}


def resume(folder: Path, *more: str) -> Done:
    """Go on with a run, some keys of which may be changed."""
    source = [folder / "recipe.toml", *more] if more else []
    return promptfed("run", *source, "--resume", folder)


def refused(folder: Path, *more: str) -> str:
    """Resume a run that must be refused; return the sentence."""
    before = content(folder)
    done = resume(folder, *more)
    assert done.code == 2
    assert done.err.startswith("promptfed: ")
    assert done.err.count("\n") == 1
    assert content(folder) == before
    return done.err


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_refused_and_nothing_is_deleted(what: str, folder: Path) -> None:
    name, spoil, sentence = DAMAGE[what]
    spoil(folder / name)
    assert sentence in refused(folder)


@pytest.mark.parametrize("what", ["server truncated", "personal missing", "state truncated"])
def test_damage_is_refused_before_more_rounds_change_anything(what: str, folder: Path) -> None:
    name, spoil, sentence = DAMAGE[what]
    (folder / "summary.json").write_text("{}")
    spoil(folder / name)
    before = content(folder)
    done = resume(folder, "rounds=5")
    assert done.code == 2
    assert sentence in done.err
    assert content(folder) == before


@pytest.mark.parametrize("field", ["server", "personal", "round"])
def test_a_state_that_makes_no_sense_is_refused(field: str, folder: Path) -> None:
    path = folder / "checkpoint" / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: "nonsense"}))
    assert "is damaged or not a checkpoint" in refused(folder)


def test_another_format_is_refused(folder: Path) -> None:
    path = folder / "checkpoint" / "state.json"
    write_sealed(path, unsealed(path.read_text()) | {"format": 99})
    assert "has format 99" in refused(folder)


def test_a_foreign_recipe_is_refused(folder: Path) -> None:
    path = folder / "recipe.toml"
    path.write_text(unsealed_toml(path.read_text()).replace("lr = 0.005", "lr = 0.006"))
    assert "belongs to another recipe" in refused(folder)


def test_a_foreign_partition_is_refused(folder: Path, images: Path, tmp_path: Path) -> None:
    other = runner.run("local", out=tmp_path / "other", overrides=tuple(tiny(images, "rounds=1", "seed=5")))
    shutil.copy(other.folder / "partition.json", folder / "partition.json")
    assert "belongs to another partition" in refused(folder)


def test_a_foreign_checkpoint_is_refused(folder: Path, images: Path, tmp_path: Path) -> None:
    other = runner.run("pfedpt", out=tmp_path / "other", overrides=tuple(tiny(images, "rounds=1", "seed=5")))
    shutil.rmtree(folder / "checkpoint")
    shutil.copytree(other.folder / "checkpoint", folder / "checkpoint")
    assert "belongs to another recipe" in refused(folder)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "holds no run to resume" in refused(tmp_path / "empty")


# -- finished, longer, changed --------------------------------------------------------------------------------------


@pytest.fixture
def finished(folder: Path) -> Path:
    assert resume(folder).code == 0
    return folder


def test_a_finished_run_shows_its_table_and_changes_nothing(finished: Path) -> None:
    before = content(finished)
    done = resume(finished)
    more = f"promptfed run --resume {finished} rounds=N"
    assert (done.code, done.err) == (0, f"It was finished already. For more rounds: {more}\n")
    assert "mean" in done.out
    assert str(finished) in done.out
    assert content(finished) == before


def test_more_rounds_go_on(finished: Path, images: Path, tmp_path: Path) -> None:
    given = tiny(images, "method.prompt_epochs=1", "per_round=2", "rounds=5")
    longer = runner.run("pfedpt", out=tmp_path / "longer", overrides=tuple(given))
    assert resume(finished, "rounds=5").code == 0
    summary = json.loads((finished / "summary.json").read_text())
    assert (summary["rounds"], summary["accuracy"]) == (5, longer.summary["accuracy"])
    assert config.load(str(finished / "recipe.toml"))[0].rounds == 5
    assert same(bits(finished)[0], bits(longer.folder)[0])


def test_a_key_may_follow_the_folder_alone(finished: Path) -> None:
    assert promptfed("run", "--resume", finished, "rounds=4").code == 0
    assert json.loads((finished / "summary.json").read_text())["rounds"] == 4


def test_fewer_rounds_than_are_done_are_refused(finished: Path) -> None:
    assert "can have more rounds, not fewer" in refused(finished, "rounds=2")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("seed=1", "seed=0, not 1"),
        ("method.lr=0.2", "method.lr=0.005, not 0.2"),
        ("clients=5", "clients=4, not 5"),
        ("evaluate.every=2", "evaluate.every=1, not 2"),
        ("data.test_fraction=0.5", "data.test_fraction=0.2, not 0.5"),
        ("method.name=local", "method.name=pfedpt, not local"),
    ],
)
def test_another_key_is_named(change: str, sentence: str, folder: Path) -> None:
    assert f"was run with {sentence}" in refused(folder, change)


def test_a_key_of_the_same_value_is_no_change(folder: Path) -> None:
    assert resume(folder, "seed=0", "device=cpu").code == 0


def test_a_run_goes_on_with_another_interval_between_checkpoints(folder: Path) -> None:
    before = (folder / "rounds.jsonl").read_text()
    (folder / "summary.json").unlink(missing_ok=True)
    assert resume(folder, "checkpoint_seconds=7").code == 0
    assert "checkpoint_seconds = 7.0" in (folder / "recipe.toml").read_text()
    assert (folder / "rounds.jsonl").read_text() == before


@pytest.mark.parametrize("text", ["{", "[]", '{"accuracy": {}}', '{"accuracy": {"round": "last"}}'])
def test_a_damaged_summary_is_a_sentence(text: str, folder: Path) -> None:
    path = folder / "summary.json"
    whole = path.read_text() if path.exists() else None
    path.write_text(text)
    assert f"{path} is damaged; remove it and resume the run" in refused(folder)
    path.unlink()
    assert resume(folder).code == 0
    assert json.loads(path.read_text())["accuracy"] == json.loads(whole or path.read_text())["accuracy"]


def test_a_sweep_cannot_be_resumed(folder: Path) -> None:
    assert "a sweep of 2 runs" in refused(folder, "rounds=[4,5]")


# -- torn lines and leftovers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("tail", ['{"round": 4, "cli', "\n", "null", '{"round": 4}\n{"round": 5}\n'])
def test_lines_beyond_the_checkpoint_are_harmless(tail: str, folder: Path) -> None:
    path = folder / "rounds.jsonl"
    whole = path.read_text()
    path.write_text(whole + tail)
    assert resume(folder).code == 0
    assert path.read_text() == whole


def test_leftovers_of_an_interrupted_commit_are_removed(folder: Path) -> None:
    named = set(content(folder / "checkpoint"))
    for name in ("server-000004.safetensors", "personal-000009.safetensors", ".state.json.part"):
        (folder / "checkpoint" / name).write_bytes(b"half")
    assert resume(folder, "rounds=4").code == 0
    left = set(content(folder / "checkpoint"))
    state = json.loads((folder / "checkpoint" / "state.json").read_text())
    assert left == {"state.json", state["server"]["file"], *state["personal"]}
    assert named - left == {"server-000003.safetensors"} | (named - left - {"state.json"})
    bits(folder)


# -- errors in the middle -------------------------------------------------------------------------------------------


def test_a_round_that_could_not_be_recorded_did_not_happen(
    images: Path, tmp_path: Path, straight: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    append, folder = Record.append, tmp_path / "run"

    def fail(self: Record, line: Line) -> None:
        if line["round"] == 3:
            raise OSError(5, "Input/output error", "rounds.jsonl")
        append(self, line)

    with monkeypatch.context() as patch:
        patch.setattr(Record, "append", fail)
        done = promptfed("run", *words(images, "pfedpt", "checkpoint_seconds=1000"), "--out", folder)
    assert done.code == 2
    assert resume(folder).code == 0
    assert_same(bits(folder), bits(straight("pfedpt")))


def test_an_error_in_a_round_keeps_the_rounds_before(
    images: Path, tmp_path: Path, straight: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    go, folder = Loop.round, tmp_path / "run"

    def fail(self: Loop, t: int) -> tuple[Tree, Line]:
        server, line = go(self, t)
        if t == 4:
            raise OSError(5, "Input/output error")
        return server, line

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "round", fail)
        assert promptfed("run", *words(images, "spilling", "checkpoint_seconds=1000"), "--out", folder).code == 2
    assert json.loads((folder / "checkpoint" / "state.json").read_text())["round"] == 4
    assert resume(folder).code == 0
    assert_same(bits(folder), bits(straight("spilling")))
