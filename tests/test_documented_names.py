"""Every module, file and function that the documentation names exists."""

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "promptfed"
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
WHOLE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
ARCHITECTURE = WHOLE.split("\n## Where this differs from the first design")[0]
CODE = re.compile(r"`([^`\n]+)`")
KEYS = re.compile(
    r"(evaluate|fleet|guards|stop|data|task|batches|accuracy)\.\w+"
)  # of recipes, summaries and arguments
FILES = re.compile(r"[\w./-]+\.(py|toml|json|jsonl|md)")


def defined(path: Path) -> set[str]:
    """Return the names that a module defines or imports, and CLASS.NAME for what its classes define."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    found = {alias.asname or alias.name for one in body if isinstance(one, ast.ImportFrom) for alias in one.names}
    for one in body:
        if isinstance(one, ast.FunctionDef | ast.ClassDef):
            found.add(one.name)
        if isinstance(one, ast.ClassDef):
            found |= {f"{one.name}.{part.name}" for part in one.body if isinstance(part, ast.FunctionDef)}
    return found


def exists(name: str) -> bool:
    """Say whether FOLDER.MODULE, MODULE.NAME or CLASS.NAME is in the package."""
    path = PACKAGE.joinpath(*name.split("."))
    if path.is_dir() or path.with_suffix(".py").is_file():
        return True
    module, _, rest = name.partition(".")
    homes = [*PACKAGE.rglob(f"{module}.py"), *PACKAGE.rglob(f"{module}/__init__.py")]
    return any(rest in defined(home) for home in homes) or any(name in defined(home) for home in PACKAGE.rglob("*.py"))


def test_the_architecture_page_names_what_exists() -> None:
    prose = re.sub(r"^```.*?^```$", "", ARCHITECTURE, flags=re.M | re.S)
    named = {code.split("(")[0] for code in CODE.findall(prose)}
    dotted = {one for one in named if re.fullmatch(r"[A-Za-z]\w*(\.[a-z_]\w*)+", one)}
    dotted = {one for one in dotted if not FILES.fullmatch(one) and not KEYS.fullmatch(one)}
    assert {"Loop.run", "config.load", "runs.planning", "keys.generator"} <= dotted
    assert [one for one in sorted(dotted) if not exists(one)] == []
    assert not exists("runner.no_such_name")


def test_the_layout_names_files_that_exist() -> None:
    (block,) = re.findall(r"^Inside them:\n\n```\n(.*?)^```$", ARCHITECTURE, re.M | re.S)
    folder, seen = Path(), 0
    for line in block.splitlines():
        start = re.match(r"(\w+)/\s+", line)
        folder = PACKAGE / start[1] if start else folder
        for name in re.findall(r"\w+(?:\.py|/)(?!\w)", line[start.end() :] if start else line):
            assert list(folder.rglob(name.rstrip("/"))), f"{folder.name} has no {name}"
            seen += 1
    assert seen > 40


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_in_the_documentation_exist(page: Path) -> None:
    tops = ("src/", "tests/", "tools/", "benchmarks/", "examples/", "docs/", "promptfed/")
    for code in CODE.findall(page.read_text(encoding="utf-8")):
        if code.startswith(tops) and re.fullmatch(r"[\w./-]+", code) and not re.search(r"/[A-Z]{2,}[/-]", code):
            assert (ROOT / code).exists() or (ROOT / "src" / code).exists(), f"{page.name} names {code}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_imports_in_the_documentation_work(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S):
        for module, names in re.findall(r"^from (promptfed[\w.]*) import (.+)$", block, re.M):
            found = importlib.import_module(module)
            for name in names.split(", "):
                assert hasattr(found, name) or importlib.import_module(f"{module}.{name}"), f"{module} has no {name}"
