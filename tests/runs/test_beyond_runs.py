"""evaluate.sets from the recipe to the table: what is written, read and compared, and what is refused."""

import json
from pathlib import Path

import pytest

import promptfed
from promptfed.core.errors import PromptFedError
from promptfed.results.folder.reader import read_run
from promptfed.results.report import compare
from promptfed.runs.config import load_one
from promptfed.runs.execution import start
from promptfed.runs.recipe import Recipe

ALL = "evaluate.sets=own-names+base+neighbour+novel"
WORDS = (
    "data.name=fashion-shops", "data.limit=4", "data.half=base", "partition.name=disjoint-random", "clients=3",
    "rounds=2", "evaluate.every=2", "method.batch=32", "method.tokens=2",
)  # fmt: skip


def promptfl(*more: str) -> Recipe:
    return load_one("promptfl", [*WORDS, "method.csc=false", *more])


def test_a_recipe_without_sets_is_as_it_was() -> None:
    plain = promptfl()
    assert "sets" not in plain.evaluate
    assert promptfl("evaluate.sets=").to_toml() == plain.to_toml()
    assert promptfl(ALL).hash != plain.hash


def test_from_the_recipe_to_the_table(tmp_path: Path) -> None:
    start(promptfl(ALL), tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text(encoding="utf-8").splitlines()]
    assert "sets" not in lines[0]  # its clients were not tested
    found = lines[1]["sets"]
    assert list(found) == ["own-names", "base", "neighbour", "novel"]
    # one model for all, so each client's base images are all the same
    assert len(set(found["base"]["per_client"])) == 1
    assert found["base"]["mean"] == pytest.approx(lines[1]["deployed"]["all"])
    assert found["own-names"]["mean"] >= lines[1]["received"]["mean"]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))["accuracy"]
    assert (summary["sets"], summary["hm"], summary["cm"]) == (found, lines[1]["hm"], lines[1]["cm"])
    assert summary["cm"] == pytest.approx((summary["mean"] + summary["hm"]) / 2)
    run = read_run(tmp_path / "run")
    assert run.beyond.keys() == {*found, "hm", "cm"}
    assert run.beyond["novel"] == found["novel"]["mean"]
    titles = [column.title for column in compare([run]).columns]
    assert titles[2:8] == ["own-names", "neighbour", "base", "novel", "hm", "cm"]
    loaded = promptfed.load(tmp_path / "run")
    assert loaded.rounds["beyond.hm"] == [None, run.beyond["hm"]]


def test_an_adapted_model_is_tested_as_it_is_deployed(tmp_path: Path) -> None:
    words = ["data.name=fashion-shops", "data.limit=4", "clients=2", "rounds=1", "backbone.name=vit-tiny"]
    tuned = [*words, "backbone.depth=1", "method.tune_epochs=1", "method.lr=0.1", "evaluate.sets=neighbour"]
    start(load_one("fedavg", [*tuned, "evaluate.after=false"]), tmp_path / "run")
    line = json.loads((tmp_path / "run" / "rounds.jsonl").read_text(encoding="utf-8"))
    summary = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))["accuracy"]
    assert summary["before"]["mean"] == line["received"]["mean"]
    assert summary["sets"]["neighbour"] != line["sets"]["neighbour"]  # after fine-tuning to the own images
    assert "hm" not in summary


@pytest.mark.parametrize(
    ("source", "more", "sentence"),
    [
        ("promptfl", ["evaluate.sets=nov"], r'^Unknown set in evaluate\.sets "nov"; did you mean "novel"\?$'),
        ("promptfl", ["evaluate.sets=novel", "data.half=all"], r"^evaluate\.sets=novel .*; set data\.half=base\.$"),
        (
            "promptfl",
            ["evaluate.sets=novel"],
            r"^promptfl as it is set here learns something for each class, .*novel out",
        ),
        ("fedavg", ["evaluate.sets=base+novel"], r"^fedavg as it is set here learns something for each class, "),
        (
            "ti-local",
            ["evaluate.sets=base"],
            r"^evaluate\.sets needs a classifier, which ti-local is not; leave it out\.$",
        ),
    ],
)
def test_mistakes(source: str, more: list[str], sentence: str) -> None:
    with pytest.raises(PromptFedError, match=sentence):
        load_one(source, ["data.name=fashion-shops", "data.half=base", *more])
