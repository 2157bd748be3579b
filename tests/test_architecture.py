"""Who may import whom, read off the source."""

import ast
from pathlib import Path

import pytest

import promptfed

ROOT = Path(promptfed.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
CONTRACT = {"method", "local", "ops", "tree", "prompts", "options", "keys"}
# each of these may import, at any time, only what is listed: the bottom of the design is free of what is built on it
ALLOWED = {
    "errors": set[str](),
    "tree": set[str](),
    "keys": set[str](),
    "progress": set[str](),
    "terminal": set[str](),
    "gpus": set[str](),
    "patch_kernels": set[str](),
    "patches": {"gpus", "patch_kernels"},
    "ops": {"patches", "tree"},
    "options": {"errors"},
    "cells": {"errors"},
    "figures": {"errors"},
    "outcome": {"cells", "errors", "report"},
    "tables": {"errors", "files", "outcome", "report"},
    "sittings": {"errors", "outcome"},
    "jobs": {"config", "errors", "outcome", "progress", "runner", "sittings"},
    "registry": {"cells", "errors", "method", "methods"},
    "nested": {"errors"},
    "sheet": {"cells", "config", "errors", "jobs", "nested"},
    "reproduce": {"cells", "config", "errors", "jobs", "outcome", "registry", "sheet", "sittings", "tables"},
    "printed": {"cells", "config", "errors", "outcome", "registry", "report", "reproduce", "sheet"},
    "gallery": {"errors", "files", "report"},
    "method": {"errors", "ops", "tree"},
    "local": {"method", "ops", "tree"},
    "prompts": {"errors", "ops", "tree"},
    "backbones": {"errors", "gpus", "method", "ops", "options", "tree"},
    "methods": CONTRACT,
    "guards": {"errors", "keys", "method", "options", "tree"},
}
TABLES = {"reproduce", "sheet", "jobs", "tables", "outcome", "printed"}
ABOVE = {"registry", "config", "planning", "runner", "cli"}  # what puts a run together
FORBIDDEN = {
    "federation": {*ABOVE, "methods", "sites", "report", "catalogue", "checks", "backbones"},
    "data": {*ABOVE, "methods", "federation", "report", "record", "backbones", "prompts"},
    "report": {*ABOVE, "methods", "federation", "backbones", "method", "local", "ops", "tree"},
    "record": {*ABOVE, "methods", "federation", "report", "backbones", "data", "tree"},
    "config": {*ABOVE - {"config", "registry"}, "federation", "report", "record", "checks", "catalogue"},
    "domains": {"cli", "config", "registry", "planning", "runner", "report", "sites", "checks", "catalogue", "methods"},
    "finished": {*TABLES, "cli", "checks", "catalogue", "sites", "report", "methods"},
    "probes": {*TABLES, "cli", "checks", "catalogue", "sites", "methods"},
    "predict": {*TABLES, "cli", "checks", "catalogue", "sites", "report", "methods"},
    "generate": {*TABLES, "cli", "checks", "catalogue", "sites", "report", "methods"},
    "export": {*TABLES, "cli", "checks", "catalogue", "sites", "report", "methods"},
    "quality": {*TABLES, "cli", "checks", "catalogue", "sites", "report", "methods"},
    "audit": {*TABLES, "cli", "checks", "catalogue", "sites", "report"},
    "planning": {*TABLES, "cli", "checks", "catalogue", "sites", "report", "runner", "methods"},
    "runner": {*TABLES, "cli", "checks", "catalogue", "sites"},
    "sites": {*TABLES, "cli", "checks", "catalogue", "methods"},
}
WITHOUT_TORCH = {
    "report",
    "record",
    "errors",
    "cli",
    "progress",
    "terminal",
    "cells",
    "figures",
    "outcome",
    "tables",
    "gallery",
    "__main__",
}


def part(path: Path) -> str:
    """Return the module or sub-package of the top level a file belongs to."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Return all modules a file imports, at the top or later, in full."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def parts(path: Path) -> set[str]:
    """Return the parts of this package a file imports, its own left out."""
    inner = {name.split(".")[1] for name in imports(path) if name.startswith("promptfed.")}
    return {name for name in inner if name != part(path) and not name.startswith("__")}


def test_the_rules_see_imports() -> None:
    assert {"tree", "method", "record", "data"} <= parts(ROOT / "federation" / "loop.py")
    assert "torch" in {name.split(".")[0] for name in imports(ROOT / "tree.py")}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_point_downwards(path: Path) -> None:
    own = part(path)
    assert parts(path) <= ALLOWED.get(own, parts(path))
    assert not parts(path) & FORBIDDEN.get(own, set())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_grab_bags(path: Path) -> None:
    assert path.stem not in ("utils", "helpers", "common", "misc", "base")


def test_the_report_never_imports_torch() -> None:
    for path in FILES:
        if part(path) in WITHOUT_TORCH:
            assert not {name for name in imports(path) if name.split(".")[0] == "torch"}, path


def test_a_method_knows_no_data_sets_devices_or_command_line() -> None:
    for path in (ROOT / "methods").glob("*.py"):
        assert parts(path) <= CONTRACT, path
