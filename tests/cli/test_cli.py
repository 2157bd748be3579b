"""The command line: every command, what it prints, and for whom."""

import csv
import io
import json
import pickle
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from promptfed.cli import arguments
from promptfed.core.version import __version__
from promptfed.runs import config, execution, registry, runner
from promptfed.runs.checks import PROMISES
from support.command import Done, environment, promptfed
from support.few_photographs import few_photographs
from support.tiny_runs import tiny, write_images

COMMANDS: tuple[list[str], ...] = (
    [],
    ["run"],
    ["reproduce"],
    ["demo"],
    ["compare"],
    ["report"],
    ["bundle"],
    ["forget"],
    ["generate"],
    ["export"],
    ["predict"],
    ["quality"],
    ["audit"],
    ["figure"],
    ["list"],
    ["check"],
    ["doctor"],
)
DATA_COMMANDS = (["data"], ["data", "list"], ["data", "get"], ["data", "add"])
KINDS = ("methods", "datasets", "backbones", "partitions", "recipes", "figures")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images") / "tiny.npz")


@pytest.fixture(scope="module")
def folders(images: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    parent = tmp_path_factory.mktemp("runs")
    made = [parent / "fedavg-0", parent / "fedavg-1", parent / "local"]
    for out, words in zip(made, (["fedavg"], ["fedavg", "seed=1"], ["local"]), strict=True):
        assert promptfed("run", words[0], *tiny(images, "rounds=2", *words[1:]), "--out", out).code == 0
    return made


@pytest.mark.parametrize("words", [*COMMANDS, *DATA_COMMANDS], ids=lambda words: " ".join(words) or "promptfed")
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help(words: list[str], flag: str) -> None:
    done = promptfed(*words, flag)
    assert (done.code, done.err) == (0, "")
    assert "Usage" in done.out


def test_version() -> None:
    done = promptfed("--version")
    assert (done.code, done.out, done.err) == (0, f"promptfed {__version__}\n", "")


@pytest.mark.parametrize("kind", KINDS)
def test_list_is_json(kind: str) -> None:
    done = promptfed("list", kind, "--json")
    rows = json.loads(done.out)
    assert (done.code, done.err) == (0, "")
    assert len(rows) >= 3
    assert all(set(row) == {"name", "about", "keys"} and row["about"] for row in rows)


@pytest.mark.parametrize("kind", KINDS)
def test_list_is_a_table(kind: str) -> None:
    done = promptfed("list", kind)
    assert done.code == 0
    for row in json.loads(promptfed("list", kind, "--json").out):
        assert row["name"] in done.out


def test_list_knows_six_kinds_only() -> None:
    assert promptfed("list", "methodz").code == 2


def test_doctor_and_data_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMPTFED_HOME", str(tmp_path))
    doctor, listed = promptfed("doctor"), promptfed("data", "list")
    assert (doctor.code, listed.code) == (0, 0)
    for word in ("promptfed", "torch", "CPU", "GPU", "free disk", "fashion-shops"):
        assert word in doctor.out
    for name in ("cifar10", "cifar100", "fashion-mnist", "fashion-shops", "tiny-imagenet"):
        assert name in listed.out


def test_data_add_and_get(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMPTFED_HOME", str(tmp_path / "home"))
    archive = tmp_path / "mine.tar.gz"
    with tarfile.open(archive, "w:gz") as opened:
        parts: dict[str, object] = {"batches.meta": {"label_names": [f"c{n}" for n in range(10)]}}
        for name in [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]:
            parts[name] = {"data": np.zeros((2, 3072), np.uint8), "labels": [0, 1]}
        for name, value in parts.items():
            content = pickle.dumps(value, protocol=2)
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(content)
            opened.addfile(member, io.BytesIO(content))
    refused = promptfed("data", "add", "cifar10", archive)
    assert refused.code == 2
    assert "not the official file" in refused.err
    added = promptfed("data", "add", "cifar10", archive, "--no-verify")
    kept = tmp_path / "home" / "data" / "cifar10" / "cifar-10-python.tar.gz"
    assert (added.code, added.out) == (0, f"cifar10 is at {kept}\n")
    assert kept.read_bytes() == archive.read_bytes()
    assert promptfed("data", "get", "cifar10").out == "cifar10: 12 images, 10 classes.\n"


def test_run_prints_its_folder_and_stays_quiet(images: Path, tmp_path: Path) -> None:
    done = promptfed("run", "local", *tiny(images, "rounds=1"), "--out", tmp_path / "run")
    assert (done.code, done.err) == (0, "")
    assert f"Run folder {tmp_path / 'run'}, report {tmp_path / 'run' / 'report.html'}" in done.out.splitlines()
    assert "\x1b" not in done.out
    assert "\r" not in done.out


def test_run_explains_its_table_once(images: Path, tmp_path: Path) -> None:
    done = promptfed("run", "local", *tiny(images, "rounds=1"), "--out", tmp_path / "run")
    assert done.out.count("mean: accuracy in percent") == 1


def test_run_a_sweep(images: Path, tmp_path: Path) -> None:
    done = promptfed("run", "local", *tiny(images, "rounds=1", "seed=[3,4]"), "--out", tmp_path / "sweep")
    assert done.code == 0
    assert sorted(path.name for path in (tmp_path / "sweep").iterdir()) == ["seed=3", "seed=4"]


def test_a_sweep_goes_on_where_it_stopped(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["run", "local", *tiny(images, "rounds=1", "seed=[3,4,5]"), "--out", str(tmp_path / "a sweep")]
    start, started = execution.start, list[str]()

    def interrupted(recipe: config.Recipe, folder: Path, **more: Any) -> runner.Result:
        started.append(folder.name)
        if started == ["seed=3", "seed=4"]:
            raise KeyboardInterrupt
        return start(recipe, folder, **more)

    monkeypatch.setattr(execution, "start", interrupted)
    done = promptfed(*words)
    assert done.code == 130
    assert "Stopped, 1 of 3 runs finished. Resume with: promptfed run local" in done.err
    assert shlex.split(done.err.partition("promptfed ")[2]) == words
    first = (tmp_path / "a sweep" / "seed=3" / "summary.json").stat().st_mtime_ns
    (tmp_path / "a sweep" / "seed=3" / "report.html").unlink()
    done = promptfed(*words)
    assert done.code == 0
    assert started == ["seed=3", "seed=4", "seed=4", "seed=5"]
    assert (tmp_path / "a sweep" / "seed=3" / "summary.json").stat().st_mtime_ns == first
    assert "local (n=3)" in promptfed("compare", tmp_path / "a sweep").out
    found = promptfed("run", "--resume", tmp_path / "a sweep")
    assert found.code == 2
    assert f"holds several runs: resume one, such as {tmp_path / 'a sweep' / 'seed=3'}, or" in found.err


def test_a_run_that_fails_does_not_stop_a_sweep(images: Path, tmp_path: Path) -> None:
    words = tiny(images, "rounds=1", "method.lr=[1e30,0.01]")
    done = promptfed("run", "fedavg", *words, "--out", tmp_path / "sweep")
    assert done.code == 1
    assert "fedavg" in done.out
    assert f"{tmp_path / 'sweep' / 'method.lr=1e+30'} failed: Training diverged in round 1" in done.err
    done = promptfed("run", "fedavg", *tiny(images, "method.lr=[1e30,1e31]"), "--out", tmp_path / "both")
    assert done.code == 2
    assert done.err.startswith("promptfed: Training diverged")


def test_resuming_a_finished_run_says_that_it_is(folders: list[Path]) -> None:
    done = promptfed("run", "--resume", folders[0])
    assert done.code == 0
    assert done.err == f"It was finished already. For more rounds: promptfed run --resume {folders[0]} rounds=N\n"


def test_resuming_with_a_method_says_that_none_is_needed(folders: list[Path]) -> None:
    done = promptfed("run", "fedavg", "--resume", folders[0], "method.lr=0.5")
    assert done.code == 2
    assert f"promptfed run --resume {folders[0]} without a recipe uses the run's own." in done.err


def test_device_is_short_for_a_key(images: Path, tmp_path: Path) -> None:
    done = promptfed("run", "local", *tiny(images, "rounds=1"), "--out", tmp_path / "run", "--device", "cpu")
    assert done.code == 0
    assert 'device = "cpu"' in (tmp_path / "run" / "recipe.toml").read_text()


def test_compare_in_every_format(folders: list[Path]) -> None:
    shown = {form: promptfed("compare", *folders, "--format", form) for form in ("markdown", "latex", "csv")}
    assert all((done.code, done.err) == (0, "") for done in shown.values())
    rows = list(csv.reader(io.StringIO(shown["csv"].out)))
    assert {row[0] for row in rows[1:] if row} >= {"fedavg", "local"}
    assert any(line.startswith("|") and "fedavg" in line for line in shown["markdown"].out.splitlines())
    assert r"\begin{tabular}" in shown["latex"].out
    assert "±" in shown["markdown"].out  # two seeds of one recipe become one row
    assert promptfed("compare", *folders) == shown["markdown"], "nobody watches"


def test_at_a_terminal_compare_draws_a_table_that_fits(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    for width in (200, 80, 60, 40):
        screen = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
        monkeypatch.setattr(arguments, "console", screen)
        assert promptfed("compare", *folders) == Done(0, "", "")
        assert isinstance(screen.file, io.StringIO)
        drawn = screen.file.getvalue()
        assert "┃ method" in drawn
        assert "…" not in drawn
        assert max(map(len, drawn.splitlines())) <= width


def test_report_of_one_and_of_several(folders: list[Path], tmp_path: Path) -> None:
    one = promptfed("report", folders[0])
    assert one.out.strip() == str(folders[0] / "report.html")
    several = promptfed("report", *folders, "--out", tmp_path / "all.html")
    assert (several.code, several.out.strip()) == (0, str(tmp_path / "all.html"))
    page = (tmp_path / "all.html").read_text()
    assert "fedavg" in page
    assert "local" in page


def test_check_names_every_promise() -> None:
    done = promptfed("check", "local")
    assert done.code == 0
    assert done.out.splitlines()[:-1] == [f"kept    {promise}" for promise in PROMISES.values()]
    assert done.out.splitlines()[-1] == f"local keeps all {len(PROMISES)} promises."


def test_demo_runs_three_methods_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load, small = config.load, few_photographs(tmp_path / "few.npz")

    def smaller(source: str, words: Sequence[str] = (), *, embedded: bool = True) -> list[config.Recipe]:
        return load(source, [*words, *(small if source in registry.recipes() else [])])

    monkeypatch.setattr(config, "load", smaller)
    first = promptfed("demo", "--out", tmp_path / "demo", "--seed", 3)
    assert first.code == 0
    names = ["alone-seed3", "fedavg-seed3", "prompts-seed3"]
    assert sorted(path.name for path in (tmp_path / "demo").iterdir() if path.is_dir()) == names
    assert len(list((tmp_path / "demo").glob("report*.html"))) == 1
    before = {name: (tmp_path / "demo" / name / "summary.json").stat().st_mtime_ns for name in names}
    assert promptfed("demo", "--out", tmp_path / "demo", "--seed", 3).code == 0
    assert before == {name: (tmp_path / "demo" / name / "summary.json").stat().st_mtime_ns for name in names}


def test_ctrl_c_in_the_demo_exits_with_130(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(seed: int, out: Path) -> list[Path]:
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "demo", stop)
    assert promptfed("demo", "--out", tmp_path / "demo").code == 130


def test_ctrl_c_names_the_folder_as_it_is(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*words: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(execution, "start", stop)
    folder = tmp_path / "run[a]"
    done = promptfed("run", "local", *tiny(images), "--out", folder)
    assert done.code == 130
    assert f"promptfed run --resume {folder}" in done.err


def test_as_a_module_nothing_is_drawn_where_no_person_watches(images: Path, tmp_path: Path) -> None:
    words = ["run", "local", *tiny(images, "rounds=1"), "--out", str(tmp_path / "run")]
    command = [sys.executable, "-m", "promptfed", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert str(tmp_path / "run") in done.stdout


def test_a_path_with_an_equals_sign_is_a_path(tmp_path: Path) -> None:
    done = promptfed("run", str(tmp_path / "seed=0" / "recipe.toml"))
    assert done.code == 2
    assert "cannot be read" in done.err


@pytest.mark.parametrize(("set_before", "found"), [({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")])
def test_waiting_threads_give_way_unless_told_otherwise(set_before: dict[str, str], found: str) -> None:
    code = (
        "import os, sys; sys.argv = ['promptfed', '--help']\n"
        "from promptfed.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules)"
    )
    where = {key: value for key, value in environment().items() if key != "OMP_WAIT_POLICY"} | set_before
    done = subprocess.run([sys.executable, "-c", code], env=where, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == f"{found} False"
