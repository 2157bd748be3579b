"""What methods, backbones, data sets and partitions are called and which keys they take, read from their source.

Importing a method imports torch, which takes seconds: too long to be told of a misspelt key. So every class is stood in
for by a frozen dataclass with the same fields, types, defaults, class variables and docstring, and no code. Only what
these are made of is evaluated. What needs the code, such as a run, takes the class itself from its own registry.
Methods of other packages may be written in any way, so a run always asks them themselves.
"""

import ast
import importlib
import sys
from collections.abc import Iterator
from dataclasses import make_dataclass
from functools import cache
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from promptfed.runs import registry

ROOT = Path(__file__).parents[1]
LIGHT = "promptfed.core.options"  # imported as it is: it needs no torch, and the types of fields are its own


def methods() -> dict[str, type[Any]]:
    """Return every method by name, or its stand-in."""
    own = _own_methods()
    return own | {name: _elsewhere(point) for name, point in registry.announced(own).items()}


def method_names() -> list[str]:
    """Return the names of all methods; none is imported."""
    own = _own_methods()
    return [*own, *registry.announced(own)]


def find_method(name: str) -> type[Any]:
    """Return the stand-in of one of the package's own methods; any other method itself."""
    own = _own_methods()
    if name in own:
        return own[name]
    if ":" not in name and name not in method_names():
        raise registry.no_method(name, method_names())
    return registry.find_method(name)


def _elsewhere(point: EntryPoint) -> type[Any]:
    """Return a stand-in of another package's method, or the method itself if that cannot be read from its source."""
    try:
        found: type[Any] = _source(point.module)[point.attr]
    except Exception:  # whatever stands in that source, importing it is the other way
        found = point.load()
    return found


def backbones() -> dict[str, type[Any]]:
    """Return a stand-in of every backbone by name."""
    return _registered("promptfed.backbones", "BACKBONES")


def datasets() -> dict[str, type[Any]]:
    """Return a stand-in of every data set by name."""
    return _registered("promptfed.data.datasets", "DATASETS")


def partitions() -> dict[str, type[Any]]:
    """Return a stand-in of every partition by name."""
    return _registered("promptfed.data.partition", "PARTITIONS")


def _registered(module: str, name: str) -> dict[str, type[Any]]:
    """Return a registry with stand-ins for its classes; one that is imported already, and may have grown, itself."""
    found: dict[str, type[Any]] = vars(sys.modules[module])[name] if module in sys.modules else _source(module)[name]
    return found


@cache  # the package's own files stay as they are
def _own_methods() -> dict[str, type[Any]]:
    found = {}
    for path in sorted((ROOT / "methods").glob("*.py")):
        source = _source(f"promptfed.methods.{path.stem}")
        for kind in (source[node.name] for node in source.classes() if _declares_name(node)):
            found[kind.name] = kind
    return {name: kind for name, kind in found.items() if name != registry.WRAPPER}


def _declares_name(node: ast.ClassDef) -> bool:
    return any(target == "name" and value for target, _, value in _declarations(node))


def _declarations(node: ast.ClassDef) -> Iterator[tuple[str, ast.expr, ast.expr | None]]:
    """Yield the name, the type and the value, if it has one, of all that is declared in a class."""
    for line in node.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            yield line.target.id, line.annotation, line.value


@cache
def _source(module: str) -> "_Source":
    if module.startswith("promptfed."):  # `find_spec` would import the packages around the module
        path = ROOT.joinpath(*module.split(".")[1:])
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    else:
        spec = find_spec(module)
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(f"No module named {module!r}")
        path = Path(spec.origin)
    return _Source(ast.parse(path.read_text(encoding="utf-8")))


class _Source(dict[str, Any]):
    """The names at the top of a source file; each is evaluated when it is first asked for."""

    def __init__(self, tree: ast.Module) -> None:
        super().__init__()
        self._nodes: dict[str, ast.ClassDef | ast.expr | tuple[str, str]] = {}
        for node in [*tree.body, *(inner for one in tree.body if isinstance(one, ast.If) for inner in one.body)]:
            if isinstance(node, ast.ClassDef):
                self._nodes[node.name] = node
            elif isinstance(node, ast.ImportFrom):
                self._nodes |= {one.asname or one.name: (node.module or "", one.name) for one in node.names}
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self._nodes[node.targets[0].id] = node.value
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
                self._nodes[node.target.id] = node.value

    def __missing__(self, name: str) -> Any:
        node = self._nodes[name]
        if isinstance(node, ast.ClassDef):
            self[name] = self._stand_in(node)
        elif isinstance(node, ast.expr):
            self[name] = self._value(node)
        else:
            module, original = node
            ours = module.startswith("promptfed.") and module != LIGHT
            self[name] = _source(module)[original] if ours else getattr(importlib.import_module(module), original)
        return self[name]

    def classes(self) -> Iterator[ast.ClassDef]:
        """Yield the classes of the file."""
        return (node for node in self._nodes.values() if isinstance(node, ast.ClassDef))

    def _stand_in(self, node: ast.ClassDef) -> type[Any]:
        """Return a dataclass with what the class declares, and with what it inherits."""
        fields: list[Any] = [
            (name, self._value(kind), *([self._value(value)] if value else []))
            for name, kind, value in _declarations(node)
        ]
        bases = tuple(self._value(base) for base in node.bases)
        doc = {"__doc__": ast.get_docstring(node)}
        return make_dataclass(node.name, fields, bases=bases, namespace=doc, frozen=True)

    def _value(self, node: ast.expr) -> Any:
        # nothing is evaluated that an import of the file would not run as well
        return eval(compile(ast.Expression(node), "<source>", "eval"), {}, self)
