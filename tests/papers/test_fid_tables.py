"""A table of distances: trained by one command, measured by another, then shown by the first."""

import json
from pathlib import Path

import pytest

from promptfed.papers.rendering import read_table
from support.command import promptfed
from support.inverted_runs import painting, write_colours

TABLE = """
title = "Words"
paper = "Somebody 2020."
measures = ["fid"]

[base]
rounds = 1
clients = 3
data = {{ name = "npz:{images}" }}
partition = {{ name = "disjoint", classes_per_client = 1 }}
backbone = {{ name = "painter" }}
method = {{ repeats = 1, batch = 4, first = 2 }}
evaluate = {{ after = false }}

[[columns]]
name = "colours"

[[rows]]
name = "fedti"
recipe.method = {{ name = "fedti" }}

[[rows]]
name = "relic"
recipe.method = {{ name = "relic" }}

[[rows]]
name = "ti-local"
recipe.method = {{ name = "ti-local" }}

[[rows]]
name = "ti-central"
recipe = {{ clients = 1, method = {{ name = "ti-central" }} }}
"""


def test_train_measure_and_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table, out = tmp_path / "words.table.toml", tmp_path / "out"
    table.write_text(TABLE.format(images=write_colours(tmp_path / "colours.npz")), encoding="utf-8")
    shared = ("fedti", "relic", "ti-central")
    folders = {name: out / name / "seed0" for name in (*shared, "ti-local")}
    measured = ("quality", *folders.values(), "--clients", 0, "--count", 3)
    with painting():
        done = promptfed("reproduce", table, "--out", out, "device=cpu")
        assert (done.code, [row["ours"]["mean"] for row in read_table(out)["rows"]]) == (0, [None] * 4)
        assert promptfed(*measured).code == 0
        done = promptfed("reproduce", table, "--out", out, "device=cpu")
        rows = {row["row"]: row["ours"] for row in read_table(out)["rows"]}
        words = {name: json.loads((folders[name] / "quality.json").read_text())["words"] for name in shared}
        assert promptfed(*measured, "--against", "own").code == 0
        assert promptfed("reproduce", table, "--out", out, "device=cpu").code == 0
    assert done.code == 0
    for name in shared:
        (word,) = words[name]
        assert rows[name]["mean"] == round(word["fid"], 4) > 0
        # all 24 training images, though the one client of ti-central holds but 8 of them
        assert rows[name].get("measured") == "clip embedded, 3 pictures, 24 images"
    assert (rows["ti-local"]["mean"], rows["ti-local"].get("measured")) == (None, "")  # it has no word on the server
    # what is compared with each run's own images does not stand side by side
    assert [row["ours"]["mean"] for row in read_table(out)["rows"]] == [None] * 4
