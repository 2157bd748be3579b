"""Accuracy over the size of prompts: which runs are one line, and the numbers of its points."""

import json
from pathlib import Path
from typing import Any

import pytest

from promptfed.analysis.figures import draw
from promptfed.core.errors import PromptFedError
from support.command import promptfed
from support.drawn import about
from support.tiny_runs import write_images

NO_TRAFFIC = {"down_floats": 1, "up_floats": 1, "down_bytes": 4, "up_bytes": 4}
AROUND = '[method]\nname = "{method}"\n[prompt]\nkind = "{kind}"\nsize = {size}\n'
PFEDPT = '[method]\nname = "pfedpt"\nprompt = "{kind}"\nsize = {size}\nlr = {lr}\n'


def write_run(folder: Path, mean: float, *, seed: int = 0, top: str = "", finished: bool = True, **keys: Any) -> Path:
    """Write the records of a run whose clients are right `mean` of the time."""
    own = {"method": "pfedpt", "kind": "frame", "size": 2, "lr": 0.1, "data": "tiny"} | keys
    recipe = (PFEDPT if own["method"] == "pfedpt" else AROUND).format(**own)
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text(
        f'seed = {seed}\nrounds = 1\n{top}{recipe}[data]\nname = "{own["data"]}"\n', encoding="utf-8"
    )
    score = {"mean": mean, "weighted": mean - 0.1, "worst": mean, "p10": mean, "per_client": [mean]}
    line = {"round": 1, "clients": [0], "loss": 1.0, "received": score, "trained": None, "deployed": None}
    line |= {"measures": {}, "traffic": NO_TRAFFIC, "images": 1, "seconds": 1.0}
    (folder / "rounds.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
    named = {"method": own["method"], "dataset": own["data"], "partition": "iid", "backbone": "cnn"}
    accuracy = score | {"best_round": 1, "best_mean": mean}
    summary = named | {
        "seed": seed,
        "clients": 1,
        "rounds": 1,
        "accuracy": accuracy,
        "traffic": NO_TRAFFIC,
        "seconds": 1.0,
    }
    if finished:
        (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    return folder


def lines(folders: list[Path], out: Path) -> dict[str, Any]:
    """Return the lines that are drawn of run folders."""
    found: dict[str, Any] = about(draw("sizes", folders, out / "sizes.png"))["numbers"]["lines"]
    return found


def test_a_line_per_kind_with_mean_and_std_over_seeds(tmp_path: Path) -> None:
    folders = [
        write_run(tmp_path / "a", 0.5, size=16),
        write_run(tmp_path / "b", 0.6, size=2, seed=0, top='device = "cpu"\n'),
        write_run(tmp_path / "c", 0.8, size=2, seed=1, top='device = "cuda"\n'),
        write_run(tmp_path / "d", 0.3, size=2, kind="patch"),
    ]
    assert lines(folders, tmp_path) == {
        "frame": [
            # (60 + 80) / 2, and √((10² + 10²) / 1)
            {"size": 2, "mean": 70, "std": 14.1421, "weighted": 60, "by_seed": {"0": 60, "1": 80}},
            {"size": 16, "mean": 50, "std": None, "weighted": 40, "by_seed": {"0": 50}},
        ],
        "patch": [{"size": 2, "mean": 30, "std": None, "weighted": 20, "by_seed": {"0": 30}}],
    }
    caption = about(tmp_path / "sizes.png")["caption"]
    assert caption.startswith("pfedpt on tiny, iid, cnn: the mean accuracy")
    assert caption.endswith("The best of each line: frame: 70.00 % at 2; patch: 30.00 % at 2.")


def test_a_folder_given_twice_counts_once(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", 0.5)
    assert lines([folder, tmp_path / "a" / ".." / "a"], tmp_path)["frame"][0]["by_seed"] == {"0": 50}


def test_what_else_sets_runs_apart_is_in_the_name_of_a_line(tmp_path: Path) -> None:
    slow, fast = (write_run(tmp_path / str(lr), 0.5, lr=lr) for lr in (0.1, 0.2))
    assert list(lines([slow, fast], tmp_path)) == ["frame (method.lr=0.1)", "frame (method.lr=0.2)"]
    around = write_run(tmp_path / "around", 0.5, method="fedprox+pt")
    assert list(lines([slow, around], tmp_path)) == ["pfedpt, frame", "fedprox+pt, frame"]
    other = write_run(tmp_path / "other", 0.5, method="fedprox+pt", data="huge")
    assert list(lines([slow, other], tmp_path)) == [
        "pfedpt, frame (data.name=tiny)",
        "fedprox+pt, frame (data.name=huge)",
    ]


def test_runs_that_cannot_be_points(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", 0.5)
    with pytest.raises(PromptFedError, match=r'"\S+/a" and "\S+/b" are the same run twice; leave one out\.'):
        draw("sizes", [run, write_run(tmp_path / "b", 0.5)])
    with pytest.raises(PromptFedError, match=r'Run folder "\S+/c" is not finished; resume the run, or leave it out'):
        draw("sizes", [run, write_run(tmp_path / "c", 0.5, size=4, finished=False)])
    untested = write_run(tmp_path / "d", 0.5, size=4)
    summary = json.loads((untested / "summary.json").read_text(encoding="utf-8"))
    summary["accuracy"]["mean"] = None
    (untested / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    with pytest.raises(PromptFedError, match=r'Run folder "\S+/d" has no accuracy of its clients\.'):
        draw("sizes", [run, untested])


@pytest.mark.parametrize(("kinds", "unit"), [(["frame"], "pixels"), (["tokens"], "tokens")])
def test_the_axis_has_its_unit(tmp_path: Path, kinds: list[str], unit: str) -> None:
    folders = [write_run(tmp_path / kind, 0.5, kind=kind) for kind in kinds]
    text = draw("sizes", folders, tmp_path / "a.svg").read_text(encoding="utf-8")
    assert f"size p of the prompt, {unit}" in text


def test_the_folders_of_the_papers_figure_8(tmp_path: Path) -> None:
    images = write_images(tmp_path / "tiny.npz", side=16)
    words = [f"data.name=npz:{images}", "partition.name=iid", "rounds=1", "clients=2", "per_round=2", "method.epochs=1"]
    words += ["method.prompt_epochs=1", "backbone.channels=[2]", "backbone.kernel=3", "backbone.hidden=[4]"]
    words += ["backbone.pool_after=[1]", "evaluate.after=false"]
    out = tmp_path / "out"
    table = ["reproduce", "pfedpt/fig8-prompt-type", "--out", out, "--columns", "p2,p4", "--only", "frame,patch"]
    assert promptfed(*table, *words).code == 0
    done = promptfed("figure", "sizes", *sorted(out.glob("*/*/seed*")))
    assert (done.code, done.out.strip(), done.err) == (0, str(out / "sizes.png"), "")
    found = about(out / "sizes.png")["numbers"]["lines"]
    assert {name: [point["size"] for point in line] for name, line in found.items()} == {
        "frame": [2, 4],
        "patch": [2, 4],
    }
    summary = json.loads((out / "p4" / "patch" / "seed0" / "summary.json").read_text(encoding="utf-8"))
    assert found["patch"][1]["mean"] == pytest.approx(100 * summary["accuracy"]["mean"], abs=1e-4)
