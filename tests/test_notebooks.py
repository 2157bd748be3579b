"""The notebooks of the documentation: stored without outputs, and each runs from its first cell to its last."""

import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from support.command import environment

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def texts(cell: Any) -> str:
    """Return all that a cell has printed and shown as text."""
    printed = [one["text"] for one in cell["outputs"] if one["output_type"] == "stream" and one["name"] == "stdout"]
    return "".join(printed + [str(data) for one in cell["outputs"] for data in one.get("data", {}).values()])


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return `run(name) -> cells`, which executes a notebook in an empty folder of its own."""
    for key, value in environment(PROMPTFED_HOME=str(tmp_path / "home"), CUDA_VISIBLE_DEVICES="").items():
        monkeypatch.setenv(key, value)

    def execute(name: str) -> list[Any]:
        book = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)  # type: ignore[no-untyped-call]
        work = tmp_path / "work"
        work.mkdir()
        NotebookClient(book, timeout=240, resources={"metadata": {"path": str(work)}}).execute()
        return [cell for cell in book["cells"] if cell["cell_type"] == "code"]

    return execute


def test_there_are_three() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["own-method", "own-photographs", "reading-a-run"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs(path: Path) -> None:
    book = json.loads(path.read_text(encoding="utf-8"))
    nbformat.validate(book)
    assert set(book["metadata"]) == {"kernelspec", "language_info"}
    for cell in book["cells"]:
        assert cell["metadata"] == {}
        assert cell["cell_type"] == "markdown" or (cell["outputs"] == [] and cell["execution_count"] is None)
    assert path.read_text(encoding="utf-8").endswith("}\n")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_links_of_a_notebook_lead_somewhere(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    prose = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    links = re.findall(r"\]\(([^)#]+)(?:#[\w-]+)?\)", prose)
    assert len(links) >= 2
    assert [link for link in links if not (FOLDER / link).is_file()] == []


# A kernel is another process: what its libraries warn of has no say in whether the notebook is right.
@pytest.mark.filterwarnings("ignore")
def test_own_photographs(run: Any, tmp_path: Path) -> None:
    _, look, train, clients, answer = run("own-photographs")
    assert "135 photographs, 0 broken" in texts(look)
    assert '<div class="promptfed-run">' in train["outputs"][-1]["data"]["text/html"]
    assert all(name in texts(clients) for name in ("ann", "ben", "cleo"))
    first, probability = texts(answer).split()[:2]
    assert (first, float(probability) > 50) == ("coin", True)
    assert (tmp_path / "work" / "runs" / "photographs" / "report.html").is_file()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_own_method(run: Any) -> None:
    _, check, _, table, clients = run("own-method")
    assert texts(check) == "FedBias keeps all its promises.\n"
    rows = [line.split("|") for line in table["outputs"][0]["data"]["text/markdown"].splitlines() if "|" in line]
    up = [cell.strip() for cell in rows[0]].index("up")
    assert rows[2][up] == rows[3][up], "the bias stays at home"
    assert "fed-bias" in texts(clients)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_reading_a_run(run: Any, tmp_path: Path) -> None:
    cells = run("reading-a-run")
    assert "fedavg (n=2)" in cells[-2]["outputs"][0]["data"]["text/markdown"]
    assert "received.mean" in texts(cells[2])
    assert (tmp_path / "work" / "runs" / "report.html").is_file()
