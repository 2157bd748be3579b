"""What a run is started from: a recipe, a method's name, a method object; and that a seed decides it."""

import json
from pathlib import Path
from typing import Any

import pytest

from promptfed.core.errors import PromptFedError
from promptfed.runs import config
from promptfed.runs.config import Recipe
from promptfed.runs.runner import Result, run
from support.averaged import Averaged
from support.tiny_runs import BACKBONE, plain, tiny, write_images


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images") / "tiny.npz")


@pytest.fixture(scope="module")
def done(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Result:
    words = tiny(images, "per_round=2", "method.prompt_epochs=1", "partition.name=dirichlet", "partition.alpha=0.5")
    return run("pfedpt", out=tmp_path_factory.mktemp("done") / "run", overrides=tuple(words))


def go(method: str, images: Path, out: Path, *more: str) -> Result:
    return run(method, out=out, overrides=tuple(tiny(images, *more)))


# -- what it returns ----------------------------------------------------------------------------------------------


def test_a_result_shows_itself_and_never_fails_to(images: Path, tmp_path: Path) -> None:
    result = go("fedavg", images, tmp_path / "run", "rounds=1")
    shown = result._repr_html_()
    assert shown is not None
    assert "<td>fedavg</td>" in shown
    assert result._repr_markdown_() == result.table()
    assert repr(result).startswith(f"<{result.folder}: fedavg on npz:")
    (result.folder / "rounds.jsonl").unlink()
    assert (result._repr_html_(), result._repr_markdown_()) == (None, None)
    assert repr(result) == f"<{result.folder}, which is no longer there>"


# -- what a run is started from -----------------------------------------------------------------------------------


def test_nested_changes_are_recipe_keys(images: Path, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"data": {"name": f"npz:{images}"}, "backbone": BACKBONE, "partition": {"name": "iid"}}
    done = run("fedavg", out=tmp_path / "a", rounds=2, clients=3, method={"epochs": 1, "lr": 0.01}, **changes)
    stored = config.load(str(done.folder / "recipe.toml"))[0]
    assert (stored.clients, stored.method["lr"], stored.backbone["width"]) == (3, 0.01, 8)
    words = (*tiny(images), "clients=3", "rounds=2", "method.lr=0.01")
    same = run("fedavg", out=tmp_path / "b", overrides=words)
    assert plain(same.rounds) == plain(done.rounds)


def test_a_recipe_runs(images: Path, tmp_path: Path) -> None:
    (recipe,) = config.load("fedavg", tiny(images, "rounds=2"))
    done = run(recipe, out=tmp_path / "run")
    assert (done.summary["recipe_hash"], len(done.rounds)) == (recipe.hash, 2)


def test_a_recipe_made_by_hand_runs(images: Path, tmp_path: Path) -> None:
    recipe = Recipe(
        rounds=1,
        clients=4,
        method={"name": "fedavg", "epochs": 1},
        data={"name": f"npz:{images}"},
        partition={"name": "iid"},
        backbone=BACKBONE,
    )
    assert run(recipe, out=tmp_path / "run").summary["rounds"] == 1


def test_changes_to_a_recipe_are_not_lost(images: Path, tmp_path: Path) -> None:
    (recipe,) = config.load("fedavg", tiny(images))
    try:
        done = run(recipe, out=tmp_path / "run", rounds=1)
    except PromptFedError:
        return
    assert done.summary["rounds"] == 1


def test_a_method_object_runs(images: Path, tmp_path: Path) -> None:
    done = run(Averaged(lr=0.01), out=tmp_path / "run", overrides=tuple(tiny(images, "rounds=2")))
    assert done.summary["method"] == "support.averaged:Averaged"
    stored = config.load(str(done.folder / "recipe.toml"))[0]
    assert stored.method == {"name": "support.averaged:Averaged", "lr": 0.01, "epochs": 1}
    again = run(
        "support.averaged:Averaged", out=tmp_path / "b", overrides=(*tiny(images, "rounds=2"), "method.lr=0.01")
    )
    assert plain(again.rounds) == plain(done.rounds)


def test_a_method_object_resumes(images: Path, tmp_path: Path) -> None:
    words = tuple(tiny(images))
    first = run(Averaged(), out=tmp_path / "run", overrides=(*words, "rounds=2"))
    more = run(Averaged(), resume=first.folder, overrides=words)
    straight = run(Averaged(), out=tmp_path / "straight", overrides=words)
    assert more.summary["accuracy"] == straight.summary["accuracy"]
    with pytest.raises(PromptFedError, match=r"was run with method\.lr=0\.05, not 0\.2"):
        run(Averaged(lr=0.2), resume=first.folder, overrides=words)


def test_the_headline_is_the_model_a_client_deploys(images: Path, tmp_path: Path) -> None:
    unequal = ("partition.name=pathological", "partition.classes_per_client=1")
    words = tuple(tiny(images, "rounds=1", "method.lr=0.1", "method.epochs=6", *unequal))
    accuracy = run(Averaged(), out=tmp_path / "run", overrides=words).summary["accuracy"]
    # deploying here means one more local training, which is what "after" measures
    assert accuracy["per_client"] == accuracy["after"]["per_client"]
    assert accuracy["per_client"] != accuracy["before"]["per_client"]


def test_a_class_is_no_method_yet() -> None:
    with pytest.raises(PromptFedError, match=r"^Run a method's object, not its class: give Averaged\(\)\.$"):
        run(Averaged)  # type: ignore[arg-type]


def test_a_sweep_is_not_one_run(images: Path, tmp_path: Path) -> None:
    with pytest.raises(PromptFedError, match="sweep of 2 runs"):
        run("fedavg", out=tmp_path / "run", overrides=(*tiny(images), "seed=[0,1]"))
    assert not (tmp_path / "run").exists()


def test_default_folders_are_numbered(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / "own.npz")
    words = tuple(tiny(Path("own.npz"), "rounds=1"))
    folders = [run("local", overrides=words).folder for _ in range(2)]
    assert folders == [Path("runs/local-npz_own.npz-1"), Path("runs/local-npz_own.npz-2")]


# -- seeds and partitions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedavg", "pfedpt"])
def test_a_seed_decides_everything(method: str, images: Path, tmp_path: Path) -> None:
    words = ("rounds=2", "per_round=2", "method.lr=0.05")
    first, again = (go(method, images, tmp_path / name, *words) for name in "ab")
    other = go(method, images, tmp_path / "c", *words, "seed=1")
    assert plain(first.rounds) == plain(again.rounds)
    assert first.summary["accuracy"] == again.summary["accuracy"]
    assert plain(first.rounds) != plain(other.rounds)
    assert first.summary["partition_hash"] != other.summary["partition_hash"]


def test_a_saved_partition_is_used_again(done: Result, images: Path, tmp_path: Path) -> None:
    path = done.folder / "partition.json"
    other = go("local", images, tmp_path / "run", "rounds=1", "seed=7", f"partition.name=file:{path}")
    assert other.summary["partition_hash"] == done.summary["partition_hash"]
    clients = [json.loads((one.folder / "partition.json").read_text())["clients"] for one in (done, other)]
    assert clients[0] == clients[1]
