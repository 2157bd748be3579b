"""Tuning: which runs a budget buys, what they are scored on, and that nothing is run twice."""

import json
from pathlib import Path

import pytest

from promptfed.core.errors import PromptFedError
from promptfed.runs import config, resuming
from promptfed.runs.execution import Result
from promptfed.runs.tuning import Stage, Trial, Tuning, make_stages, to_table, tune
from support.command import promptfed
from support.tiny_runs import tiny, write_images

SEARCH = ("method.lr=log(1e-3,1)", "method.batch=[8,16]")


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    return tuple(tiny(write_images(tmp_path_factory.mktemp("images") / "tiny.npz"), "rounds=1"))


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Return the runs that are started or resumed from now on: their folders and rounds."""
    seen, real = [], resuming.start_or_resume

    def noted(recipe: config.Recipe, folder: Path) -> Result:
        seen.append((folder.name, recipe.rounds))
        return real(recipe, folder)

    monkeypatch.setattr(resuming, "start_or_resume", noted)
    return seen


def test_trials_are_scored_on_validation_images(words: tuple[str, ...], tmp_path: Path) -> None:
    found = tune(Tuning("fedavg", (*words, *SEARCH), tmp_path / "out", budget=3))
    assert sorted(trial.number for trial in found) == [1, 2, 3]
    assert [trial.rank for trial in found] == sorted((trial.rank for trial in found), reverse=True)
    for trial in found:
        folder = tmp_path / "out" / f"trial-{trial.number:03}"
        recipe, summary = (
            config.load_one(str(folder / "recipe.toml")),
            json.loads((folder / "summary.json").read_text()),
        )
        assert (recipe.evaluate["split"], recipe.method["lr"]) == ("val", trial.setting["method.lr"])
        assert trial.scores == {1: summary["accuracy"]["mean"]}
    best = config.load_one(str(tmp_path / "out" / "best.toml"))
    setting = {key: best.method[key.removeprefix("method.")] for key in found[0].setting}
    assert (setting, best.evaluate["split"], best.evaluate["after"]) == (found[0].setting, "test", True)


def test_trials_are_scored_by_the_headline(words: tuple[str, ...], tmp_path: Path) -> None:
    found = tune(Tuning("fedavg", (*words, *SEARCH, "evaluate.metric=macro_f1"), tmp_path / "out", budget=3))
    for trial in found:
        summary = json.loads((tmp_path / "out" / f"trial-{trial.number:03}" / "summary.json").read_text())
        assert trial.scores == {1: summary["metrics"]["macro_f1"]["mean"]}
        assert trial.scores != {1: summary["accuracy"]["mean"]}
    assert [trial.rank for trial in found] == sorted((trial.rank for trial in found), reverse=True)
    assert to_table(found).columns[-1].legend == "mean macro-F1 over clients on validation images, %"


def test_calibration_alone_chooses_nothing(words: tuple[str, ...], tmp_path: Path) -> None:
    (found,) = tune(Tuning("fedavg", (*words, "method.lr=[0.1]", "evaluate.metric=ece"), tmp_path / "out"))
    summary = json.loads((tmp_path / "out" / "trial-001" / "summary.json").read_text())
    assert found.scores == {1: summary["accuracy"]["mean"]}


def test_nothing_is_run_twice(words: tuple[str, ...], tmp_path: Path, ran: list[tuple[str, int]]) -> None:
    tuning = Tuning("fedavg", (*words, *SEARCH), tmp_path / "out", budget=2)
    first = tune(tuning)
    assert ran == [("trial-001", 1), ("trial-002", 1)]
    assert tune(tuning) == first
    assert len(ran) == 2
    larger = tune(Tuning("fedavg", (*words, *SEARCH), tmp_path / "out", budget=3))
    assert ran[2:] == [("trial-003", 1)]
    assert {one.number: one for one in first}.items() <= {one.number: one for one in larger}.items()


def test_a_stopped_tuning_goes_on(
    words: tuple[str, ...], tmp_path: Path, ran: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    tuning, real = Tuning("fedavg", (*words, *SEARCH), tmp_path / "out", budget=2), resuming.start_or_resume

    def interrupted(recipe: config.Recipe, folder: Path) -> object:
        if folder.name == "trial-002":
            raise KeyboardInterrupt
        return real(recipe, folder)

    with monkeypatch.context() as patch:
        patch.setattr(resuming, "start_or_resume", interrupted)
        with pytest.raises(KeyboardInterrupt):
            tune(tuning)
    straight = tune(Tuning("fedavg", tuning.words, tmp_path / "straight", budget=2))
    ran.clear()
    assert tune(tuning) == straight
    assert ran == [("trial-002", 1)]


def test_a_trial_that_fails_is_told_and_not_repeated(
    words: tuple[str, ...], tmp_path: Path, ran: list[tuple[str, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    tuning = Tuning("fedavg", (*words, "rounds=3", "method.lr=[0.1,1e30]"), tmp_path / "out")
    found = tune(tuning)
    assert [trial.setting["method.lr"] for trial in found] == [0.1, 1e30]
    assert "diverged" in found[1].problem
    assert f"Trial {found[1].number} (method.lr=1e+30) failed: Training diverged" in capsys.readouterr().err
    assert tune(tuning) == found
    assert len(ran) == 2


# -- successive halving ---------------------------------------------------------------------------------------------


def test_stages() -> None:
    assert make_stages(27, 27, halving=False) == [Stage(27, 1)]
    assert make_stages(27, 27, halving=True) == [Stage(27, 27), Stage(9, 9), Stage(3, 3), Stage(1, 1)]
    assert make_stages(10, 5, halving=True) == [Stage(10, 3), Stage(3, 1)]
    assert make_stages(2, 100, halving=True) == [Stage(2, 1)]


def test_halving_trains_the_best_third_for_longer(
    words: tuple[str, ...], tmp_path: Path, ran: list[tuple[str, int]]
) -> None:
    tuning = Tuning("fedavg", (*words, "rounds=3", *SEARCH), tmp_path / "out", budget=3, halving=True)
    found = tune(tuning)
    best = max(found, key=lambda trial: (trial.scores[1], -trial.number))
    assert ran == [("trial-001", 1), ("trial-002", 1), ("trial-003", 1), (f"trial-{best.number:03}", 3)]
    assert found[0] == best
    assert sorted(best.scores) == [1, 3]
    straight = resuming.start_or_resume(
        config.load_one(str(tmp_path / "out" / f"trial-{best.number:03}" / "recipe.toml")), tmp_path / "straight"
    )
    assert straight.summary["accuracy"]["mean"] == best.scores[3]
    assert tune(tuning) == found
    assert len(ran) == 5  # the four, and the straight one


@pytest.mark.parametrize(
    ("more", "halving", "sentence"),
    [
        ((), False, "Nothing to tune: give a key several values"),
        (("method.lr=[1,2]", "evaluate.split=test"), False, "Tuning looks at validation images alone"),
        (("seed=[0,1]",), False, "seed cannot be tuned: a lucky one says nothing"),
        (("evaluate.metric=[auroc,accuracy]",), False, "evaluate.metric cannot be tuned: it decides which trial"),
        (("rounds=[1,2]",), True, "rounds cannot be tuned: halving decides how many there are"),
        (("method.l=[1,2]",), False, 'Unknown key "method.l"'),
        (("method.lr=[0.1,-1]",), False, "method.lr must be above 0"),
        (("method.lr=[0.1,1]", "newcomers=1"), True, "newcomers join after the last"),
        (("method.lr=[0.1,1]", "schedule.name=cosine"), True, "the rates of schedule.name=cosine"),
        (
            ("method.lr=[1,2,3]", "rounds=9", "schedule.warmup=3"),
            True,
            "first trains for rounds=3, all of them schedule.warmup=3",
        ),
    ],
)
def test_what_cannot_be_tuned_is_refused_before_anything_is_written(
    more: tuple[str, ...], halving: bool, sentence: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    fixed = tuple(word for word in words if not word.startswith("rounds=")) if "rounds" in "".join(more) else words
    with pytest.raises(PromptFedError) as refused:
        tune(Tuning("fedavg", (*fixed, *more), tmp_path / "out", halving=halving))
    assert sentence in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_a_folder_with_something_else_is_refused(words: tuple[str, ...], tmp_path: Path) -> None:
    tune(Tuning("fedavg", (*words, "method.lr=[0.1]"), tmp_path / "out"))
    with pytest.raises(PromptFedError, match="holds a tuning with other words; choose another --out"):
        tune(Tuning("fedavg", (*words, "method.lr=[0.2]"), tmp_path / "out"))
    with pytest.raises(PromptFedError, match="holds something else; choose another --out"):
        tune(Tuning("fedavg", (*words, "method.lr=[0.1]"), tmp_path / "out" / "trial-001"))


# -- what a person sees ---------------------------------------------------------------------------------------------


def test_the_table() -> None:
    trials = [Trial(2, {"a": 0.5}, {1: 0.25, 3: 0.5}), Trial(1, {"a": 1.0}, {1: 0.75}), Trial(3, {"a": 9}, {}, "no")]
    rows = [[cell.text for cell in row] for row in to_table(trials).rows]
    assert rows == [["2", "0.5", "3", "50.0"], ["1", "1.0", "1", "75.0"], ["3", "9", "", "failed"]]
    assert [cell.best for row in to_table(trials).rows for cell in row[-1:]] == [True, False, False]


def test_the_command(words: tuple[str, ...], tmp_path: Path) -> None:
    done = promptfed("tune", "fedavg", *words, "method.lr=[0.1,0.01]", "--out", str(tmp_path / "out"))
    assert (done.code, "| method.lr |" in done.out) == (0, True)
    assert f"The best setting on test images: promptfed run {tmp_path / 'out' / 'best.toml'}" in done.out
    wrong = promptfed("tune", "fedavg", *words, "--out", str(tmp_path / "other"))
    assert (wrong.code, "Nothing to tune" in wrong.err) == (2, True)
