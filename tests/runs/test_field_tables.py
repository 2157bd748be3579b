"""The field's tables: one protocol, the same effort for every method, and each method where it is defined."""

from pathlib import Path

import pytest

from promptfed.core.errors import PromptFedError
from promptfed.data.facts import find_domains
from promptfed.papers.plan import cell_recipe
from promptfed.papers.reproduce import find_table
from promptfed.runs import config, registry
from promptfed.runs.cells import PaperTable, TableCell
from promptfed.runs.checks import toy_loop

FIELD = [name for name in registry.tables() if name.startswith("field/")]
SIZES = {
    "s1-global": (20, 4),
    "s2-personal": (33, 6),
    "s3-novel": (20, 4),
    "s4-shots": (20, 20),
    "s4-own-shots": (27, 5),
    "s5-domains": (34, 4),
    "s6-unseen": (21, 4),
    "s7-other-data": (17, 2),
    "s9-privacy": (24, 8),
    "s10-newcomers": (28, 2),
    "shops-global": (20, 1),
    "shops-personal": (27, 1),
    "shops-novel": (20, 1),
    "shops-shots": (20, 5),
    "shops-domains": (28, 2),
    "shops-unseen": (21, 2),
    "shops-privacy": (24, 8),
    "shops-newcomers": (28, 1),
}
NOVEL = ["field/s3-novel", "field/s4-shots", "field/shops-novel", "field/shops-shots"]
DOMAINS = ["field/s5-domains", "field/shops-domains"]
UNSEEN = ["field/s6-unseen", "field/shops-unseen"]
PRIVATE = ["field/s9-privacy", "field/shops-privacy"]
SGD = {"epochs": 1, "batch": 32, "momentum": 0.9, "weight_decay": 5e-4}
ADAM = {"epochs": 1, "batch": 32, "weight_decay": 0.01, "optimiser": "adam"}
LORA = ["fedit-lora", "ffa-lora", "fedsa-lora", "flora", "fedex-lora"]
TOKENS = {"fedvpt": 10, "fedvpt-d": 10, "pfedpg": 10, "pfedvpt": 0, "fedmaple": 2, "fedmgp": 2}
TOY = {"layers": 1, "depth": 2, "rank": 1}  # for two blocks


def cells(name: str) -> list[TableCell]:
    return list(find_table(name).cells().values())


def a_cell_per_row(name: str) -> list[TableCell]:
    """Return the last cell of every row; all cells are resolved elsewhere."""
    return list({cell.row.name: cell for cell in cells(name)}.values())


def rows(table: PaperTable) -> set[str]:
    return {row.name for row in table.rows}


def test_every_table_of_the_field_is_there() -> None:
    found = {name: find_table(name) for name in FIELD}
    assert {name: (len(one.rows), len(one.columns)) for name, one in found.items()} == {
        f"field/{name}": size for name, size in SIZES.items()
    }
    assert {one.statistics for one in found.values()} == {"promptfl"}


@pytest.mark.parametrize("name", FIELD)
def test_one_protocol_and_one_encoder(name: str) -> None:
    small = "shops" in name
    wanted = ("clip", "embedded", 0) if small else ("clip", "openai/clip-vit-base-patch16", 224)
    for cell in a_cell_per_row(name):
        (recipe,) = config.expand(cell.recipe, [], cell.name)
        method, kind = recipe.method, recipe.method["name"]
        other = ("vit", "facebook/dinov2-small", 224) if cell.row.name.endswith("-dinov2") else wanted
        assert (recipe.backbone["name"], recipe.backbone["weights"], recipe.backbone["size"]) == other
        assert (recipe.data["name"] == "fashion-shops") == small
        assert recipe.schedule.get("name", "constant") == "constant"
        if cell.row.name == "clip-zs":
            assert not cell.row.tune
            continue
        protocol = ADAM if kind in LORA else SGD if kind != "dp-fpl" else {**SGD, "epochs": None, "clipping": "example"}
        assert {key: method.get(key) for key in protocol} == protocol
        assert method.get("tokens", 16) == TOKENS.get(kind, 16)
        assert method.get("csc", False) is False
        assert method.get("span", find_table(name).base["rounds"]) == find_table(name).base["rounds"]
        assert cell.figure is None
        ((key, tried),) = cell.row.tune.items()
        assert len(tried) == 5
        assert recipe.flatten()[key] in tried
        assert (key == "guards.clip") == (name in PRIVATE and kind != "dp-fpl")


@pytest.mark.parametrize("row", [cell.row for cell in cells("field/shops-newcomers")], ids=lambda row: str(row.name))
def test_a_row_answers_what_its_method_can(row: object, tmp_path: Path) -> None:
    cell = next(one for one in cells("field/shops-newcomers") if one.row == row)
    settings = cell_recipe(cell, []).method
    smaller = [f"method.{key}={size}" for key, size in TOY.items() if settings.get(key)]
    method = config.build_method(cell_recipe(cell, smaller))
    loop = toy_loop(method, tmp_path / "run")
    server = bool(method.deploy(loop.task, loop.server)) and cell.row.name != "coop-local"  # which never trains it
    can = {"novel": method.traits.open, "mean": not method.traits.needs_rows, "server": server}
    assert cell.row.answers == {word for word, able in can.items() if able}


@pytest.mark.parametrize("name", FIELD)
def test_every_method_where_it_is_defined(name: str) -> None:
    table = find_table(name)
    everyone = {row.name: row for one in ("s5-domains", "s9-privacy") for row in find_table(f"field/{one}").rows}
    wanted = {
        row.name
        for row in everyone.values()
        if any(row.answers.issuperset(one.asks) and row.needs.issubset(one.gives) for one in table.columns)
    }
    assert rows(table) == wanted
    assert ("fedapt" in wanted) == any("domains" in one.gives for one in table.columns)


@pytest.mark.parametrize("name", NOVEL)
def test_base_to_novel(name: str) -> None:
    table = find_table(name)
    assert table.measures[:6] == ("mean", "own-names", "base", "novel", "hm", "cm")
    for cell in (table.cells()[table.cell_name(one.name, "clip-zs")] for one in table.columns):
        (recipe,) = config.expand(cell.recipe, [], cell.name)
        assert (recipe.data["half"], recipe.partition["name"]) == ("base", "disjoint-random")
        assert recipe.evaluate["sets"] == "own-names+base+novel"
        shots = cell.column.name.rpartition("s")[2] if "shots" in name else "4" if "shops" in name else "16"
        assert recipe.data["shots"] == int(shots)
        if "shops" not in name:
            # a client has a class at least: EuroSAT's base classes are five
            assert recipe.clients == (5 if recipe.data["name"] == "eurosat" else 10)


@pytest.mark.parametrize("row", sorted(rows(find_table("field/shops-domains")) - rows(find_table("field/shops-novel"))))
def test_who_is_left_out_of_novel_classes_would_be_refused(row: str) -> None:
    closed = find_table("field/shops-domains").cells()[f"shop/{row}"].recipe["method"]
    novel = cells("field/shops-novel")[0].recipe
    with pytest.raises(PromptFedError, match=r"has no answer for classes that training never named"):
        config.expand({**novel, "method": closed}, [], row)


@pytest.mark.parametrize("name", DOMAINS)
def test_domains_once_each_and_five_times_each(name: str) -> None:
    one, five, *_ = find_table(name).columns
    assert (len(one.clients), one.recipe["clients"], five.recipe["clients"]) == (4, 4, 20)
    assert five.recipe["partition"] == {"name": "domain-dirichlet", "alpha": 0.3}


def test_a_client_a_site_and_a_key_for_each() -> None:
    table = find_table("field/s5-domains")
    for column in (one for one in table.columns if one.recipe["partition"]["name"] == "domain"):
        (recipe,) = config.expand(table.cells()[f"{column.name}/fedapt"].recipe, [], column.name)
        domains = find_domains(recipe.data["name"])
        assert (column.clients, recipe.clients, recipe.method["domains"]) == (domains, len(domains), len(domains))


def test_a_column_of_another_data_set_has_its_own_grid() -> None:
    for name in ("s2-personal", "s4-shots", "s5-domains"):
        table = find_table(f"field/{name}")
        sets = {one.name: one.recipe.get("data", {}).get("name", table.base["data"]["name"]) for one in table.columns}
        for column in table.columns:
            assert sets[column.tune_on or table.tune_on] == sets[column.name]


@pytest.mark.parametrize("name", UNSEEN)
def test_an_unseen_domain_is_the_last_one_and_chooses_nothing(name: str) -> None:
    assert find_table(name).measures[0] == "unseen"
    for cell in (one for one in cells(name) if one.row.name in ("clip-zs", "fedapt")):
        (recipe,) = config.expand(cell.recipe, [], cell.name)
        assert cell.column.clients[-1] == f"{recipe.partition['unseen']} (unseen)"
        assert recipe.clients == recipe.method.get("domains", 3) == len(cell.column.clients) - 1


def test_own_labels() -> None:
    table = find_table("field/s2-personal")
    assert table.measures[:3] == ("mean", "worst", "p10")
    settings = {}
    for column in table.columns:
        (recipe,) = config.expand(table.cells()[f"{column.name}/promptfl"].recipe, [], column.name)
        settings[column.name] = recipe.clients, recipe.per_round, recipe.rounds
    assert settings == {
        "dir01": (100, 10, 100),
        "dir05": (100, 10, 100),
        "disjoint": (10, 0, 50),
        "c10-dir01": (100, 10, 100),
        "c10-dir05": (100, 10, 100),
        "people": (100, 10, 100),
    }


@pytest.mark.parametrize("name", [PRIVATE[1], pytest.param(PRIVATE[0], marks=pytest.mark.slow)])
def test_noise_is_as_much_as_its_epsilon_needs_and_no_more(name: str) -> None:
    accountant = pytest.importorskip("promptfed.federation.guards.accountant")
    for column in find_table(name).columns:
        wanted = column.name.rpartition("eps")[2]
        recipe = cell_recipe(next(one for one in cells(name) if one.column == column), [])
        noise = recipe.guards["noise"] if "mean" in column.asks else recipe.method["noise"]
        drawn = (recipe.clients, recipe.per_round) if recipe.per_round else None
        if not wanted.isdigit():
            assert not noise
            continue
        assert accountant.epsilon(noise, 1e-5, recipe.rounds, drawn) <= int(wanted)
        assert accountant.epsilon(noise - 0.02, 1e-5, recipe.rounds, drawn) > int(wanted)


def test_a_context_of_ones_own_is_promptfolio_with_all_of_its_share() -> None:
    for name in FIELD:
        for row in (one for one in find_table(name).rows if one.name == "coop-local"):
            assert (row.recipe["method"]["name"], row.recipe["method"]["theta"]) == ("promptfolio", 1.0)


def test_the_encoder_is_exchanged_and_is_part_of_the_fingerprint() -> None:
    every = find_table("field/s2-personal").cells()
    plain, own = every["disjoint/promptfl"], every["disjoint/sgpt-dinov2"]
    words = ["backbone.weights=somewhere/else", "backbone.size=112"]
    changed = cell_recipe(plain, words)
    assert (changed.backbone["weights"], changed.backbone["size"]) == ("somewhere/else", 112)
    assert changed.hash != cell_recipe(plain, []).hash
    assert cell_recipe(own, words) == cell_recipe(own, []), "a row with an encoder of its own keeps it"
    named = cell_recipe(own, [f"sgpt-dinov2:{word}" for word in words])
    assert named.backbone["weights"] == "somewhere/else"
    assert cell_recipe(plain, ["sgpt-dinov2:backbone.size=112"]) == cell_recipe(plain, [])
