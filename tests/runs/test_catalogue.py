"""Stand-ins read from source: they agree with the classes themselves, and asking them imports no torch."""

import inspect
import subprocess
import sys
from dataclasses import MISSING, fields
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from promptfed.backbones import BACKBONES
from promptfed.core import options
from promptfed.core.errors import PromptFedError
from promptfed.data import DATASETS
from promptfed.data.partition import PARTITIONS
from promptfed.methods.with_frame import WithFrame
from promptfed.runs import catalogue, config, registry
from support.command import environment

OWN = {name: kind for name, kind in registry.methods().items() if kind.__module__.startswith("promptfed.")}
REAL: dict[str, dict[str, Any]] = {
    "methods": OWN,
    "backbones": dict(BACKBONES),
    "datasets": dict(DATASETS),
    "partitions": dict(PARTITIONS),
}
EVERY = [(what, name) for what, kinds in REAL.items() for name in kinds]


def stand_ins(what: str) -> dict[str, Any]:
    """Return what is read from the source, although the classes themselves are imported here."""
    homes = {
        "backbones": ("promptfed.backbones", "BACKBONES"),
        "datasets": ("promptfed.data.datasets", "DATASETS"),
        "partitions": ("promptfed.data.partition", "PARTITIONS"),
    }
    if what == "methods":
        return catalogue._own_methods()
    module, name = homes[what]
    found: dict[str, Any] = catalogue._source(module)[name]
    return found


@pytest.mark.parametrize("what", REAL)
def test_the_names_agree(what: str) -> None:
    assert set(stand_ins(what)) == set(REAL[what])


@pytest.mark.parametrize(("what", "name"), EVERY)
def test_a_stand_in_agrees_with_the_class_itself(what: str, name: str) -> None:
    kind, stand_in = REAL[what][name], stand_ins(what)[name]
    assert stand_in is not kind
    assert options.hints(stand_in) == options.hints(kind), "types, with their ranges and choices"
    assert [one.name for one in fields(stand_in)] == [one.name for one in fields(kind)]
    assert options.defaults(stand_in) == options.defaults(kind)
    assert all(one.default_factory is MISSING for one in fields(kind)), "a factory cannot be read from the source"
    assert inspect.getdoc(stand_in) == inspect.getdoc(kind)


@pytest.mark.parametrize("name", OWN)
def test_a_method_keeps_its_presets_its_backbone_and_its_tables(name: str) -> None:
    kind, stand_in = OWN[name], catalogue.find_method(name)
    for variable in ("name", "presets", "backbone", "recipe", "quick"):
        assert getattr(stand_in, variable) == getattr(kind, variable)


def test_what_is_inherited_and_what_is_changed() -> None:
    fedti = catalogue.find_method("fedti")()
    assert (fedti.conditional, fedti.align, fedti.lr) == (False, 0.0, 5e-4)
    assert catalogue.find_method("resnet-full").backbone == "resnet"


def test_a_stand_in_refuses_what_the_class_would() -> None:
    with pytest.raises(PromptFedError, match=r"method\.lr must be above 0, not -1"):
        options.make(catalogue.find_method("pfedpt"), {"lr": -1}, "method")


def test_the_wrapper_is_no_method() -> None:
    assert WithFrame.name == registry.WRAPPER
    with pytest.raises(PromptFedError, match='Unknown method "pt"'):
        catalogue.find_method("pt")


def test_a_file_in_this_folder_is_pointed_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_own.py").touch()
    (tmp_path / "mine.toml").touch()
    for name in ("my-own", "my_own.py"):
        with pytest.raises(
            PromptFedError, match=f'^Unknown method "{name}"; for a class in my_own.py write my_own:CLASS'
        ):
            catalogue.find_method(name)
    with pytest.raises(PromptFedError, match=r'^Unknown method or recipe "my-own"; for a class in my_own\.py'):
        config.load("my-own")
    with pytest.raises(PromptFedError, match=r"for the file in this folder write mine\.toml\.$"):
        config.load("mine")


# -- what is answered without torch ----------------------------------------------------------------------------------

WORDS = [
    "--help",
    "run --help",
    "list methods",
    "list datasets",
    "list backbones",
    "list partitions",
    "list recipes",
    "list figures",
    "rum",
    "run pfedptt",
    "run frames/pfedp",
    "run fedavg round=3",
    "run fedavg rounds=many",
    "run fedavg method.epoch=3",
    "run fedavg method.epochs=some",
    "run fedavg method.preset=papr",
    "run fedavg backbone.kernal=3",
    "run fedavg data.limmit=3",
    "run fedavg partition.name=iidd",
    "run fedavg guards.robust=medain",
    "run fedavg evaluate.evry=3",
    "run fedavg clients=2 per_round=3",
    "run pfedpg/t1-office/fedvptt",
    "run --resume nowhere",
    "tune fedavg method.lr=3",
    "tune fedavg method.lrr=[1,2]",
    "predict nowhere photo.jpg",
    "bundle nowhere --out elsewhere",
    "forget nowhere --client 3",
    "serve nowhere",
    "token nowhere",
    "export nowhere",
    "generate nowhere",
    "quality nowhere",
    "audit nowhere",
    "figure accuracy nowhere",
    "report nowhere",
    "compare nowhere",
    "track nowhere --to wandb",
]
SCRIPT = """
import contextlib, io, sys
from promptfed import cli
from promptfed.runs import registry

registry._announced = lambda: ()  # those of other packages are asked themselves
for words in sys.argv[1:]:
    sys.argv = ["promptfed", *words.split()]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            cli.main()
        except SystemExit as left:
            code = left.code
    print(words, "->", code, "torch" in sys.modules)
"""


def test_help_lists_and_refusals_of_names_keys_and_types_import_no_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *WORDS], env=environment(), capture_output=True, text=True, check=True
    )
    answered = [f"{words} -> {0 if 'help' in words or 'list' in words else 2} False" for words in WORDS]
    assert done.stdout.splitlines() == answered


def test_nor_numpy() -> None:
    code = SCRIPT.replace('"torch" in sys.modules', '"numpy" in sys.modules')
    words = ["--help", "run fedavgg", "run fedavg method.lrr=3"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], env=environment(), capture_output=True, text=True, check=True
    )
    assert [line.split(" -> ")[1] for line in done.stdout.splitlines()] == ["0 False", "2 False", "2 False"]


# -- methods of other packages ----------------------------------------------------------------------------------------


PLAIN, COMPUTED = "0.25", "sum(torch.ones(4)).item() / 16"  # the second needs more than names imported one by one
METHOD = '''
import torch
from dataclasses import dataclass
from typing import ClassVar
from promptfed.core import Method, Positive

@dataclass(frozen=True)
class Mine(Method):
    """Be mine."""
    name: ClassVar[str] = "mine"
    lr: Positive = {value}
'''


@pytest.mark.parametrize(("value", "imported"), [(PLAIN, False), (COMPUTED, True)])
def test_a_method_of_another_package_is_read_where_its_source_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, imported: bool
) -> None:
    module = f"my_package_{imported}"
    (tmp_path / f"{module}.py").write_text(METHOD.format(value=value), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint("mine", f"{module}:Mine", "promptfed.methods")
    monkeypatch.setattr(registry, "_announced", lambda: (point,))
    listed = catalogue.methods()["mine"]
    assert (options.defaults(listed), inspect.getdoc(listed)) == ({"lr": 0.25}, "Be mine.")
    assert (module in sys.modules) is imported
    assert catalogue.find_method("mine") is sys.modules[module].Mine, "a run asks the class itself"
