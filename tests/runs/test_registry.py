"""What can be named: methods by name or path, and which shipped files a name opens."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import pytest

from promptfed.core.errors import PromptFedError
from promptfed.core.method import Method
from promptfed.runs import config, registry
from promptfed.runs.cells import SUFFIX
from promptfed.runs.registry import find_method, find_recipe, methods

_listening: list[list[str]] = []


def _hear(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open":
        for opened in _listening:
            opened.append(str(arguments[0]))


sys.addaudithook(_hear)  # it stays as long as the process does, and does nothing while no test listens


@contextmanager
def tables_opened() -> Iterator[list[str]]:
    """Yield a list that names, when the block is done, the tables opened in it, as in a process that has read none."""
    registry.recipes.cache_clear()
    registry._cells.cache_clear()
    opened: list[str] = []
    tables: list[str] = []
    _listening.append(opened)
    try:
        yield tables
    finally:
        _listening.remove(opened)
        tables += [path for path in opened if path.endswith(SUFFIX)]


# -- which files a name opens ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedavg", "pfedpt", "fedavg+pt", "test_registry:Mine", "frames/pfedpt"])
def test_a_name_that_needs_no_table_opens_none(name: str) -> None:
    with tables_opened() as opened:
        config.load(name, ["prompt.kind=frame"] if name.endswith("+pt") else ())
    assert opened == []


@pytest.mark.parametrize(("name", "meant"), [("fedavgg", "fedavg"), ("pfedp", "pfedp[gt]"), ("demopfedpt", "pfedpt")])
def test_a_misspelt_name_without_a_slash_opens_no_table(name: str, meant: str) -> None:
    with tables_opened() as opened, pytest.raises(PromptFedError, match=f'"{name}"; did you mean ".*{meant}"'):
        config.load(name)
    assert opened == []


def test_a_file_opens_no_table(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("mine") / "mine.toml"
    path.write_text("seed = 3\n", encoding="utf-8")
    with tables_opened() as opened:
        (recipe,) = config.load(str(path))
    assert opened == []
    assert recipe.seed == 3


def test_a_cell_opens_its_own_table_only() -> None:
    with tables_opened() as opened:
        config.load("pfedpg/t1-office/fedvpt")
    assert [path.removesuffix(SUFFIX)[-len("pfedpg/t1-office") :] for path in opened] == ["pfedpg/t1-office"]


def test_a_misspelt_cell_is_looked_for_in_all_tables() -> None:
    with pytest.raises(PromptFedError, match='did you mean "pfedpg/t1-office/fedvpt"'):
        config.load("pfedpg/t1-office/fedvptt")
    with pytest.raises(PromptFedError, match='did you mean "frames/pfedpt"'):
        config.load("frames/pfedp")


def test_every_recipe_is_found_by_its_name() -> None:
    for name, path in registry.recipes().items():
        found = find_recipe(name)
        assert found == path if name in registry.single_recipes() else found is not None
    assert all("/" in name for name in [*registry.recipes(), *registry.tables()])
    assert find_recipe("fedavg") is None
    assert find_recipe("../recipes/frames/fedavg") is None


# -- methods --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mine(Method):
    """A method of another package."""

    name: ClassVar[str] = "mine"
    lr: float = 0.1


class Point:
    """An entry point of another package."""

    def __init__(self, name: str) -> None:
        self.name, self.value = name, "other.package:Mine"

    def load(self) -> type[Method]:
        return Mine


def test_the_packages_own_methods() -> None:
    assert {"local", "fedavg", "pfedpt"} <= set(methods())
    assert all(name == kind.name for name, kind in methods().items() if kind.__module__.startswith("promptfed"))


def test_a_method_announced_by_another_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_announced", lambda: [Point("mine")])
    assert methods()["mine"] is Mine
    (recipe,) = config.load("mine")
    assert recipe.method["lr"] == 0.1


def test_a_clashing_name_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_announced", lambda: [Point("fedavg")])
    with pytest.raises(PromptFedError, match=r'Two methods are called "fedavg".*other\.package:Mine'):
        methods()


def test_a_dotted_path() -> None:
    assert find_method("test_registry:Mine") is Mine
    (recipe,) = config.load("test_registry:Mine", ["method.lr=3"])
    assert config.build_method(recipe) == Mine(lr=3.0)
    with pytest.raises(PromptFedError, match="has no attribute 'Yours'"):
        find_method("test_registry:Yours")
    with pytest.raises(PromptFedError, match="must be a subclass"):
        find_method("test_registry:Point")
