"""Who may import whom: the table of docs/architecture.md is the rule, and the source is held to it.

An import counts wherever it stands: at the top, inside a function, for type checkers alone, or as a string such as
"promptfed.analysis.figures.saliency:attention" that something imports later.
"""

import ast
import re
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import promptfed

ROOT = Path(promptfed.__file__).parent
PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
FILES = sorted(ROOT.rglob("*.py"))
WITHOUT_TORCH = (
    *("results", "core.errors", "core.files", "core.statistics", "core.progress", "papers.comparison"),
    *("serving.watching", "serving.supervisor", "serving.listening"),
)


def module(path: Path) -> str:
    """Return a file's module name below `promptfed`; the package itself is "promptfed"."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts) or "promptfed"


MODULES = {module(path): path for path in FILES}


def known(name: str) -> str | None:
    """Return the module of ours that a dotted name such as "promptfed.core.tree.Tree" means, if any."""
    if name != "promptfed" and not name.startswith("promptfed."):
        return None
    parts = name.split(".")[1:]
    found = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((one for one in found if one in MODULES), "promptfed")


@cache
def names(path: Path) -> frozenset[str]:
    """Return all that a file imports, by statement or by string, in full."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            dotted = re.fullmatch(r"(promptfed(?:\.[a-z_0-9]+)+)(?:[:.][A-Za-z_]+)?", node.value)
            found |= {dotted[1]} if dotted and dotted[1].removeprefix("promptfed.") in MODULES else set()
    return frozenset(found)


def imports(name: str) -> set[str]:
    """Return the modules of ours that a module imports, itself left out."""
    return {found for one in names(MODULES[name]) if (found := known(one)) not in (None, name)}


def within(name: str, whole: str) -> bool:
    return name == whole or name.startswith(whole + ".")


NAME = re.compile(r"`([a-z_.0-9]+)`")


@dataclass(frozen=True)
class Rule:
    """What a row may import, with all that lies in it, but not what is taken out again."""

    allowed: tuple[str, ...]
    excepted: tuple[str, ...] = ()

    def permits(self, name: str) -> bool:
        return any(within(name, one) for one in self.allowed) and not any(within(name, one) for one in self.excepted)


def rules() -> dict[str, Rule | None]:
    """Read the table: from each row's modules to what they may import; None is everything."""
    text = PAGE.read_text(encoding="utf-8")
    table = text.split("## Who may import whom", 1)[1].split("\n## ", 1)[0]
    found: dict[str, Rule | None] = {}
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("| `"):
            continue
        allowed, _, excepted = cells[1].partition("but not")
        rule = Rule(tuple(NAME.findall(allowed)), tuple(NAME.findall(excepted)))
        for name in NAME.findall(cells[0]):
            assert name not in found, f"{name} is listed twice"
            found[name] = None if cells[1] == "everything" else rule
    return found


RULES = rules()


def unit(name: str) -> str | None:
    """Return the row a module belongs to: the longest listed name it lies in."""
    parts = name.split(".")
    return next((one for length in range(len(parts), 0, -1) if (one := ".".join(parts[:length])) in RULES), None)


def test_the_rules_see_imports() -> None:
    assert {"core.tree", "core.method", "results.folder.record", "data.batches"} <= imports("federation.loop")
    assert "analysis.figures.saliency" in imports("analysis.figures"), "by a string"
    assert "analysis.predict" in imports("cli.using"), "inside a function"
    assert known("promptfed.core.tree.Tree") == "core.tree"
    assert known("promptfed.Method") == "promptfed"
    assert known("torch.nn") is None


def test_every_row_of_the_table_is_a_module() -> None:
    listed = {name for rule in RULES.values() if rule for name in (*rule.allowed, *rule.excepted)}
    assert set(RULES) | listed <= set(MODULES)


@pytest.mark.parametrize("name", sorted(MODULES))
def test_a_module_imports_only_what_the_table_allows(name: str) -> None:
    own = unit(name)
    assert own is not None, f"{name} is in no row of the table in {PAGE.name}"
    rule = RULES[own]
    wrong = {one for one in imports(name) if rule is not None and unit(one) != own and not rule.permits(one)}
    assert not wrong, f"{name} ({own}) may not import {sorted(wrong)}"


def test_no_module_imports_itself_through_others() -> None:
    try:
        TopologicalSorter({name: imports(name) for name in MODULES}).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize("name", [name for name in sorted(MODULES) if name.startswith(WITHOUT_TORCH)])
def test_light_modules_never_import_torch(name: str) -> None:
    assert not {one for one in names(MODULES[name]) if one.split(".")[0] == "torch"}


def test_a_public_class_name_means_one_thing() -> None:
    homes: dict[str, list[str]] = {}
    for name, path in MODULES.items():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(name)
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}


@pytest.mark.parametrize("name", sorted(MODULES))
def test_no_grab_bags(name: str) -> None:
    assert name.rpartition(".")[2] not in ("utils", "helpers", "common", "misc", "base")


def test_a_newcomer_sees_the_whole_layout_at_once() -> None:
    assert len([path for path in ROOT.iterdir() if path.name != "__pycache__"]) <= 15


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_file_is_longer_than_400_lines(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


@pytest.mark.parametrize(
    "folder", sorted(path.parent for path in ROOT.glob("*/__init__.py")), ids=lambda path: path.name
)
def test_a_folders_rule_stands_in_the_page_and_in_the_folder(folder: Path) -> None:
    """The first sentence of a folder's docstring is its rule in the page."""
    doc = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    rule = doc.split("\n\n")[0].replace("\n", " ").strip()
    assert rule.endswith(".")
    assert f"| `{folder.name}/` | {rule.rstrip('.')} |" in PAGE.read_text(encoding="utf-8")


def test_no_test_imports_another_test() -> None:
    for path in Path(__file__).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"(?m)^\s*(?:from|import) (?:\w+\.)*(?:test_\w+|conftest)\b", text), path
