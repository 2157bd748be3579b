"""Early stopping: rounds by hand, runs that end by it, and what they leave untouched."""

import json
import shutil
from pathlib import Path

import pytest

from promptfed.core.errors import PromptFedError
from promptfed.federation.stopping import Stopping
from promptfed.methods.fedavg import FedAvg
from promptfed.results.folder.record import Line
from promptfed.results.report import read_run, write_report
from promptfed.runs import config, runner
from promptfed.runs.finished import open_run
from support.loops import SIZES, make
from support.stopped_runs import assert_same, bits
from support.tiny_runs import tiny, write_images


def lines(*means: float | None, key: str = "mean") -> list[Line]:
    return [
        {"round": number} | ({} if value is None else {"validation": {key: value}})
        for number, value in enumerate(means, 1)
    ]


# -- by hand --------------------------------------------------------------------------------------------------------


def test_the_best_round_is_the_first_that_none_beats() -> None:
    best = Stopping(2).best(lines(0.5, 0.7, 0.7, 0.6))
    assert best is not None
    assert best["round"] == 2


@pytest.mark.parametrize(
    ("means", "end"), [((0.5, 0.7, 0.6, 0.7), 4), ((0.5, 0.4, 0.3), 3), ((0.5, 0.4, 0.6, 0.5), None)]
)
def test_patience_is_exhausted_that_many_rounds_after_the_best(means: tuple[float, ...], end: int | None) -> None:
    ends = [count for count in range(1, len(means) + 1) if Stopping(2).exhausted(lines(*means[:count]))]
    assert ends[:1] == ([] if end is None else [end])


def test_a_small_gain_is_none() -> None:
    # 0.52 and 0.54 are within 0.05 of 0.5, the best still; 0.56 is not
    stopping = Stopping(3, min_delta=0.05)
    assert not stopping.exhausted(lines(0.5, 0.52, 0.54, 0.56))
    assert stopping.exhausted(lines(0.5, 0.52, 0.54, 0.549))


def test_rounds_without_a_test_count_and_end_nothing() -> None:
    assert not Stopping(2).exhausted(lines(None, 0.5, None, None))
    assert Stopping(2).exhausted(lines(None, 0.5, None, 0.5))
    assert not Stopping(1).exhausted(lines(None, None))


def test_a_loss_is_better_when_it_is_less() -> None:
    stopping = Stopping(1, monitor="loss")
    assert not stopping.exhausted(lines(0.5, 0.4, key="loss"))
    assert stopping.exhausted(lines(0.5, 0.6, key="loss"))


# -- in runs --------------------------------------------------------------------------------------------------------


def test_a_fifth_of_each_clients_images_validates_and_trains_no_more(tmp_path: Path) -> None:
    loop, plain = (make(FedAvg(), tmp_path / name, stop=table) for name, table in (("a", {"patience": 2}), ("b", {})))
    assert loop.validation is not None
    held = loop.validation.shards.rows["test"]  # type: ignore[attr-defined]
    for client, size in enumerate(SIZES):
        rest = loop.shards.rows["train"][client]
        assert sorted([*rest, *held[client]]) == plain.shards.rows["train"][client].tolist()
        assert loop.shards.facts([client])["size"].item() == len(rest) == size - len(held[client])
    assert [len(rows) for rows in held] == [3, 9, 0, 6, 0]  # thirds of 9, 40, 3 and 24 images, rounded by class
    same = zip(loop.shards.rows["test"], plain.shards.rows["test"], strict=True)
    assert all(one.tolist() == other.tolist() for one, other in same)


def test_the_fleets_agree_on_validation(tmp_path: Path) -> None:
    found = []
    for fleet in ("one-by-one", "stacked"):
        loop = make(FedAvg(lr=0.05, epochs=1, batch=8), tmp_path / fleet, fleet, stop={"patience": 2})
        found.append(loop.round(0)[1]["validation"])
    assert found[0]["per_client"] == found[1]["per_client"]
    assert found[0]["loss"] == pytest.approx(found[1]["loss"], rel=1e-4)


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    images = write_images(tmp_path_factory.mktemp("images") / "tiny.npz")
    # nothing beats the first round by a whole point of accuracy
    return tuple(tiny(images, "rounds=6", "stop.patience=2", "stop.min_delta=1", "checkpoint_seconds=0"))


@pytest.fixture(scope="module")
def ended(words: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runner.run("fedavg", out=tmp_path_factory.mktemp("ended") / "run", overrides=words).folder


def test_a_run_ends_when_its_patience_does(ended: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rounds = [json.loads(line) for line in (ended / "rounds.jsonl").read_text().splitlines()]
    summary = json.loads((ended / "summary.json").read_text())
    sentence = "Stopped after round 3 of 6: validation images gained nothing since round 1 (stop.patience=2)"
    sentence += "; the models are those of round 3."
    assert (len(rounds), summary["accuracy"]["round"], summary["stopped"]) == (3, 3, sentence)
    assert rounds[-1]["deployed"] is not None  # the last round is tested as any last round
    best = summary["validation"]
    assert (best["round"], best["validation"], best["received"]) == (
        1,
        rounds[0]["validation"],
        rounds[0]["received"],
    )
    assert read_run(ended).stopped == sentence
    assert sentence in write_report([ended], ended / "again.html").read_text()


def test_it_is_the_same_after_a_pause(words: tuple[str, ...], ended: Path, tmp_path: Path) -> None:
    runner.run("fedavg", out=tmp_path / "run", overrides=(*words, "rounds=2"))
    runner.run("fedavg", resume=tmp_path / "run", overrides=words)
    straight, paused = bits(ended), bits(tmp_path / "run")
    for line in (straight[2][1], paused[2][1]):
        del line["deployed"]  # of the second round, which was the last before the pause
    assert_same(straight, paused)
    stopped = [json.loads((folder / "summary.json").read_text())["stopped"] for folder in (ended, tmp_path / "run")]
    assert stopped[0] == stopped[1]


def test_more_rounds_do_not_help_it(words: tuple[str, ...], ended: Path, tmp_path: Path) -> None:
    shutil.copytree(ended, tmp_path / "run")
    result = runner.run("fedavg", resume=tmp_path / "run", overrides=(*words, "rounds=9"))
    assert (len(result.rounds), result.summary["stopped"][:27]) == (3, "Stopped after round 3 of 9:")


def test_an_opened_run_trains_on_what_the_run_trained_on(ended: Path) -> None:
    run = open_run(ended)
    held = sum(len(rows) for rows in run.described.partition.train)
    assert sum(len(run.data(client, 3).rows[0]) for client in range(4)) < held
    assert run.facts(0)["size"].item() == len(run.data(0, 3).rows[0])


def test_where_validation_images_are_tested_they_decide(words: tuple[str, ...], tmp_path: Path) -> None:
    result = runner.run("fedavg", out=tmp_path / "run", overrides=(*words, "evaluate.split=val"))
    assert len(result.rounds) == 3
    for line in result.rounds:
        assert line["validation"] == line["received"] | {"loss": line["loss"]}


def test_a_patient_run_has_all_its_rounds(words: tuple[str, ...], tmp_path: Path) -> None:
    result = runner.run("fedavg", out=tmp_path / "run", overrides=(*words, "rounds=3", "stop.patience=3"))
    assert (len(result.rounds), "stopped" in result.summary, result.summary["validation"]["round"]) == (3, False, 1)


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("newcomers=2", "Newcomers join after the last round, so that must be known; leave stop.patience out."),
        ("evaluate.personal=false", "stop.patience needs every client's score in between; set evaluate.personal=true."),
        ("stop.monitor=f1", 'Unknown stop.monitor "f1"; valid: accuracy, loss.'),
        ("stop.patience=-1", "stop.patience must be at least 0, not -1."),
    ],
)
def test_what_does_not_go_with_it_is_refused(word: str, sentence: str) -> None:
    with pytest.raises(PromptFedError) as refused:
        config.load_one("fedavg", ["stop.patience=3", word])
    assert str(refused.value) == sentence


def test_without_patience_there_is_no_table() -> None:
    assert config.load_one("fedavg", ["stop.patience=0", "stop.min_delta=1"]).hash == config.load_one("fedavg").hash
