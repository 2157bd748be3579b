"""Run folders as columns, alone and many at a time, without torch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import promptfed
from promptfed.core.errors import PromptFedError
from support.command import environment
from support.reports import MakeRun


def test_a_finished_run_has_a_row_per_round(make_run: MakeRun) -> None:
    run = promptfed.load(make_run("one", rounds=3, level=0.8))
    assert run.finished
    assert run.rounds["round"] == [1, 2, 3]
    assert run.rounds["participants"] == [2, 2, 2]
    assert run.rounds["loss"] == pytest.approx([2.0, 1.0, 2 / 3])
    # The third of them not yet done, squared, times 0.4 is missing; the clients are -4, 0, 4 and -2 points off.
    assert run.rounds["received.mean"] == [pytest.approx(value) for value in (0.6172, 0.7506)] + [None]
    assert run.rounds["deployed.street"][:2] == pytest.approx([0.422222, 0.555556], abs=1e-5)
    assert run.rounds["measures.prompt_drift"] == pytest.approx([0.1, 0.05, 0.1 / 3])
    assert run.rounds["traffic.up_bytes"] == [4 * 7680 * 2] * 3
    assert run.summary is not None
    assert run.summary["rounds"] == 3
    assert run.recipe["partition"] == {"name": "dirichlet", "alpha": 0.3, "clients": 4}


def test_a_client_has_its_images_and_its_accuracies(make_run: MakeRun) -> None:
    clients = promptfed.load(make_run("one", rounds=2, level=0.8, adapted=0.9)).clients
    assert clients["train"] == [100] * 4
    assert clients["test"] == [20] * 4
    assert clients["domain"] == ["street", "studio", "street", "studio"]
    assert clients["classes"][0] == "T-shirt/top, Trouser, Pullover"
    assert clients["rounds"] == [1, 1, 1, 1]
    assert clients["before"] == pytest.approx([0.76, 0.80, 0.84, 0.78])
    assert clients["accuracy"] == pytest.approx([0.86, 0.90, 0.94, 0.88])
    assert clients["after"] == pytest.approx([0.79, 0.83, 0.87, 0.81])


def test_scores_follow_each_client_over_the_rounds(make_run: MakeRun) -> None:
    scores = promptfed.load(make_run("one", rounds=2, level=0.8)).scores
    assert scores["round"] == [1] * 4 + [2] * 4
    assert scores["client"] == [0, 1, 2, 3] * 2
    assert scores["received"][4:] == pytest.approx([0.76, 0.80, 0.84, 0.78])
    assert scores["trained"][4:] == [pytest.approx(0.79), None, pytest.approx(0.87), None]


def test_an_unfinished_run_is_loaded_as_far_as_it_is(make_run: MakeRun) -> None:
    folder = make_run("some", rounds=6, done=2)
    with (folder / "rounds.jsonl").open("a") as file:
        file.write('{"round": 3, "cli')  # being written
    run = promptfed.load(folder)
    assert not run.finished
    assert run.summary is None
    assert run.rounds["round"] == [1, 2]
    assert run.clients["after"] == [None] * 4
    assert repr(run) == (
        f"<{folder}: pfedpt on fashion-shops, seed 0, unfinished, 2 of 6 rounds, mean 61.72 %, worst client 58.22 %>"
    )


def test_a_run_without_a_partition_has_no_images(make_run: MakeRun) -> None:
    folder = make_run("one", rounds=2)
    (folder / "partition.json").unlink()
    assert promptfed.load(folder).clients.records()[1] == {
        "client": 1, "train": None, "test": None, "domain": None, "classes": None, "rounds": 1,
        "before": pytest.approx(0.8), "accuracy": pytest.approx(0.8), "after": pytest.approx(0.83),
    }  # fmt: skip


def test_newcomers_have_no_score_before_they_come(make_run: MakeRun) -> None:
    run = promptfed.load(make_run("late", rounds=2, newcomers=1, join_rounds=2))
    assert next(one["round"] for one in run.scores.records() if one["client"] == 3) == 4


def test_many_runs_are_one_frame(make_run: MakeRun, tmp_path: Path) -> None:
    for name, lr in (("slow", 0.1), ("fast", 0.5)):
        make_run(f"sweep/{name}", rounds=2, lr=lr)
    make_run("sweep/more/other", rounds=2, method="fedavg", done=1)
    runs = promptfed.load_all(tmp_path / "sweep")
    assert len(runs) == 3
    assert runs.names == ("fast", "more/other", "slow")
    assert runs.summary["run"] == ["fast", "more/other", "slow"]
    assert runs.summary["method"] == ["pfedpt", "fedavg", "pfedpt"]
    assert runs.summary["method.lr"] == [0.5, 0.1, 0.1]
    assert runs.summary["rounds"] == [2, 1, 2]
    assert runs.summary["finished"] == [True, False, True]
    assert "partition.alpha" not in runs.summary, "it is the same in all"
    assert runs.rounds["run"] == ["fast", "fast", "more/other", "slow", "slow"]
    assert runs.clients.rows == 12
    assert runs.scores["method"].count("fedavg") == 4
    assert [run.folder.name for run in runs] == ["fast", "other", "slow"]
    assert runs[1].details.method == "fedavg"
    assert len(repr(runs).splitlines()) == 3
    assert "pfedpt (lr=0.5)" in runs.table()
    assert runs._repr_markdown_() == runs.table()


def test_a_run_in_its_first_round_is_left_out(make_run: MakeRun, tmp_path: Path) -> None:
    make_run("runs/one", rounds=2)
    begun = make_run("runs/two", rounds=2)
    (begun / "rounds.jsonl").write_text("")
    assert promptfed.load_all(tmp_path / "runs").names == ("one",)
    with pytest.raises(PromptFedError, match="has no finished round yet"):
        promptfed.load_all(begun)


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PromptFedError, match="is not a run folder"):
        promptfed.load_all(tmp_path)
    with pytest.raises(PromptFedError, match="does not exist; give the folder of a run"):
        promptfed.load(tmp_path / "nowhere")


def test_loading_imports_neither_torch_nor_pandas(make_run: MakeRun) -> None:
    folder = make_run("one", rounds=2)
    code = (
        "import sys, promptfed\n"
        f"run = promptfed.load({str(folder)!r})\n"
        f"many = promptfed.load_all({str(folder.parent)!r})\n"
        "print(run.rounds.rows, run.clients.rows, many.summary.rows, len(run._repr_html_()) > 500, run.table()[:8])\n"
        "print([name for name in ('torch', 'pandas', 'tensorboard') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("2 4 1 True | method\n[]\n", "")


def test_summaries_are_as_the_run_wrote_them(make_run: MakeRun) -> None:
    folder = make_run("one", rounds=2)
    assert promptfed.load(folder).summary == json.loads((folder / "summary.json").read_text())
