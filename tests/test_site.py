"""The documentation site: its pages are laid out whole, and the tutorial runs as it is written."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from types import ModuleType

import pytest
from PIL import Image

from promptfed.runs import config, registry
from support.command import promptfed
from support.few_photographs import few_photographs
from support.scripts import load_script

ROOT = Path(__file__).parents[1]
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def staging() -> ModuleType:
    return load_script("tools/stage_docs.py")


@pytest.fixture(scope="module")
def staged(staging: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("staged") / "docs"
    assert len(staging.stage(ROOT, out)) > 50
    return out


def blocks(language: str) -> list[str]:
    """Return the tutorial's blocks of code in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", TUTORIAL, re.M | re.S)


def test_every_link_of_a_staged_page_leads_to_a_staged_file(staging: ModuleType, staged: Path) -> None:
    seen = 0
    for page in staged.rglob("*.md"):
        name = PurePosixPath(page.relative_to(staged).as_posix())
        for target in staging.links(name, page.read_text(encoding="utf-8")):
            assert (staged / target).is_file(), f"{name} links to {target}"
            seen += 1
    assert seen > 100


def test_the_home_page_is_the_readme(staging: ModuleType, staged: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    home = (staged / "index.md").read_text(encoding="utf-8")
    assert "](docs/" in text
    assert "](docs/" not in home
    assert home.splitlines()[0] == text.splitlines()[0]


def test_a_linked_source_file_is_shown_whole(staged: Path) -> None:
    source = (ROOT / "src" / "promptfed" / "methods" / "pfedpt.py").read_text(encoding="utf-8")
    page = (staged / "source" / "src" / "promptfed" / "methods" / "pfedpt.py.md").read_text(encoding="utf-8")
    assert f"````python\n{source}````\n" in page


def test_code_is_not_rewritten(staging: ModuleType) -> None:
    text = "[a](docs/data.md)\n\n```sh\n[b](docs/data.md)\n```\n\n[c](https://example.org/x.md)\n"
    assert staging.rewritten(PurePosixPath("README.md"), text) == text.replace("[a](docs/", "[a](", 1)


def test_pipes_in_the_code_of_tables_are_not_escaped(staging: ModuleType) -> None:
    assert staging.rewritten(PurePosixPath("docs/x.md"), r"| `a \| b` | \|D\| |") == r"| `a | b` | \|D\| |"


def test_every_page_of_the_menu_is_staged_and_every_page_of_docs_in_the_menu(staged: Path) -> None:
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n")[1].split("\n\n")[0]
    shown = set(re.findall(r"[\w/.-]+\.md$", menu, re.M))
    assert all((staged / name).is_file() for name in shown)
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert {name for name in pages if not name.endswith(("/table.md", "/recipes.md"))} <= shown


def test_make_builds_the_site_although_a_folder_has_its_name() -> None:
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert "docs" in phony.split()


def test_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run every command and the Python block in order, the recipes of the demo with fewer rounds and images."""
    load, few = config.load, few_photographs(tmp_path / "few.npz")

    def smaller(source: str, words: Sequence[str] = (), *, embedded: bool = True) -> list[config.Recipe]:
        known = source in registry.recipes()
        return load(
            source, [*(few if known else []), *(word for word in words if word not in ("clients=100", "per_round=10"))]
        )

    monkeypatch.setattr(config, "load", smaller)
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (40, 40), "red").save("photo.jpg")
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    assert lines[0] == "make demo"
    commands = ["promptfed demo", *lines[1:]]
    assert len(commands) > 7
    for line in commands:
        first, *words = shlex.split(line, comments=True)
        assert first == "promptfed"
        done = promptfed(*words)
        assert done.code == 0, done.err
    (python,) = blocks("python")
    exec(compile(python, "tutorial.md", "exec"), {})
    for name in re.findall(r"`(runs/[\w/.-]+)`", TUTORIAL):
        assert Path(name).exists(), name


def test_a_notebook_becomes_a_page_with_the_notebook_beside_it(staged: Path) -> None:
    page = (staged / "notebooks" / "reading-a-run.md").read_text(encoding="utf-8")
    assert page.startswith("# Reading a run\n")
    assert '\n```python\nrun = promptfed.load("runs/fedavg-0")\nrun\n```\n' in page
    assert "[Your own method](own-method.md)" in page
    assert "](reading-a-run.ipynb)" in page
    original = (ROOT / "docs" / "notebooks" / "reading-a-run.ipynb").read_bytes()
    assert (staged / "notebooks" / "reading-a-run.ipynb").read_bytes() == original
    assert "](notebooks/own-method.md)" in (staged / "tutorial.md").read_text(encoding="utf-8")
