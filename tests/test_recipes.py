"""Every recipe that ships can be read, resolved and understood."""

import tomllib
from pathlib import Path
from statistics import mean

import pytest

from promptfed import config
from promptfed.cells import SUFFIX
from promptfed.reproduce import find_table

EVERYTHING = config.recipes()
RECIPES = {name: path for name, path in EVERYTHING.items() if not path.name.endswith(SUFFIX)}
CELLS = [name for name in EVERYTHING if name not in RECIPES]
TABLES = config.tables()
TEN = ["singleset-full", "singleset-vpt", "fedavg", "per-fedavg", "fedrep", "fedrod", "fedbabu", "fedvpt", "fedvpt-d"]
TEN.append("pfedpg")


def test_there_are_some() -> None:
    assert {"demo/local", "demo/fedavg", "demo/pfedpt"} <= set(RECIPES)


def test_file_names_are_unique_and_speak_for_themselves() -> None:
    assert len({path.resolve() for path in RECIPES.values()}) == len(RECIPES)
    assert all(name == name.lower() and name.count("/") == 1 and " " not in name for name in RECIPES)


@pytest.mark.parametrize("name", RECIPES)
def test_it_resolves(name: str) -> None:
    (recipe,) = config.load(name)
    (again,) = config.load(str(RECIPES[name]))
    assert recipe == again
    config.build_method(recipe)


@pytest.mark.parametrize("name", RECIPES)
def test_it_says_what_it_is(name: str) -> None:
    first = RECIPES[name].read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# ")
    assert first.endswith(".")


@pytest.mark.parametrize("name", RECIPES)
def test_what_it_asks_for_survives_resolving(name: str) -> None:
    given = tomllib.loads(Path(RECIPES[name]).read_text(encoding="utf-8"))
    resolved = config.flatten(config.load(name)[0])
    for key, value in given.items():
        for inner, wanted in (value if isinstance(value, dict) else {"": value}).items():
            if inner == "preset":
                continue
            found = resolved[f"{key}.{inner}" if inner else key]
            assert (list(found) if isinstance(found, tuple) else found) == wanted


def test_the_demo_is_one_comparison() -> None:
    local, fedavg, pfedpt = (config.load(f"demo/{name}")[0] for name in ("local", "fedavg", "pfedpt"))
    for key in ("seed", "rounds", "clients", "per_round", "data", "partition", "backbone"):
        assert getattr(local, key) == getattr(fedavg, key) == getattr(pfedpt, key)


# -- tables of papers -------------------------------------------------------------------------------------------------


def test_every_table_of_pfedpg_is_there() -> None:
    sizes = {"t1-domainnet": 12, "t1-office": 12, "t2-cifar": 48, "t3-dermoscopic": 12, "t4-generator": 20, "t5-k": 24}
    assert {name: len(find_table(name).cells()) for name in TABLES} == {f"pfedpg/{k}": v for k, v in sizes.items()}
    assert len(CELLS) == sum(sizes.values())


@pytest.mark.parametrize("name", CELLS)
def test_a_cell_is_a_recipe(name: str) -> None:
    (recipe,) = config.load(name, ["seed=1"])
    assert (recipe.seed, recipe.rounds, recipe.per_round) == (1, 100, 0)
    assert (recipe.backbone["weights"], recipe.backbone["size"]) == ("google/vit-base-patch16-224-in21k", 224)
    settings = {key: recipe.method[key] for key in ("epochs", "batch", "momentum", "weight_decay")}
    assert settings == {"epochs": 5, "batch": 64, "momentum": 0.9, "weight_decay": 1e-3}
    prompted = recipe.method["name"] in ("fedvpt", "fedvpt-d", "singleset-vpt", "pfedpg", "head-probe")
    assert recipe.method["lr"] == (0.25 if prompted else 0.01)
    config.build_method(recipe)


@pytest.mark.parametrize("name", CELLS)
def test_a_cell_says_what_it_is(name: str) -> None:
    about, keys = config.describe(name)
    assert about.endswith(".")
    assert "\n" not in about
    assert keys["method"]["name"]


def test_a_recipe_says_what_it_is_too() -> None:
    about, keys = config.describe("demo/fedavg")
    assert about == RECIPES["demo/fedavg"].read_text().splitlines()[0].removeprefix("# ")
    assert keys == tomllib.loads(RECIPES["demo/fedavg"].read_text())


@pytest.mark.parametrize("name", TABLES)
def test_the_papers_figures_agree_with_each_other(name: str) -> None:
    for cell in find_table(name).cells().values():
        if cell.figure is not None and cell.figure.clients:
            assert cell.figure.mean == pytest.approx(mean(cell.figure.clients), abs=0.0101)


def test_one_figure_stands_in_several_tables() -> None:
    means = {
        f"{name}/{cell}": found.figure.mean
        for name in TABLES
        for cell, found in find_table(name).cells().items()
        if found.figure
    }
    for column, table in {"office": "t1-office", "domainnet": "t1-domainnet"}.items():
        for method, other in {"pfedpg": "pfedpg", "fedvpt": "fedvpt"}.items():
            assert means[f"pfedpg/{table}/{method}"] == means[f"pfedpg/t4-generator/{column}/{other}"]
        assert means[f"pfedpg/{table}/pfedpg"] == means[f"pfedpg/t5-k/{column}/k10"]
    for data in ("c10", "c100"):
        best = f"pfedpg/t2-cifar/{data}"
        assert means[f"{best}-disjoint/pfedpg"] == means[f"pfedpg/t4-generator/{data}-disjoint/pfedpg"]
        assert means[f"{best}-dirichlet/pfedpg"] == means[f"pfedpg/t5-k/{data}-dirichlet/k10"]


@pytest.mark.parametrize("name", TABLES)
def test_every_row_has_the_same_budget_for_tuning(name: str) -> None:
    grids = {tuple(map(len, row.tune.values())) for row in find_table(name).rows}
    assert grids == {(4,)}


@pytest.mark.parametrize("name", ["t1-office", "t1-domainnet", "t2-cifar", "t3-dermoscopic"])
def test_the_ten_methods_and_our_two_rows(name: str) -> None:
    table = find_table(f"pfedpg/{name}")
    assert [row.name for row in table.rows] == [*TEN, "pfedpg-adam", "head-probe"]
    for row in table.rows:
        assert row.recipe["method"]["name"] == row.name.removesuffix("-adam")
        assert set(row.paper) == ({column.name for column in table.columns} if row.name in TEN else set())


@pytest.mark.parametrize("name", TABLES)
def test_a_table_says_what_it_is(name: str) -> None:
    table = find_table(name)
    first = TABLES[name].read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# ")
    assert first.endswith(".")
    assert "ICCV 2023" in table.paper
    assert all(sentence.endswith(".") for sentence in (*table.notes, *table.deviations))
