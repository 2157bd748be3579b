"""The field's tables: one protocol, the same effort for every method, and each method where it is defined."""

import pytest

from promptfed.core.errors import PromptFedError
from promptfed.papers.reproduce import find_table
from promptfed.runs import config, registry
from promptfed.runs.cells import TableCell

FIELD = [name for name in registry.tables() if name.startswith("field/")]
OPEN = ["clip-zs", "coop-local", "promptfl", "fedclip", "promptfolio", "fedkgcoop", "fedpgp", "trip"]
LATER = ["fedmgp", "fedpha"]  # in the tables with CLIP ViT-B/16 alone, whose cells are not filled
CLOSED = ["head-probe", "shared-head", "class-shares", "fedvpt", "pfedpg"]
NOVEL = ["field/s3-novel", "field/shops-novel"]
DOMAINS = ["field/s5-domains", "field/shops-domains"]


def cells(name: str) -> list[TableCell]:
    return list(find_table(name).cells().values())


def test_every_table_of_the_field_is_there() -> None:
    sizes = {"s2-personal": 45, "s3-novel": 10, "s5-domains": 32, "shops-novel": 8, "shops-domains": 28}
    assert {name: len(cells(name)) for name in FIELD} == {f"field/{name}": size for name, size in sizes.items()}


@pytest.mark.parametrize("name", FIELD)
def test_one_protocol_and_one_encoder(name: str) -> None:
    small = "shops" in name
    for cell in cells(name):
        (recipe,) = config.expand(cell.recipe, [], cell.name)
        method = recipe.method
        wanted = ("embedded", 0) if small else ("openai/clip-vit-base-patch16", 224)
        assert (recipe.backbone["name"], recipe.backbone["weights"], recipe.backbone["size"]) == ("clip", *wanted)
        assert (recipe.data["name"] == "fashion-shops") == small
        if cell.row.name != "clip-zs":
            rates = {key: method[key] for key in ("epochs", "batch", "momentum", "weight_decay")}
            assert rates == {"epochs": 1, "batch": 32, "momentum": 0.9, "weight_decay": 5e-4}
            assert method.get("optimiser", "sgd") == ("adam" if cell.row.name == "pfedpg" else "sgd")  # its server's
            assert method["lr"] in cell.row.tune["method.lr"]
        if "tokens" in method:
            others = {"fedvpt": 10, "pfedpg": 10, "class-shares": 0, "fedmgp": 2}
            assert method["tokens"] == others.get(cell.row.name, 16)
        assert method.get("csc", False) is False
        assert cell.figure is None


@pytest.mark.parametrize("name", FIELD)
def test_every_method_where_it_is_defined(name: str) -> None:
    rows = [row.name for row in find_table(name).rows]
    wanted = {*OPEN} if name in NOVEL else {*OPEN, *CLOSED, *(["fedapt"] if name in DOMAINS else [])}
    assert set(rows) == wanted | ({*LATER} if "shops" not in name else set())
    for row in set(rows) & {*OPEN, *LATER, "fedapt", "head-probe"} - {"coop-local"}:
        (settings,) = (one.recipe["method"] for one in find_table(name).rows if one.name == row)
        assert settings["name"] == row


@pytest.mark.parametrize("name", NOVEL)
def test_base_to_novel(name: str) -> None:
    table = find_table(name)
    assert table.measures == ("mean", "own-names", "base", "novel", "hm", "cm")
    for cell in cells(name):
        (recipe,) = config.expand(cell.recipe, [], cell.name)
        assert (recipe.data["half"], recipe.partition["name"]) == ("base", "disjoint-random")
        assert recipe.evaluate["sets"] == "own-names+base+novel"


@pytest.mark.parametrize("row", [*CLOSED, "fedapt"])
def test_who_is_left_out_of_novel_classes_would_be_refused(row: str) -> None:
    (closed,) = (one for one in find_table("field/shops-domains").rows if one.name == row)
    novel = cells("field/shops-novel")[0].recipe
    with pytest.raises(PromptFedError, match=r"has no answer for classes that training never named"):
        config.expand({**novel, "method": closed.recipe["method"]}, [], row)


@pytest.mark.parametrize("name", DOMAINS)
def test_domains_once_each_and_five_times_each(name: str) -> None:
    one, five = find_table(name).columns
    assert (len(one.clients), one.recipe["clients"], five.recipe["clients"]) == (4, 4, 20)
    assert five.recipe["partition"] == {"name": "domain-dirichlet", "alpha": 0.3}
    assert all(row.recipe["method"].get("domains", 4) == 4 for row in find_table(name).rows)


def test_own_labels() -> None:
    table = find_table("field/s2-personal")
    assert table.measures == ("mean", "worst", "p10")
    settings = {}
    for column in table.columns:
        (recipe,) = config.expand(table.cells()[f"{column.name}/promptfl"].recipe, [], column.name)
        settings[column.name] = recipe.clients, recipe.per_round, recipe.rounds
    assert settings == {"dir01": (100, 10, 100), "dir05": (100, 10, 100), "disjoint": (10, 0, 50)}


def test_a_context_of_ones_own_is_promptfolio_with_all_of_its_share() -> None:
    for name in FIELD:
        (row,) = (one for one in find_table(name).rows if one.name == "coop-local")
        assert (row.recipe["method"]["name"], row.recipe["method"]["theta"]) == ("promptfolio", 1.0)
