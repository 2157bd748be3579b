"""`promptfed new`: the first files of a method or a recipe of one's own, which work as they are written."""

import keyword
import re
import sys
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from promptfed.cli.terminal import say
from promptfed.core.errors import PromptFedError
from promptfed.core.files import write_text

TEMPLATES = Path(__file__).parent / "templates"
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")

new_app = typer.Typer(help="Begin a method or a recipe of your own, from files that work.", no_args_is_help=True)
Where = Annotated[Path, typer.Option("--dir", help="The folder to write to; the default is the current one.")]


@new_app.command("method")
def new_method(
    name: Annotated[str, typer.Argument(help="The method's name in recipes, such as my-method.")],
    folder: Where = Path(),
) -> None:
    """Write a method that works, and its test; lines marked CHANGE are where yours begins.

    The method is FedAvg with one hyper-parameter of its own:

        promptfed new method my-method
    """
    from promptfed.runs import catalogue

    _check_name(name)
    if name in catalogue.method_names():
        raise PromptFedError(f'There is a method "{name}" already; choose another name.')
    module, class_name = name.replace("-", "_"), "".join(part.capitalize() for part in name.split("-"))
    paths = {folder / f"{module}.py": "method.py.txt", folder / f"test_{module}.py": "test_method.py.txt"}
    _refuse_existing(paths)
    _check_module(name, module, class_name)
    _write(paths, {"name": name, "module": module, "class_name": class_name})
    say(f"Method {folder / module}.py, test {folder / 'test_'}{module}.py")
    say(f"Next, in {folder.resolve()}: pytest test_{module}.py, then promptfed run {module}:{class_name} rounds=5")


@new_app.command("recipe")
def new_recipe(
    name: Annotated[str, typer.Argument(help="The file's name without .toml, such as my-recipe.")],
    folder: Where = Path(),
) -> None:
    """Write a recipe that runs, with a comment beside what is not plain.

    promptfed run takes it as it is:

        promptfed new recipe my-recipe
    """
    _check_name(name)
    path = folder / f"{name}.toml"
    _refuse_existing([path])
    _write({path: "recipe.toml.txt"}, {"name": name})
    say(f"Recipe {path}")
    say(f"Next: promptfed run {path}")


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise PromptFedError(
            f'"{name}" cannot be a name here: use small letters, digits and single hyphens, beginning with a letter, '
            "such as my-method."
        )


def _check_module(name: str, module: str, class_name: str) -> None:
    """Refuse a name that would hide another module, or a class that the method's file imports."""
    known = keyword.iskeyword(module) or module in sys.stdlib_module_names or find_spec(module) is not None
    if known:
        raise PromptFedError(f'"{module}" is a word or a module of Python\'s already; choose another name.')
    if re.search(rf"\b{class_name}\b", (TEMPLATES / "method.py.txt").read_text(encoding="utf-8")):
        raise PromptFedError(
            f"Its class would be {class_name}, which the file imports already; choose another name than {name}."
        )


def _refuse_existing(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.exists() or path.is_symlink():
            raise PromptFedError(f"{path} exists, and nothing is overwritten; choose another name or --dir.")


def _write(files: Mapping[Path, str], values: Mapping[str, str]) -> None:
    """Write each file from its template."""
    for path, template in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, Template((TEMPLATES / template).read_text(encoding="utf-8")).substitute(values))
