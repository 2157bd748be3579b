"""FedAPT's tables: their settings, and the figures in print that stand in several of them."""

from typing import Any

import pytest

from promptfed.methods.fedapt import FedAPT
from promptfed.papers.reproduce import find_table
from promptfed.runs import config, registry

TABLES = registry.tables()
FEDAPT = [name for name in TABLES if name.startswith("fedapt/")]


def test_every_table_of_fedapt_is_there() -> None:
    sizes = {"t1-domainnet": 9, "t1-office": 10, "t2-30clients": 12, "t3-unsup": 12, "t4-keys": 8, "t5-localkey": 2}
    sizes |= {"t6-unseen": 3, "fig2-inference": 6}
    sizes |= {"office-t2": 15, "office-t3-stages": 36, "office-t4": 6, "office-t5": 2, "office-t6": 12}
    sizes |= {
        "shops-t1": 8,
        "shops-t2": 12,
        "shops-t3": 16,
        "shops-t3-stages": 36,
        "shops-t4": 6,
        "shops-t5": 2,
        "shops-t6": 3,
        "shops-fig2": 6,
    }
    assert {name: len(find_table(name).cells()) for name in FEDAPT} == {f"fedapt/{k}": v for k, v in sizes.items()}


@pytest.mark.parametrize("name", [name for name in FEDAPT if name.startswith("fedapt/t") or "fig2-inf" in name])
def test_the_setting_of_fedapt(name: str) -> None:
    for cell in find_table(name).cells().values():
        (recipe,) = config.expand(cell.recipe, [], cell.name)
        method, office = recipe.method, recipe.data["name"] == "office-caltech10"
        assert recipe.rounds == (30 if method.get("mode") == "unsupervised" else 50)
        network = "microsoft/resnet-50" if "resnet" in method["name"] else "openai/clip-vit-base-patch32"
        assert (recipe.backbone["weights"], recipe.backbone["size"]) == (network, 224)
        assert office or (recipe.data["truncate"], recipe.data["validate"]) == (False, False)
        if method["name"] == "clip-zs":
            continue
        rates = {key: method[key] for key in ("lr", "epochs", "momentum", "weight_decay")}
        assert rates == {"lr": 0.001 if office else 0.01, "epochs": 1, "momentum": 0.9, "weight_decay": 1e-5}
        assert method["batch"] == (32 if office else 512 if recipe.rounds == 30 else 256)


@pytest.mark.parametrize("name", [name for name in FEDAPT if "shops" in name])
def test_anyone_can_run_the_shops(name: str) -> None:
    for cell in find_table(name).cells().values():
        (recipe,) = config.expand(cell.recipe, [], cell.name)
        rounds = 30 if name.startswith("fedapt/shops-t3") else 50
        assert (recipe.data["name"], recipe.backbone["weights"], recipe.rounds) == ("fashion-shops", "embedded", rounds)
        assert cell.figure is None


@pytest.mark.parametrize("name", [name for name in FEDAPT if "/office" in name])
def test_the_four_cameras_in_the_setting_of_table_1(name: str) -> None:
    table, cameras = find_table(name), {"amazon", "caltech", "dslr", "webcam"}
    (first, *_), stages = config.load("fedapt/t1-office/fedapt"), name == "fedapt/office-t3-stages"
    for cell in table.cells().values():
        (recipe,) = config.expand(cell.recipe, [], cell.name)
        assert (recipe.data, recipe.backbone) == (first.data, first.backbone)
        assert {title.removesuffix(" (unseen)") for title in cell.column.clients} == cameras
        assert recipe.rounds == (30 if stages else 50)
        assert cell.figure is None
        if cell.row.name != "clip-zs":
            assert (recipe.method["lr"], recipe.method["batch"]) == (0.01, 64 if stages else 32)
            assert stages or cell.row.tune == {"method.lr": (0.1, 0.03, 0.01, 0.003, 0.001)}
            unlike = {key for key, value in recipe.method.items() if value != first.method.get(key)}
            assert stages or recipe.method["name"] != "fedapt" or unlike <= {"lr", "domains", *FedAPT().traits.testing}


def test_fedapt_with_mixed_keys_is_the_same_training() -> None:
    one, mixed = (config.load(f"fedapt/t1-office/{row}")[0].method for row in ("fedapt", "fedapt-tau1"))
    assert mixed == {**one, "tau": 1.0} != one


@pytest.mark.parametrize(("name", "domains"), [("t4-keys", 6), ("shops-t4", 4), ("office-t4", 4)])
def test_one_row_for_every_key(name: str, domains: int) -> None:
    settings = [row.recipe["method"] for row in find_table(f"fedapt/{name}").rows]
    assert [one["test_key"] for one in settings] == ["none", *["fixed"] * domains, "adaptive"]
    assert [one["fixed_key"] for one in settings[1:-1]] == list(range(domains))


def test_fedapts_figures_stand_in_two_tables() -> None:
    places = [("t1-domainnet", "fedapt"), ("t4-keys", "eq5")]
    figures = [find_table(f"fedapt/{name}").cells()[row].figure for name, row in places]
    assert figures[0] is not None
    assert figures[1] is not None
    for two, one in zip(figures[0].clients, figures[1].clients, strict=True):
        assert 0 <= two - one < 0.1  # the other table cuts off the second digit


def test_what_fedapts_tables_measure() -> None:
    wanted = {"t2-30clients": "deployed", "t3-unsup": "deployed", "t5-localkey": "trained", "t6-unseen": "deployed"}
    wanted |= {
        "shops-t2": "deployed",
        "shops-t3": "deployed",
        "shops-t3-stages": "deployed",
        "shops-t5": "trained",
        "shops-t6": "deployed",
        "office-t2": "deployed",
        "office-t3-stages": "deployed",
        "office-t5": "trained",
        "office-t6": "unseen",
    }
    for name in FEDAPT:
        assert find_table(name).measures == (wanted.get(name.removeprefix("fedapt/"), "mean"),)


@pytest.mark.parametrize(
    ("name", "domains"),
    [("t2-30clients", 6), ("t3-unsup", 6), ("shops-t2", 4), ("shops-t3", 4), ("office-t2", 4), ("office-t3-stages", 4)],
)
def test_many_clients_take_part_one_per_domain(name: str, domains: int) -> None:
    many = (5 * domains, domains, "one-per-domain", "domain-dirichlet")
    for cell in find_table(f"fedapt/{name}").cells().values():
        (recipe,) = config.expand(cell.recipe, [], cell.name)
        drawn = (recipe.clients, recipe.per_round, recipe.sampling, recipe.partition["name"])
        assert drawn == ((domains, 0, "uniform", "domain") if cell.column.name == "domain" else many)
        assert recipe.method.get("domains", domains) == domains


@pytest.mark.parametrize("name", ["fig2-inference", "shops-fig2"])
def test_figure_2_is_one_training_read_in_many_ways(name: str) -> None:
    rows = [
        config.expand(cell.recipe, [], cell.name)[0].method for cell in find_table(f"fedapt/{name}").cells().values()
    ]
    assert all(_untested(one) == _untested(rows[0]) for one in rows)
    assert [(one["inference"], one["renorm"], one["tau"]) for one in rows] == [
        (inference, renorm, tau)
        for tau in (0.01, 1.0)
        for inference, renorm in (("exact", False), ("fast", False), ("fast", True))
    ]


def _untested(method: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in method.items() if key not in FedAPT().traits.testing}


@pytest.mark.parametrize(("name", "domains"), [("t6-unseen", 5), ("shops-t6", 3), ("office-t6", 3)])
def test_the_unseen_domain_is_the_last_column(name: str, domains: int) -> None:
    table = find_table(f"fedapt/{name}")
    for cell in table.cells().values():
        (recipe,) = config.expand(cell.recipe, [], cell.name)
        assert cell.column.clients[-1] == f"{recipe.partition['unseen']} (unseen)"
        assert recipe.clients == recipe.method.get("domains", domains) == domains == len(cell.column.clients) - 1
