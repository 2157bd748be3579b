"""What the examples and the documentation promise."""

import dataclasses
import importlib
import inspect
import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch

import promptfed
from promptfed.core import local, options, tree
from promptfed.core.method import Method, Task
from promptfed.core.protocols import Data
from promptfed.core.tree import Tree
from promptfed.data import DATASETS
from promptfed.data.partition import PARTITIONS
from promptfed.methods.fedavg import FedAvg
from promptfed.methods.pfedpt import PFedPT
from promptfed.runs import config, nested, registry
from promptfed.runs.checks import PROMISES, BrokenPromiseError

ROOT = Path(__file__).parents[1]
OWN = ROOT / "examples" / "own_method" / "src"
PAGES = [
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
    *sorted(ROOT.glob("*.md")),
]
SMALL: dict[str, Any] = {
    "rounds": 1,
    "clients": 3,
    "data": {"name": "fashion-shops", "limit": 1},
    "backbone": {"name": "cnn", "channels": (2, 2), "hidden": (4,)},
    "evaluate": {"after": False},
}


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(OWN))
    return importlib.import_module("own_method").OwnFedPer


def blocks(page: Path, language: str) -> Iterator[str]:
    """Yield the fenced blocks of a page in one language."""
    for match in re.finditer(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S):
        yield match[1]


def commands() -> Iterator[Any]:
    for page in PAGES:
        for block in blocks(page, "sh"):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if words[:1] == ["promptfed"]:
                    yield pytest.param(words[1:], id=f"{page.name}: {line}")


# -- the quick start -------------------------------------------------------------------------------------------------


def test_quickstart_prints_a_table_and_writes_the_report(tmp_path: Path) -> None:
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    script = ROOT / "examples" / "quickstart.py"
    done = subprocess.run([sys.executable, script], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [line.split("|")[1].strip() for line in done.stdout.splitlines() if line.startswith("|")]
    assert rows[0] == "method"
    assert rows[2:] == ["fedavg", "pfedpt"]
    page = tmp_path / "runs" / "quickstart.html"
    assert str(page) in done.stdout
    assert "pfedpt" in page.read_text(encoding="utf-8")


def test_quickstart_is_short() -> None:
    assert len((ROOT / "examples" / "quickstart.py").read_text(encoding="utf-8").splitlines()) <= 25


# -- a method of one's own -------------------------------------------------------------------------------------------


def test_own_method_keeps_every_promise(own: Any) -> None:
    promptfed.check_method(own())


def test_own_method_runs_by_its_dotted_path(own: Any, tmp_path: Path) -> None:
    result = promptfed.run("own_method:OwnFedPer", out=tmp_path / "run", method={"epochs": 1}, **SMALL)
    assert result.summary["method"] == "own_method:OwnFedPer"
    assert result.summary["accuracy"]["deployed"] is None
    # conv1 2·3·5·5 + 2, conv2 2·2·5·5 + 2, fc1 4·50 + 4; the head's 10·4 + 10 stay at home
    assert result.summary["traffic"]["up_floats"] == 152 + 102 + 204
    state = (tmp_path / "run" / "checkpoint" / "state.json").read_text(encoding="utf-8")
    assert '"personal-000001.safetensors"' in state


def test_own_method_runs_as_an_object(own: Any, tmp_path: Path) -> None:
    promptfed.run(own(lr=0.25, epochs=0), out=tmp_path / "run", **SMALL)
    recipe = (tmp_path / "run" / "recipe.toml").read_text(encoding="utf-8")
    assert 'name = "own_method:OwnFedPer"\nlr = 0.25\nepochs = 0\n' in recipe


def test_own_method_imports_only_what_a_method_may() -> None:
    source = (OWN / "own_method" / "__init__.py").read_text(encoding="utf-8")
    assert re.findall(r"^(?:from|import) (promptfed\S*)", source, re.M) == ["promptfed.core"]


def test_entry_point_names_the_method(own: Any) -> None:
    project = (ROOT / "examples" / "own_method" / "pyproject.toml").read_text(encoding="utf-8")
    assert f'[project.entry-points."promptfed.methods"]\n{own.name} = "own_method:OwnFedPer"\n' in project


def test_the_readme_shows_fedavg_as_it_is() -> None:
    assert textwrap.dedent(inspect.getsource(FedAvg.fit)) in list(blocks(ROOT / "README.md", "python"))


def test_the_page_shows_the_file_itself() -> None:
    source = (OWN / "own_method" / "__init__.py").read_text(encoding="utf-8")
    assert next(blocks(ROOT / "docs" / "adding-a-method.md", "python")) == source


# -- the common mistakes of docs/adding-a-method.md ------------------------------------------------------------------


def mistaken(own: Any, **parts: Any) -> Method:
    """Return the example with some of its parts replaced."""
    kind: Any = dataclasses.dataclass(frozen=True)(type("Mistaken", (own,), {**parts, "__module__": __name__}))
    globals()["Mistaken"] = kind  # where pickle looks for it
    made: Method = kind(epochs=1)
    return made


def _tuned(self: Any, task: Task, down: Tree, personal: Tree, data: Data) -> Tree:
    batches = data.batches(size=self.batch, epochs=self.epochs)
    return local.sgd(self.loss, task, batches, start=down, params=down | personal, lr=self.lr)


def _sends_all(self: Any, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
    tuned = _tuned(self, task, down, personal, data)
    return tuned, tree.pick(tuned, personal)


def _keeps_more(self: Any, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
    tuned = _tuned(self, task, down, personal, data)
    return tree.pick(tuned, down), tree.pick(tuned, personal) | {"more": tuned["head.bias"]}


def _writes(self: Any, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
    for value in down.values():
        value.sub_(1)
    return down, personal


def _grads(self: Any, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
    return tree.map(lambda value: value.clone().requires_grad_(), down), personal


def _pads(self: Any, task: Task, start: Tree, params: Tree, batch: Tree) -> torch.Tensor:
    return task.backbone(params, batch["x"]).mean((-1, -2))


def _mixes(self: Any, task: Task, start: Tree, params: Tree, batch: Tree) -> torch.Tensor:
    return (task.backbone(params, batch["x"]).mean(-1) * batch["mask"]).mean()


def _first(self: Any, task: Task, server: Tree, clients: torch.Tensor, up: Tree, weights: torch.Tensor) -> Tree:
    return tree.row(up, 0)


def _rises(self: Any, task: Task, start: Tree, params: Tree, batch: Tree) -> torch.Tensor:
    return -Method.loss(self, task, start, params, batch)


MISTAKES: dict[str, dict[str, Any]] = {
    "`down` and `personal` share ['head.bias', 'head.weight']": {
        "init_server": lambda self, task, rng: task.backbone.init(rng)
    },
    "['head.bias', 'head.weight'] of `personal` would leave in `up`": {"fit": _sends_all},
    "`fit` must return `personal` with init_client's names, shapes and types": {"fit": _keeps_more},
    "`fit` must not change `down` in place": {"fit": _writes},
    "`up` must not carry gradients": {"fit": _grads},
    'places of a batch where `batch["mask"]` is 0 hold no image and must not count': {"loss": _pads},
    "a stack of clients must give what one by one gives (server)": {"loss": _mixes},
    "the order of clients must not matter to the server": {"aggregate": _first},
    "the loss must fall on the toy task; it went": {"loss": _rises},
}


@pytest.mark.parametrize("sentence", MISTAKES)
def test_the_page_quotes_what_check_answers(own: Any, sentence: str) -> None:
    with pytest.raises(BrokenPromiseError) as caught:
        promptfed.check_method(mistaken(own, **MISTAKES[sentence]))
    assert f"Mistaken breaks a promise: {sentence}" in str(caught.value)
    assert f"| {sentence}" in (ROOT / "docs" / "adding-a-method.md").read_text(encoding="utf-8")


# -- links and commands ----------------------------------------------------------------------------------------------


def first_cells(page: str, heading: str) -> list[str]:
    """Return the first column of the first table below a heading."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8").split(f"\n{heading}\n", 1)[1]
    table = re.search(r"(?:^\|.*\n)+", text, re.M)
    assert table is not None
    return [line.split("|")[1].strip() for line in table[0].splitlines()[2:]]


def test_the_contract_names_every_hook() -> None:
    named = [cell.strip("`").split("(")[0] for cell in first_cells("adding-a-method.md", "## The contract")]
    assert named == [name for name, part in vars(Method).items() if callable(part) and not name.startswith("_")]


def test_every_promise_is_explained() -> None:
    assert [cell.strip("`") for cell in first_cells("adding-a-method.md", "## Check it")] == list(PROMISES)


def test_every_data_set_and_partition_is_described() -> None:
    data = {cell.strip("`").removesuffix(":PATH") for cell in first_cells("data.md", "## Data sets")}
    assert data == set(DATASETS)
    assert [cell.strip("`") for cell in first_cells("data.md", "## Partitions")] == [*PARTITIONS, "file:PATH"]


def written(value: object) -> str:
    """Write a value as the page does."""
    return value if isinstance(value, str) else nested.literal(value)


def test_pfedpt_page_has_the_values_of_the_code() -> None:
    rows = (ROOT / "docs" / "methods" / "pfedpt.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip(" `") for cell in row.split("|")[1:5]] for row in rows if row.startswith("| `method.")]
    made, presets = options.defaults(PFedPT), PFedPT.presets
    assert [row[0] for row in cells] == [f"method.{key}" for key in made]
    for name, default, paper, code in cells:
        key = name.removeprefix("method.")
        assert default == written(made[key])
        assert paper == written(presets["paper"].get(key, ""))
        assert code == written(presets["code"].get(key, ""))


def anchors(page: Path) -> set[str]:
    """Return the anchors GitHub gives a page's headings."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    titles = re.findall(r"^#+ (.*)$", prose, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {link}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{page.name} links to {link}"


@pytest.mark.parametrize("words", list(commands()))
def test_commands_in_the_documentation_parse(own: Any, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if any("…" in word or re.search(r"(^|[=:/])[A-Z]{2,}", word) for word in words):
        pytest.skip("a placeholder")
    point = EntryPoint(own.name, f"{own.__module__}:{own.__name__}", "promptfed.methods")
    monkeypatch.setattr(registry, "_announced", lambda: (point,))
    group: Any = importlib.import_module("typer.main").get_command(importlib.import_module("promptfed.cli").app)
    command = group.commands.get(words[0])
    assert command is not None, f"promptfed has no command {words[0]}"
    rest = words[1:]
    if hasattr(command, "commands"):
        command = command.commands[rest.pop(0)]
    with monkeypatch.context() as patch:
        patch.setattr(Path, "exists", lambda path, **options: True)  # the folders in the pages are the reader's own
        context = command.make_context(words[0], rest)
    if words[0] == "run" and context.params["source"] and not context.params["resume"]:
        assert config.load(context.params["source"], context.params["overrides"] or [])
    if words[0] == "check":
        assert registry.find_method(context.params["method"])
