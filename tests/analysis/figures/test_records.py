"""Figures from the records alone, on fake run folders: exact numbers, and names that distinguish runs."""

from pathlib import Path

import pytest

from promptfed.analysis.figures.records import drift, drifts, labels, named
from promptfed.core.errors import PromptFedError
from promptfed.results.folder.reader import read_run
from support.fake_runs import run_maker
from support.reports import MakeRun


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    return run_maker(tmp_path)


def test_drift_is_what_every_round_recorded(make_run: MakeRun) -> None:
    folder = make_run("a", rounds=4)
    assert drifts(read_run(folder)) == ((1, 0.1), (2, 0.05), (3, 0.1 / 3), (4, 0.025))
    drawn = drift([folder], [])
    axes = drawn.plot.axes[0]
    assert axes.lines[0].get_ydata().tolist() == pytest.approx([0.1, 0.05, 0.1 / 3, 0.025])
    assert axes.get_ylim()[0] == 0
    assert not drawn.plot.legends


def test_runs_are_distinguished_by_seed_setting_or_folder(make_run: MakeRun) -> None:
    dirs = [make_run("a"), make_run("b", seed=1), make_run("c", method="other"), make_run("d", dataset="mnist")]
    names = list(named([*dirs, dirs[0]]))
    assert names == ["pfedpt, seed 0", "pfedpt, seed 1", "other", "pfedpt"]
    same = [make_run("e/x", rounds=3), make_run("f/x", rounds=3)]
    assert len(named(same)) == 2
    assert drift(dirs, []).plot.legends


def test_a_long_name_leaves_room_for_the_curves(make_run: MakeRun) -> None:
    runs = [make_run("a", method="a" * 30 + " " + "e" * 60), make_run("b", method="o" * 70)]
    plot = drift(runs, []).plot
    plot.draw_without_rendering()
    width, height = plot.get_size_inches()
    place = plot.axes[0].get_position()
    assert place.width * width > 5
    assert place.height * height > 2.5


def test_labels_are_the_partition(make_run: MakeRun) -> None:
    drawn = labels([make_run("a")], [])
    assert drawn.numbers["counts"][1] == [0, 60, 30, 10, 0, 0, 0, 0, 0, 0]  # type: ignore[index]
    image = drawn.plot.axes[0].images[0].get_array()
    assert image.shape == (10, 4), "classes down, clients across"
    assert image[1].tolist() == [30, 60, 0, 0]
    assert "400 images" in drawn.caption
    some = labels([make_run("b")], [3, 3, 0])
    assert some.numbers["clients"] == [3, 0]


def test_what_is_not_recorded_is_refused(make_run: MakeRun) -> None:
    folder = make_run("a")
    (folder / "partition.json").unlink()
    with pytest.raises(PromptFedError, match=r"has no partition\.json"):
        labels([folder], [])
    lines = (folder / "rounds.jsonl").read_text(encoding="utf-8")
    (folder / "rounds.jsonl").write_text(lines.replace("prompt_drift", "other"), encoding="utf-8")
    with pytest.raises(PromptFedError, match="records no prompt drift; pfedpt has no such prompt"):
        drift([folder], [])
