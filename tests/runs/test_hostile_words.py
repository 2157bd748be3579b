"""Command lines and recipes that nobody means: each is taken or refused in a sentence, never with a traceback."""

import os
import random
import string
from pathlib import Path

import pytest
from typer.testing import CliRunner

from promptfed.cli import app
from promptfed.core.errors import PromptFedError
from promptfed.core.memory import ShortOfMemoryError
from promptfed.runs import config, memory
from support.loopback import promptfed

LONG = "9" * 400
HOSTILE = {
    "seed=" + LONG: "seed must be at most 9223372036854775807",
    "seed=0x" + "f" * 5000: "seed must be at most 9223372036854775807",
    "seed=" + "9" * 5000: "a number in it has too many digits",
    "seed=-" + LONG: "seed must be at most",
    "rounds=9223372036854775807": "rounds must be at most 2147483647",
    "method.batch=99999999999": "method.batch must be at most 2147483647, not 99999999999",
    "method.lr=" + LONG: "method.lr must be at most",
    "method.lr=1e308": "method.lr must be at most 3.40282e+38",
    "method.lr=" + "[" * 200 + "]" * 200: "nested too deeply",
    "method.lr=" + "[" * 5000 + "]" * 5000: "nested too deeply",
    "method.lr=" + "{a=" * 200 + "1" + "}" * 200: "nested too deeply",
    "a" + ".a" * 3000 + "=1": "has too many dots",
    "method.name=promptfed.core.method:Method": "is not a method itself",
    "method.name=promptfed.method:Method": "There is no method",
    "method.name=:Method": "There is no method",
    "method.name=.method:Method": "There is no method",
    "device=" + "c" * 5000: "Unknown device",
}


@pytest.mark.parametrize("word", HOSTILE, ids=[word[:24] for word in HOSTILE])
def test_a_hostile_word_is_refused(word: str) -> None:
    with pytest.raises(PromptFedError, match=HOSTILE[word].replace("+", r"\+")):
        config.load("fedavg", [word])


@pytest.mark.real_processes
def test_the_command_refuses_them_and_imports_a_method_only_if_it_is_named(tmp_path: Path) -> None:
    for word in ("seed=0x" + "f" * 5000, "method.lr=" + "[" * 5000, "method.name=:Method", "$(touch harmed)=`harmed`"):
        done = promptfed("run", "fedavg", word, "--out", "run", cwd=tmp_path)
        assert done.returncode == 2, done
        assert done.stderr.startswith("promptfed: ")
        assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "foreign.py").write_text("import pathlib\n\npathlib.Path('imported').touch()\n")
    done = promptfed("run", "fedavg", "method.name=foreign:Method", "--out", "run", cwd=tmp_path)
    assert done.returncode == 2, done
    assert (tmp_path / "imported").exists()  # who names a module asks for its code
    assert not (tmp_path / "run").exists()


def test_a_deep_recipe_file_is_refused(tmp_path: Path) -> None:
    for number, text in enumerate(("seed = " + "[" * 5000, "[" + "a." * 3000 + "a]\nb = 1\n", "seed = " + "9" * 5000)):
        path = tmp_path / f"{number}.toml"
        path.write_text(text)
        with pytest.raises(PromptFedError, match="is not valid TOML"):
            config.load(str(path))


@pytest.mark.parametrize(
    ("word", "key"),
    [
        (["backbone.name=cnn", "backbone.channels=[99999999]"], "backbone.channels"),
        (["backbone.name=cnn", "backbone.hidden=[8,999999999]"], "backbone.hidden"),
        (["backbone.name=vit-tiny", "backbone.width=99999992"], "backbone.width"),
    ],
)
def test_a_model_beyond_the_machines_memory_is_refused(word: list[str], key: str, tmp_path: Path) -> None:
    from promptfed.runs import execution

    (recipe,) = config.load("fedavg", word)
    sentence = rf"There is not enough memory for this: it needs at least .* GB, .*; lower {key}\.$"
    with pytest.raises(PromptFedError, match=sentence):
        execution.start(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_every_way_of_running_out_of_memory_is_known() -> None:
    (recipe,) = config.load("fedavg")
    kind = type("OutOfMemoryError", (RuntimeError,), {})
    said = (
        "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
    )
    for error in (MemoryError(), RuntimeError(said), kind("CUDA out of memory. Tried to allocate 2 GiB")):
        with pytest.raises(PromptFedError, match=r"lower fleet\.width, or else method\.batch"), memory.enough(recipe):
            raise error
    with pytest.raises(RuntimeError, match="a bug"), memory.enough(recipe):
        raise RuntimeError("a bug")


def test_who_shares_the_memory_is_told_first_to_run_less_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    full = type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory")
    error, none = memory.NoRoomError(full, ("fleet.width", "method.batch")), "There is not enough memory for this"
    assert str(error) == f"{none}; lower fleet.width, or else method.batch."
    shared = f"{none}: 6 workers share it; lower --workers, or else fleet.width or method.batch."
    assert error.among(6) == shared
    monkeypatch.setattr(memory, "held_by_others", lambda: (93.14e9, 150.75e9))
    held = "other processes hold 93.1 of the GPU's 150.8 GB"
    assert str(error) == f"{none}: {held}; run fewer at a time, or lower fleet.width, or else method.batch."
    assert error.among(6) == shared  # the others are the workers
    assert str(memory.NoRoomError(MemoryError(), ("clients",))) == f"{none}; lower clients."  # not the GPU's
    beyond = ShortOfMemoryError(40e9, 25.3e9, ("backbone.channels",))  # alone it would not fit either
    alone = memory.NoRoomError(beyond, beyond.keys)
    assert alone.among(6) == str(alone)
    assert str(alone).endswith("it needs at least 40.0 GB, and there are 25.3 GB; lower backbone.channels.")


# -- many words, by chance ------------------------------------------------------------------------------------------

KEYS = [
    *("seed", "rounds", "clients", "per_round", "sampling", "newcomers", "join_rounds", "device", "checkpoint_seconds"),
    *("method.name", "method.lr", "method.batch", "method.epochs", "method.size", "method.preset", "method.prompt"),
    *("data.name", "data.limit", "partition.name", "partition.alpha", "partition.classes_per_client", "prompt.kind"),
    *("backbone.name", "backbone.channels", "backbone.width", "schedule.name", "schedule.warmup", "train.augment"),
    *("stop.patience", "fleet.name", "fleet.width", "fleet.memory_mb", "evaluate.every", "evaluate.split"),
    *("clock.mode", "clock.profile", "clock.buffer", "clock.damping"),
    *("evaluate.metric", "guards.robust", "guards.noise", "guards.clip", "guards.budget", "guards.trim"),
]
VALUES = [
    *(
        "0",
        "1",
        "-1",
        "3",
        "1e308",
        "1e-320",
        "inf",
        "-inf",
        "nan",
        "true",
        "false",
        LONG,
        "-" + LONG,
        "0xffffffffffff",
    ),
    *(
        "[]",
        "[1,2]",
        '["a"]',
        "[[1]]",
        "{}",
        "{a=1}",
        "[" * 50,
        "''",
        '""',
        '"\\u0000"',
        "é",
        "💥",
        " ",
        "=",
        ".",
    ),
    *(
        "pfedpt",
        "fedavg",
        "iid",
        "dirichlet",
        "fashion-shops",
        "cnn",
        "vit-tiny",
        "cosine",
        "mean",
        "krum",
        "val",
        "frame",
    ),
    *(
        "npz:x",
        "folder:.",
        "file:x",
        ":",
        "a:b",
        "os:path",
        "2026-01-01",
        "10:00:00",
        "1_000",
        "0b1",
        "1.5",
        "paper",
        "cpu",
    ),
]


def mutated(rng: random.Random) -> list[str]:
    """Return a few words of a command line, some of them spoiled."""
    words = [f"{rng.choice(KEYS)}={rng.choice(VALUES)}" for _ in range(rng.choice((1, 1, 1, 2, 3)))]
    if rng.random() < 0.4:
        number = rng.randrange(len(words))
        letters = list(words[number])
        for _ in range(rng.randint(1, 4)):
            place = rng.randrange(len(letters) + 1)
            letters[place : place + rng.randint(0, 2)] = rng.choice(string.printable)
        words[number] = "".join(letters)
    return words


def fuzz(seed: int, count: int, folder: Path) -> tuple[int, int]:
    """Load so many command lines and recipe files; return how many were taken and how many refused."""
    rng, taken = random.Random(seed), 0
    recipe = config.load("pfedpt")[0].to_toml()
    path = folder / "recipe.toml"
    for number in range(count):
        words, source = mutated(rng), rng.choice(["pfedpt", "fedavg", "fedrep", "pfedpg", "demo/pfedpt"])
        if number % 4 == 0:  # a recipe file with spoiled characters
            letters = list(recipe)
            for _ in range(rng.randint(1, 3)):
                letters[rng.randrange(len(letters))] = rng.choice(string.printable)
            path.write_text("".join(letters))
            words, source = [], str(path)
        try:
            taken += bool(config.load(source, words))
        except PromptFedError:
            continue
        except Exception as error:
            raise AssertionError(f"seed {seed}, line {number}: {source} {words}") from error
    return taken, count - taken


def test_spoiled_words_are_taken_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    taken, refused = fuzz(1, 2000, tmp_path)
    assert taken > 20
    assert refused > 500


@pytest.mark.slow
def test_spoiled_words_by_chance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")  # noqa: T201  (to try the same again)
    taken, refused = fuzz(seed, 20_000, tmp_path)
    assert min(taken, refused) > 200


OPTIONS = [
    "--out",
    "--resume",
    "--device",
    "--seed",
    "--format",
    "--only",
    "-h",
    "--",
    "-",
    "--track",
    "--workers",
    "--json",
    "--client",
    "--port",
    "--name",
]
COMMANDS = [
    *("compare", "report", "bundle", "predict", "forget", "track", "export", "quality", "audit", "generate", "figure"),
    *(
        "plan",
        "tune",
        "run",
        "reproduce",
        "check",
        "token",
        "token add",
        "token list",
        "serve",
        "list",
        "new",
        "new method",
    ),
    *(
        "data",
        "data add",
        "data inspect",
        "data status",
        "sites",
        "sites init",
        "sites join",
        "sites status",
        "sites run",
    ),
]
WORDS = ["nowhere", "", "🦆", "x=1", "seed=[1", "-1", "a/../b", "file:x", "9" * 30]


def test_spoiled_commands_have_a_right_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No command gets as far as training: none of the folders is there."""
    monkeypatch.chdir(tmp_path)
    rng, runner = random.Random(2), CliRunner()
    for number in range(400):
        given = (rng.choice([*OPTIONS, *WORDS]) for _ in range(rng.randint(0, 3)))
        words = [*rng.choice(COMMANDS).split(), *given]
        done = runner.invoke(app, words)
        known = done.exception is None or isinstance(done.exception, SystemExit | PromptFedError | OSError)
        assert known, (number, words, done.exception)
        assert done.exit_code in (0, 1, 2), (number, words)
