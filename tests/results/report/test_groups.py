"""Which runs are one row of a table, how rows of one name are told apart, and which folders are meant."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from promptfed.core.errors import PromptFedError
from promptfed.federation import guard_options
from promptfed.results.report import RunFolder, compare, read_run, run_folders
from promptfed.results.report.groups import GUARDS_OFF
from support.reports import MakeRun, column


def test_the_same_seed_twice_is_not_a_second_seed(make_run: MakeRun) -> None:
    table = compare([read_run(make_run("a")), read_run(make_run("b"))])
    assert column(table, "method") == ["pfedpt [a]", "pfedpt [b]"]


def test_where_a_run_was_made_and_how_often_it_was_saved_makes_no_other_row(make_run: MakeRun) -> None:
    runs = []
    for seed, device in enumerate(("cuda", "cpu")):
        recipe = make_run(device, seed=seed) / "recipe.toml"
        recipe.write_text(f'device = "{device}"\ncheckpoint_seconds = {seed}\n{recipe.read_text()}')
        runs.append(read_run(recipe.parent))
    assert column(compare(runs), "method") == ["pfedpt (n=2)"]


def test_namesakes_are_told_apart_by_what_differs(make_run: MakeRun) -> None:
    runs = [read_run(make_run("a", lr=0.1)), read_run(make_run("b", lr=0.5)), read_run(make_run("c", alpha=9, lr=0.1))]
    table = compare(runs)
    assert column(table, "method") == ["pfedpt (lr=0.1)", "pfedpt (lr=0.5)", "pfedpt (lr=0.1)"]
    assert column(table, "partition") == ["dirichlet (alpha=0.3)", "dirichlet (alpha=0.3)", "dirichlet (alpha=9)"]


def test_guards_are_told_only_where_they_are_on(make_run: MakeRun) -> None:
    def guarded(name: str, **changes: Any) -> RunFolder:
        folder = make_run(name)
        if changes:
            table = "".join(f"{key} = {json.dumps(value)}\n" for key, value in guard_options.filled(changes).items())
            with (folder / "recipe.toml").open("a") as file:
                file.write(f"\n[guards]\n{table}")
        return read_run(folder)

    bare, median = guarded("a"), guarded("b", robust="median")
    little, much = (guarded(f"n{noise}", clip=1.0, noise=noise) for noise in (4.0, 8.0))
    assert column(compare([bare, median]), "method") == ["pfedpt", "pfedpt (guards.robust=median)"]
    assert column(compare([bare, little, much]), "method") == [
        "pfedpt",
        "pfedpt (guards.clip=1.0, guards.noise=4.0)",
        "pfedpt (guards.clip=1.0, guards.noise=8.0)",
    ]
    assert column(compare([little, much]), "method") == ["pfedpt (guards.noise=4.0)", "pfedpt (guards.noise=8.0)"]
    off = {f"guards.{key}": str(value) for key, value in asdict(guard_options.GuardOptions()).items()}
    assert GUARDS_OFF.items() <= off.items()


def test_how_a_run_learns_is_told_without_its_defaults(make_run: MakeRun) -> None:
    def learning(name: str, table: str) -> RunFolder:
        folder = make_run(name)
        with (folder / "recipe.toml").open("a") as file:
            file.write(table)
        return read_run(folder)

    stop, again = (f"[stop]\npatience = {rounds}\nmin_delta = 0.0\nmonitor = 'accuracy'\n" for rounds in (2, 5))
    weights = "[train]\naugment = 'none'\nclass_weights = 'balanced'\nbeta = 0.999\n"
    runs = [learning("a", ""), learning("b", stop), learning("c", again), learning("d", weights)]
    assert column(compare(runs), "method") == [
        "pfedpt",
        "pfedpt (stop.patience=2)",
        "pfedpt (stop.patience=5)",
        "pfedpt (train.class_weights=balanced)",
    ]


def test_runs_below_a_folder_are_meant_each_once(make_run: MakeRun, tmp_path: Path) -> None:
    one, first, second = make_run("one"), make_run("sweep/seed=0"), make_run("sweep/seed=1", seed=1)
    assert run_folders([one, tmp_path / "sweep", first]) == [one, first, second]
    assert run_folders([tmp_path]) == [one, first, second]
    assert run_folders([tmp_path / "none"]) == [tmp_path / "none"]  # for read_run to complain about


def test_a_run_in_its_first_round_does_not_keep_others_from_being_compared(
    make_run: MakeRun, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, stopped = make_run("a/one"), make_run("a/two")
    (stopped / "rounds.jsonl").write_text("")
    with caplog.at_level("WARNING", "promptfed"):
        assert run_folders([tmp_path / "a"]) == [one]
    assert f"{stopped} has no finished round yet and is left out" in caplog.text
    assert run_folders([stopped]) == [stopped]  # by name it is wanted, and refused
    (one / "rounds.jsonl").write_text("")
    assert run_folders([tmp_path / "a"]) == [one, stopped]


def test_a_folder_of_runs_names_the_run_inside(make_run: MakeRun, tmp_path: Path) -> None:
    inner = make_run("a")
    with pytest.raises(PromptFedError) as caught:
        read_run(tmp_path)
    assert f'did you mean "{inner}"?' in str(caught.value)
    with pytest.raises(PromptFedError, match="does not exist; give the folder of a run"):
        read_run(tmp_path / "none")


def test_nothing_to_compare_is_explained() -> None:
    with pytest.raises(PromptFedError, match="at least one run folder"):
        compare([])
