"""PromptFed: adapt one foundation model to many private sites by exchanging prompts, not models."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from promptfed.checks import check_method as check_method
    from promptfed.config import Recipe as Recipe
    from promptfed.errors import PromptFedError as PromptFedError
    from promptfed.method import Backbone as Backbone
    from promptfed.method import Batch as Batch
    from promptfed.method import Data as Data
    from promptfed.method import Draw as Draw
    from promptfed.method import Method as Method
    from promptfed.method import Rng as Rng
    from promptfed.method import Task as Task
    from promptfed.runner import Result as Result
    from promptfed.runner import run as run
    from promptfed.tree import Tree as Tree

__version__ = "0.1.0"

_HOMES = {
    "Backbone": "method",
    "Batch": "method",
    "Data": "method",
    "Draw": "method",
    "Method": "method",
    "PromptFedError": "errors",
    "Recipe": "config",
    "Result": "runner",
    "Rng": "method",
    "Task": "method",
    "Tree": "tree",
    "check_method": "checks",
    "run": "runner",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    """Import a public name when it is first used: reading a report or asking for help should not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'promptfed' has no attribute {name!r}")
    return getattr(import_module(f"promptfed.{_HOMES[name]}"), name)
