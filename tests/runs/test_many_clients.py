"""A run of very many clients keeps arrays where a smaller one has lists; all else is the same, bit for bit."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from promptfed.core.errors import PromptFedError
from promptfed.core.files import unsealed
from promptfed.data import shares
from promptfed.federation import evaluate
from promptfed.results import loading, read_run, read_summary
from promptfed.results.folder import each
from promptfed.results.folder.each import Each
from promptfed.results.metrics import measures
from promptfed.results.report import write_report
from promptfed.runs import resuming, runner
from support.tiny_runs import plain, tiny, write_images

CLIENTS = 20


def few_are_many(patch: pytest.MonkeyPatch) -> None:
    for module in (shares, each, evaluate, measures):
        patch.setattr(module, "MANY", CLIENTS - 4)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the same run, once with lists and once with arrays."""
    place = tmp_path_factory.mktemp("runs")
    words = (f"clients={CLIENTS}", "per_round=5", "rounds=4", "evaluate.every=2", "evaluate.after=true")
    given = tuple(tiny(write_images(place / "images.npz"), *words, "checkpoint_seconds=0"))
    found = {}
    for name in ("lists", "arrays"):
        with pytest.MonkeyPatch.context() as patch:
            if name == "arrays":
                few_are_many(patch)
            found[name] = place / name
            runner.run("pfedpt", out=found[name], overrides=given)
    return found


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [unsealed(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def test_no_line_and_no_summary_has_a_number_per_client(folders: dict[str, Path]) -> None:
    for line in lines_of(folders["arrays"]):
        assert len(line["clients"]) == 5
        for model in ("received", "trained"):
            reference = line[model] and line[model]["per_client"]
            assert reference is None or reference.keys() == {"file", "crc32", "array", "count"}
    summary = unsealed((folders["arrays"] / "summary.json").read_text())
    places = [summary["accuracy"][name]["per_client"] for name in ("before", "after", "trained")]
    places += [summary["metrics"][name]["per_client"] for name in ("balanced_accuracy", "ece")]
    assert {place["file"] for place in places} == {"clients/summary.npz"}
    assert sorted(path.name for path in (folders["arrays"] / "clients").iterdir()) == [
        "000002.npz",
        "000004.npz",
        "summary.npz",
    ]
    assert not (folders["lists"] / "clients").exists()


def test_readers_find_the_same_numbers(folders: dict[str, Path]) -> None:
    lists, arrays = (read_run(folders[name]) for name in ("lists", "arrays"))
    assert [(one.number, one.loss, one.clients) for one in lists.rounds] == [
        (one.number, one.loss, one.clients) for one in arrays.rounds
    ]
    for mine, theirs in zip(arrays.rounds, lists.rounds, strict=True):
        for model in ("received", "trained"):
            many, few = getattr(mine, model), getattr(theirs, model)
            assert (many is None) == (few is None)
            if many is not None:
                assert isinstance(many.per_client, Each)
                assert list(many.per_client) == list(few.per_client)
                assert (many.mean, many.weighted, many.worst, many.best) == pytest.approx(
                    (few.mean, few.weighted, few.worst, few.best), abs=1e-12
                )
    assert arrays.partition is not None
    assert lists.partition is not None
    assert list(arrays.partition.clients) == list(lists.partition.clients)
    assert arrays.partition.hash == lists.partition.hash
    assert arrays.founders == lists.founders
    assert (arrays.adapts, arrays.best_round) == (lists.adapts, lists.best_round)
    few_summary, many_summary = (read_summary(folders[name])["accuracy"] for name in ("lists", "arrays"))
    assert list(many_summary["after"]["per_client"]) == few_summary["after"]["per_client"]
    assert many_summary["best_local"] == pytest.approx(few_summary["best_local"], abs=1e-12)


def test_columns_and_the_report_are_made_of_either(folders: dict[str, Path]) -> None:
    lists, arrays = (loading.load(folders[name]) for name in ("lists", "arrays"))
    assert arrays.clients == lists.clients
    assert arrays.scores == lists.scores
    assert sum(arrays.clients["rounds"]) == 20
    page = write_report([folders["arrays"]]).read_text()
    assert "Accuracy per client" in page
    assert "Images per client and class" in page


def test_a_run_with_arrays_resumes_bit_for_bit(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few_are_many(monkeypatch)
    folder = tmp_path / "run"
    shutil.copytree(folders["arrays"], folder)
    resuming.resume(folder, runner_recipe(folder, 6))
    straight = tmp_path / "straight"
    runner.run(str(folder / "recipe.toml"), out=straight)
    assert plain(lines_of(folder)) == plain(lines_of(straight))
    assert unsealed((folder / "partition.json").read_text()) == unsealed((straight / "partition.json").read_text())


def runner_recipe(folder: Path, rounds: int) -> Any:
    from promptfed.runs import config

    return config.load(str(folder / "recipe.toml"), [f"rounds={rounds}"])[0]


def columns(folder: Path) -> tuple[int, int]:
    """Read every number of every client."""
    found = loading.load(folder)
    return found.clients.rows, found.scores.rows


@pytest.mark.parametrize("name", ["clients/000004.npz", "clients/summary.npz"])
def test_damaged_arrays_are_a_sentence(folders: dict[str, Path], tmp_path: Path, name: str) -> None:
    folder = tmp_path / "run"
    shutil.copytree(folders["arrays"], folder)
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(PromptFedError, match=r"its arrays in .*npz cannot be read \(it does not match its checksum\)"):
        columns(folder)


def test_a_damaged_partition_is_a_sentence(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(folders["arrays"], folder)
    (folder / "partition.npz").unlink()
    with pytest.raises(PromptFedError, match="partition"):
        read_run(folder)
    with pytest.raises(PromptFedError, match=r"partition file .* is damaged"):
        shares.DescribedPartition.load(folder / "partition.json")


def test_long_lists_at_any_depth_are_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(each, "MANY", 3)
    content = {"a": [1, 2, 3, 4], "b": {"c": [0.5, None, 1.0, 2.0]}, "d": [1, 2, 3], "e": {"f": "text"}}
    light = each.packed(content, tmp_path, "000001")
    assert light["d"] == [1, 2, 3]
    assert light["e"] == {"f": "text"}
    back = each.unpacked(json.loads(json.dumps(light)), tmp_path)
    assert list(back["a"]) == [1, 2, 3, 4]
    assert all(isinstance(value, int) for value in back["a"])
    assert list(back["b"]["c"]) == [0.5, None, 1.0, 2.0]
    assert back["b"]["c"][1:3] == [None, 1.0]
    assert back["b"]["c"][1] is None
    assert back["b"]["c"] == back["b"]["c"]
    assert back["b"]["c"] != Each.of(np.zeros(4))
    assert back["b"]["c"].known.tolist() == [0.5, 1.0, 2.0]
