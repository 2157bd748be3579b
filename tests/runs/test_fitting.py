"""The partition and the number of clients, where a recipe leaves them to its data."""

from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from promptfed.core.errors import PromptFedError
from promptfed.data import open_dataset
from promptfed.data.facts import find_domains
from promptfed.results.folder import names
from promptfed.runs import config, fitting, resuming
from promptfed.runs.config import Recipe
from promptfed.runs.runner import run
from support.command import promptfed, sentence
from support.photographs import put_sites
from support.tiny_runs import BACKBONE

PATHOLOGICAL = {"name": "pathological", "classes_per_client": 5}


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMPTFED_HOME", str(tmp_path / "home"))


def one(*words: str) -> Recipe:
    return config.load_one("fedavg", words)


# -- clients of a domain partition --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "clients"),
    [
        (["data.name=fashion-shops"], 4),
        (["partition.unseen=sketch"], 3),
        (["data.name=office-caltech10"], 4),
        (["data.name=domainnet"], 6),
        (["data.name=dermoscopic-fl"], 3),
        (["data.name=dermoscopic-fl", "data.sites=ABCD"], 4),
        (["newcomers=1"], 4),
        (["clients=20"], 20),
    ],
)
def test_a_domain_partition_has_a_client_per_domain(words: Sequence[str], clients: int) -> None:
    assert one("partition.name=domain", *words).clients == clients


def test_the_recipe_is_the_one_that_says_so() -> None:
    told, found = one("partition.name=domain", "clients=4"), one("partition.name=domain")
    assert (told, told.hash, told.to_toml()) == (found, found.hash, found.to_toml())


def test_a_file_may_leave_the_number_out(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[method]\nname = "fedavg"\n[partition]\nname = "domain"\n')
    assert config.load_one(str(path)).clients == 4
    path.write_text(f"clients = 8\n{path.read_text()}")
    assert config.load_one(str(path)).clients == 8


def test_domains_of_arrays(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    x, y = np.zeros((6, 8, 8, 3), np.uint8), np.arange(6) % 2
    np.savez(path, x=x, y=y, domain=np.arange(6) // 2)
    assert one(f"data.name=npz:{path}", "partition.name=domain").clients == 3
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y, domain_train=y, domain_test=y, domain_names=["n", "s"])
    assert find_domains(f"npz:{path}") == ("n", "s") == open_dataset(f"npz:{path}").domain_names
    assert one(f"data.name=npz:{path}", "partition.name=domain").clients == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["data.name=cifar10"], 'Data set "cifar10" has one domain, .* or set clients=1.'),
        (["data.name=cifar10", "partition.unseen=cifar10"], 'has no domain besides "cifar10"'),
        (["partition.unseen=sketsh"], 'Unknown domain "sketsh" in data set "fashion-shops"; did you mean "sketch"?'),
        (["per_round=5"], "per_round=5 is more than clients=4."),
        (["data.limitt=3"], "data.limitt"),
        (["partition.alpha=3"], "partition.alpha"),
    ],
)
def test_what_has_no_clients_is_refused(words: Sequence[str], said: str) -> None:
    with pytest.raises(PromptFedError, match=said.replace("?", r"\?")):
        one("partition.name=domain", *words)


def test_a_sweep_fits_every_run_of_its_own() -> None:
    recipes = config.load("fedavg", ['partition.name=["domain","iid"]'])
    assert [(recipe.partition["name"], recipe.clients) for recipe in recipes] == [("domain", 4), ("iid", 20)]


# -- folders of photographs ---------------------------------------------------------------------------------------


def test_sites_are_clients(tmp_path: Path) -> None:
    root = put_sites(tmp_path / "pets", ["north", "south", "west"])
    recipe = one(f"data.name=folder:{root}")
    assert (recipe.partition, recipe.clients) == ({"name": "domain", "unseen": ""}, 3)
    assert recipe == one(f"data.name=folder:{root}", "partition.name=domain", "clients=3")
    assert one(f"data.name=folder:{root}", "clients=3") == recipe


@pytest.mark.parametrize(
    ("words", "partition", "clients"),
    [
        (["clients=8"], "pathological", 8),
        (["partition.name=iid"], "iid", 20),
        (["partition.classes_per_client=2"], "pathological", 20),
        (["partition.name=domain-dirichlet", "clients=6"], "domain-dirichlet", 6),
    ],
)
def test_what_is_given_stays(tmp_path: Path, words: Sequence[str], partition: str, clients: int) -> None:
    root = put_sites(tmp_path / "pets", ["north", "south", "west"])
    recipe = one(f"data.name=folder:{root}", *words)
    assert (recipe.partition["name"], recipe.clients) == (partition, clients)


def test_sites_under_train_and_test_are_counted_once(tmp_path: Path) -> None:
    root = tmp_path / "pets"
    for part in ("train", "test"):
        put_sites(root / part, ["north", "south"])
    assert one(f"data.name=folder:{root}").clients == 2
    assert find_domains(f"folder:{root}") == open_dataset(f"folder:{root}").domain_names


@pytest.mark.parametrize(
    ("classes", "each", "partition", "clients"),
    [
        ("abc", 20, "dirichlet", 6),
        ("abcdef", 20, "pathological", 12),
        ("abcdef", 40, "pathological", 20),
        ("ab", 2, "dirichlet", 1),
    ],
)
def test_without_sites(tmp_path: Path, classes: str, each: int, partition: str, clients: int) -> None:
    root = put_sites(tmp_path / "pets", [""], classes, each)
    recipe = one(f"data.name=folder:{root}")
    assert (recipe.partition["name"], recipe.clients) == (partition, clients)
    assert one(f"data.name=folder:{root}", "clients=2").clients == 2


def test_a_method_with_a_partition_of_its_own_keeps_it(tmp_path: Path) -> None:
    flat = put_sites(tmp_path / "flat", [""])
    assert config.load_one("relic", [f"data.name=folder:{flat}"]).partition["name"] == "equal"


def test_a_folder_that_is_elsewhere_is_left_to_the_sites(tmp_path: Path) -> None:
    recipe = one(f"data.name=folder:{tmp_path / 'gone'}")
    assert (recipe.partition, recipe.clients) == (PATHOLOGICAL, 20)


def test_no_folder_is_listed_for_a_recipe_that_says_everything(tmp_path: Path) -> None:
    root = put_sites(tmp_path / "pets", ["north", "south"])
    text = one(f"data.name=folder:{root}").to_toml()
    (tmp_path / "recipe.toml").write_text(text)
    with mock.patch.object(fitting, "find_dataset", side_effect=AssertionError):
        assert config.load_one(str(tmp_path / "recipe.toml")).to_toml() == text


# -- whole runs ---------------------------------------------------------------------------------------------------


def words_of(root: Path, *more: str) -> list[str]:
    backbone = [f"backbone.{key}={value}" for key, value in BACKBONE.items()]
    return [f"data.name=folder:{root}", "data.size=8", "method.epochs=1", "device=cpu", *backbone, *more]


def test_a_run_is_resumed_with_the_same_words_or_none(tmp_path: Path) -> None:
    root, folder = put_sites(tmp_path / "pets", ["north", "south"]), tmp_path / "run"
    run("fedavg", overrides=tuple(words_of(root, "rounds=1")), out=folder)
    assert "clients = 2\n" in (folder / names.RECIPE).read_text()
    assert len(run("fedavg", overrides=tuple(words_of(root, "rounds=2")), resume=folder).rounds) == 2
    assert promptfed("run", "--resume", folder, "rounds=3").code == 0
    put_sites(root, ["east"])
    said = sentence(promptfed("run", "--resume", folder, "fedavg", *words_of(root, "rounds=3")))
    assert "was run with clients=2, not 3" in said
    assert len(resuming.resume(folder).rounds) == 3


def test_a_sweep_is_resumed(tmp_path: Path) -> None:
    root, out = put_sites(tmp_path / "pets", ["north", "south"]), tmp_path / "runs"
    words = ["run", "fedavg", *words_of(root, "rounds=1", "seed=[0,1]"), "--out", out]
    for _ in range(2):
        assert promptfed(*words).code == 0
    texts = [path.read_text() for path in sorted(out.glob(f"*/{names.RECIPE}"))]
    assert len(texts) == 2
    assert all("clients = 2\n" in text for text in texts)
