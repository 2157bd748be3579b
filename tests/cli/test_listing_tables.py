"""What there is, by name, with the keys each thing takes."""

import io
import json
import tomllib
from collections.abc import Mapping

import pytest
from rich.console import Console

from promptfed.analysis.figures import FIGURES
from promptfed.backbones import BACKBONES
from promptfed.cli import listing_tables
from promptfed.data import DATASETS
from promptfed.data.partition import PARTITIONS
from promptfed.runs import config, registry

REGISTRIES: dict[str, Mapping[str, object]] = {
    "methods": registry.methods(),
    "datasets": DATASETS,
    "backbones": BACKBONES,
    "partitions": PARTITIONS,
    "recipes": registry.recipes(),
    "figures": FIGURES,
}


@pytest.mark.parametrize("kind", REGISTRIES)
def test_everything_is_listed_in_order(kind: str) -> None:
    names = [row["name"] for row in listing_tables.entries(kind)]
    assert names == (list(REGISTRIES[kind]) if kind == "recipes" else sorted(REGISTRIES[kind]))


@pytest.mark.parametrize("kind", REGISTRIES)
def test_everything_is_described_in_one_sentence(kind: str) -> None:
    for row in listing_tables.entries(kind):
        assert row["about"].endswith("."), row
        assert "\n" not in row["about"]


def keys(kind: str, name: str) -> dict[str, object]:
    return next(dict(row["keys"]) for row in listing_tables.entries(kind) if row["name"] == name)


def test_keys_are_what_a_recipe_takes() -> None:
    assert keys("methods", "fedavg") == {
        "lr": 0.005,
        "epochs": 5,
        "batch": 16,
        "momentum": 0.0,
        "weight_decay": 0.0,
        "clip": 0.0,
        "tune_epochs": 0,
        "tune": "all",
        "drop_last": False,
    }
    assert "shape" not in keys("backbones", "vit-tiny")
    assert keys("backbones", "cnn")["channels"] == (32, 64)
    assert keys("partitions", "pathological").keys() >= {"classes_per_client"}
    assert (
        keys("recipes", "frames/local")["method"]
        == tomllib.loads(registry.recipes()["frames/local"].read_text())["method"]
    )


@pytest.mark.parametrize("kind", ["methods", "backbones"])
def test_defaults_are_what_resolving_fills_in(kind: str) -> None:
    table = kind.removesuffix("s")
    for row in listing_tables.entries(kind):
        (recipe,) = config.load("fedavg", [f"{table}.name={row['name']}"])
        assert {key: getattr(recipe, table)[key] for key in row["keys"]} == row["keys"]


@pytest.mark.parametrize("kind", REGISTRIES)
def test_entries_are_json(kind: str) -> None:
    assert json.loads(json.dumps(listing_tables.entries(kind)))


def test_a_table_shows_names_and_keys() -> None:
    out = io.StringIO()
    Console(file=out, width=300).print(listing_tables.table("methods", listing_tables.entries("methods")))
    assert "pfedpt" in out.getvalue()
    assert "prompt_epochs=5" in out.getvalue()
