"""PromptFed: adapt one foundation model to many private sites by exchanging prompts, not models."""

from importlib import import_module
from typing import TYPE_CHECKING

from promptfed.core.version import __version__ as __version__

if TYPE_CHECKING:
    from promptfed.core.errors import PromptFedError as PromptFedError
    from promptfed.core.method import Method as Method
    from promptfed.core.method import Task as Task
    from promptfed.core.protocols import Backbone as Backbone
    from promptfed.core.protocols import Batch as Batch
    from promptfed.core.protocols import Data as Data
    from promptfed.core.protocols import Draw as Draw
    from promptfed.core.protocols import Rng as Rng
    from promptfed.core.tree import Tree as Tree
    from promptfed.results.loading import load as load
    from promptfed.results.loading import load_all as load_all
    from promptfed.runs.checks import check_method as check_method
    from promptfed.runs.config import Recipe as Recipe
    from promptfed.runs.runner import Result as Result
    from promptfed.runs.runner import run as run


_HOMES = {
    "Backbone": "core.protocols",
    "Batch": "core.protocols",
    "Data": "core.protocols",
    "Draw": "core.protocols",
    "Method": "core.method",
    "PromptFedError": "core.errors",
    "Recipe": "runs.config",
    "Result": "runs.runner",
    "Rng": "core.protocols",
    "Task": "core.method",
    "Tree": "core.tree",
    "check_method": "runs.checks",
    "load": "results.loading",
    "load_all": "results.loading",
    "run": "runs.runner",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    """Import a public name when it is first used: reading a report or asking for help should not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'promptfed' has no attribute {name!r}")
    return getattr(import_module(f"promptfed.{_HOMES[name]}"), name)
