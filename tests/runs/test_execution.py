"""From a recipe to a finished run folder: what is in it, what travels, and what is tested."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from promptfed.core.errors import PromptFedError
from promptfed.core.files import unsealed
from promptfed.data.npz import read_npz
from promptfed.data.shares import Partition
from promptfed.federation.loop import Loop
from promptfed.runs import config, execution
from promptfed.runs.runner import Result, run
from support.averaged import Averaged
from support.tiny_runs import tiny, write_images

WEIGHTS = 1092  # of the network below: 8 + 40 + 392 + 16 + 216 + 72 + 16 + 144 + 136 + 16 + 36
SCORE = {"mean", "weighted", "worst", "p10", "per_client"}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images") / "tiny.npz")


@pytest.fixture(scope="module")
def done(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Result:
    words = tiny(images, "per_round=2", "method.prompt_epochs=1", "partition.name=dirichlet", "partition.alpha=0.5")
    return run("pfedpt", out=tmp_path_factory.mktemp("done") / "run", overrides=tuple(words))


def go(method: str, images: Path, out: Path, *more: str) -> Result:
    return run(method, out=out, overrides=tuple(tiny(images, *more)))


# -- its bars -----------------------------------------------------------------------------------------------------


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, float], list[float]]:
    """Return how far each bar was moved at every call, by its name and length."""
    moved: dict[tuple[str, float], list[float]] = {}

    @contextmanager
    def record(what: str, total: float) -> Iterator[Callable[..., None]]:
        steps = moved.setdefault((what, total), [])
        yield lambda amount, note=None: steps.append(round(amount, 6))

    monkeypatch.setattr(execution, "bar", record)
    return moved


@pytest.mark.parametrize("fleet", ["one-by-one", "stacked"])
def test_bars_move_with_every_client(
    fleet: str, images: Path, tmp_path: Path, bars: dict[tuple[str, float], list[float]]
) -> None:
    words = tiny(images, "rounds=2", "per_round=2", f"fleet.name={fleet}", "fleet.width=1")
    run(Averaged(), out=tmp_path / "run", overrides=tuple(word for word in words if "epochs" not in word))
    assert bars == {("support.averaged:Averaged", 2): [0, 0.5, 0.5, 0, 0.5, 0.5, 0], ("last tests", 8): [1] * 8}


def test_no_bar_where_nobody_trains_any_more(
    images: Path, tmp_path: Path, bars: dict[tuple[str, float], list[float]]
) -> None:
    go("fedavg", images, tmp_path / "run", "evaluate.after=false")
    assert list(bars) == [("fedavg", 3)]


# -- the folder ---------------------------------------------------------------------------------------------------


def test_the_result_is_what_the_folder_says(done: Result) -> None:
    lines = (done.folder / "rounds.jsonl").read_text().splitlines()
    assert [unsealed(line) for line in lines] == done.rounds
    assert unsealed((done.folder / "summary.json").read_text()) == done.summary
    assert [line["round"] for line in done.rounds] == [1, 2, 3]
    assert "pfedpt" in done.table()
    assert f"{100 * done.summary['accuracy']['mean']:.2f}" in done.table()


def test_the_folder_is_complete(done: Result) -> None:
    expected = {"recipe.toml", "partition.json", "rounds.jsonl", "summary.json", "env.json", "pictures", "checkpoint"}
    assert {path.name for path in done.folder.iterdir()} == expected | {"report.html", "predictions.npz", ".lock"}


def test_summary_has_every_key(done: Result) -> None:
    about = {"method", "dataset", "partition", "backbone", "seed", "clients", "rounds", "device"}
    numbers = {"accuracy", "traffic", "seconds", "images_per_second", "recipe_hash", "partition_hash", "metrics"}
    assert set(done.summary) - {"peak_memory_bytes"} == about | numbers | {"rounds95"}  # the former on a GPU alone
    accuracy = done.summary["accuracy"]
    best = {"best_round", "best_mean", "best_weighted_round", "best_weighted", "best_local_round", "best_local"}
    assert set(accuracy) == SCORE | best | {"round", "before", "trained", "after", "deployed"}
    assert set(accuracy["before"]) == set(accuracy["after"]) == SCORE
    assert set(done.summary["traffic"]) == {"down_floats", "up_floats", "down_bytes", "up_bytes"}
    values = [done.summary[key] for key in ("method", "partition", "backbone", "seed", "clients", "rounds", "device")]
    assert values == ["pfedpt", "dirichlet", "vit-tiny", 0, 4, 3, "cpu"]


def test_a_line_has_every_key(done: Result) -> None:
    wanted = {"round", "clients", "loss", "received", "trained", "deployed", "measures", "traffic", "seconds"}
    for line in done.rounds:
        assert wanted <= set(line)
        assert set(line["received"]) == set(line["trained"]) == SCORE
        assert set(line["measures"]) == {"prompt_drift"}
        assert len(line["clients"]) == 2


def test_env_says_where_it_ran(done: Result) -> None:
    env = json.loads((done.folder / "env.json").read_text())
    wanted = {"promptfed", "python", "torch", "device", "device_name", "threads", "platform", "started"}
    assert wanted <= set(env)
    assert env["device"] == "cpu"


def test_the_recipe_in_the_folder_is_the_run(done: Result) -> None:
    (recipe,) = config.load(str(done.folder / "recipe.toml"))
    assert recipe.hash == done.summary["recipe_hash"]
    assert (recipe.rounds, recipe.method["prompt_epochs"], recipe.partition["alpha"]) == (3, 1, 0.5)


def test_accuracy_is_what_the_clients_say(done: Result) -> None:
    clients = json.loads((done.folder / "partition.json").read_text())["clients"]
    sizes = np.array([len(client["test"]) for client in clients])
    assert sizes.min() > 0
    accuracy = done.summary["accuracy"]
    for score in (accuracy, accuracy["before"], accuracy["after"], done.rounds[0]["received"]):
        each = np.array(score["per_client"])
        assert np.allclose(each * sizes, (each * sizes).round(), atol=1e-9)
        assert score["mean"] == pytest.approx(each.mean())
        assert score["weighted"] == pytest.approx((each * sizes).sum() / sizes.sum())
        assert score["worst"] == each.min()
        assert score["p10"] == pytest.approx(np.percentile(each, 10))
    means = [line["received"]["mean"] for line in done.rounds]
    assert accuracy["best_mean"] == max(means) == means[accuracy["best_round"] - 1]
    weighted = [line["received"]["weighted"] for line in done.rounds]
    assert accuracy["best_weighted"] == max(weighted) == weighted[accuracy["best_weighted_round"] - 1]
    assert accuracy["round"] == 3
    assert accuracy["before"] == done.rounds[-1]["received"]


def test_only_participants_have_a_trained_score(done: Result) -> None:
    for line in done.rounds:
        each = line["trained"]["per_client"]
        assert [client for client, value in enumerate(each) if value is not None] == line["clients"]


def test_prompts_are_drawn(done: Result, images: Path, tmp_path: Path) -> None:
    pictures = sorted((done.folder / "pictures").iterdir())
    assert [path.name for path in pictures] == [f"prompt-client-{client:03d}.png" for client in range(4)]
    with Image.open(pictures[0]) as picture:
        assert (picture.size, picture.mode) == ((8, 8), "RGB")
    assert not (go("local", images, tmp_path / "local", "rounds=1").folder / "pictures").exists()


# -- traffic ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "floats"), [("fedavg", WEIGHTS), ("local", 0), ("pfedpt", WEIGHTS)])
def test_traffic_is_exact(method: str, floats: int, images: Path, tmp_path: Path) -> None:
    done = go(method, images, tmp_path / "run", "rounds=2", "per_round=3")
    for line in done.rounds:
        assert line["traffic"] == {
            "down_floats": floats,
            "up_floats": floats,
            "down_bytes": 4 * 3 * floats,
            "up_bytes": 4 * 3 * floats,
        }
    assert done.summary["traffic"]["up_bytes"] == done.summary["traffic"]["down_bytes"] == 2 * 4 * 3 * floats
    assert done.summary["traffic"]["up_floats"] == floats


# -- when clients are tested --------------------------------------------------------------------------------------


def test_every_second_round(images: Path, tmp_path: Path) -> None:
    done = go("fedavg", images, tmp_path / "run", "evaluate.every=2")
    assert [line["received"] is None for line in done.rounds] == [True, False, False]
    assert [line["trained"] is None for line in done.rounds] == [True, False, False]
    assert [line["deployed"] is None for line in done.rounds] == [True, True, False]
    assert done.summary["accuracy"]["best_round"] in (2, 3)


def test_how_often_clients_are_tested_changes_nothing_else(images: Path, tmp_path: Path) -> None:
    often = go("pfedpt", images, tmp_path / "a", "per_round=2")
    rarely = go("pfedpt", images, tmp_path / "b", "per_round=2", "evaluate.every=3", "evaluate.after=false")
    assert often.rounds[-1]["received"] == rarely.rounds[-1]["received"]


def test_only_the_servers_model_until_the_last_round(images: Path, tmp_path: Path) -> None:
    done = go("fedavg", images, tmp_path / "run", "evaluate.personal=false")
    assert [line["received"] is None for line in done.rounds] == [True, True, False]
    assert all(0 <= line["deployed"]["all"] <= 1 for line in done.rounds)
    assert done.summary["accuracy"]["deployed"] == done.rounds[-1]["deployed"]


@pytest.mark.parametrize("method", ["local", "pfedpt"])
def test_no_deployed_score_without_a_model_on_the_server(method: str, images: Path, tmp_path: Path) -> None:
    done = go(method, images, tmp_path / "run", "rounds=2", "evaluate.personal=false")
    assert [line["deployed"] for line in done.rounds] == [None, None]


def test_after_can_be_left_out(images: Path, tmp_path: Path) -> None:
    done = go("fedavg", images, tmp_path / "run", "rounds=1", "evaluate.after=false")
    assert done.summary["accuracy"]["after"] is None


def test_a_client_without_test_images_has_no_score(images: Path, tmp_path: Path) -> None:
    data = read_npz(images, 0.25, 0)
    train, test = np.flatnonzero(~data.test), np.flatnonzero(data.test)
    partition = Partition("mine", tuple(np.array_split(train, 4)), (test[:0], *np.array_split(test, 3)))
    partition.save(tmp_path / "partition.json", data)
    where = f"partition.name=file:{tmp_path / 'partition.json'}"
    done = go("pfedpt", images, tmp_path / "run", "rounds=1", where, "data.test_fraction=0.25")
    accuracy = done.summary["accuracy"]
    assert accuracy["per_client"][0] is None
    assert accuracy["mean"] == pytest.approx(np.mean(accuracy["per_client"][1:]))


def test_a_run_without_any_test_images_still_trains(images: Path, tmp_path: Path) -> None:
    done = go("fedavg", images, tmp_path / "run", "rounds=1", "data.test_fraction=0")
    assert done.summary["accuracy"]["per_client"] == [None] * 4


def test_stacked_and_one_by_one_agree(images: Path, tmp_path: Path) -> None:
    words = ("partition.name=dirichlet", "partition.alpha=0.3", "per_round=3", "fleet.precision=fp32")
    one, many = (
        go("pfedpt", images, tmp_path / name, *words, f"fleet.name={name}") for name in ("one-by-one", "stacked")
    )
    assert [line["loss"] for line in one.rounds] == pytest.approx([line["loss"] for line in many.rounds], rel=1e-4)
    assert [line["images"] for line in one.rounds] == [line["images"] for line in many.rounds]


# -- starting -----------------------------------------------------------------------------------------------------


def test_a_run_builds_its_loop_once(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Loop] = []
    build = Loop.__init__

    def counted(loop: Loop, *given: Any) -> None:
        made.append(loop)
        build(loop, *given)

    monkeypatch.setattr(Loop, "__init__", counted)
    go("fedavg", images, tmp_path / "run")
    assert len(made) == 1


def test_what_does_not_fit_the_images_is_said_before_anything_is_written(images: Path, tmp_path: Path) -> None:
    with pytest.raises(PromptFedError, match="A frame of 5 pixels per side does not fit 8×8 images"):
        go("pfedpt", images, tmp_path / "run", "method.size=5")
    assert not (tmp_path / "run").exists()


def test_only_runs_on_a_users_own_images_have_a_private_folder(done: Result, tmp_path: Path) -> None:
    assert done.folder.stat().st_mode & 0o777 == 0o700
    words = tiny(tmp_path, "data.name=fashion-shops", "rounds=1", "data.limit=1")
    shared = run("fedavg", out=tmp_path / "shared", overrides=tuple(words))
    assert shared.folder.stat().st_mode & 0o055 == 0o055
