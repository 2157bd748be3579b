"""Every recipe that ships can be read, resolved and understood."""

import tomllib
from pathlib import Path

import pytest

from promptfed import config

RECIPES = config.recipes()


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
