"""PromptFed: adapt one foundation model to many private sites by exchanging prompts, not models."""

from promptfed.config import Recipe
from promptfed.errors import PromptFedError
from promptfed.method import Backbone, Batch, Data, Draw, Method, Rng, Task
from promptfed.runner import Result, run
from promptfed.tree import Tree

__version__ = "0.1.0"

__all__ = [
    "Backbone",
    "Batch",
    "Data",
    "Draw",
    "Method",
    "PromptFedError",
    "Recipe",
    "Result",
    "Rng",
    "Task",
    "Tree",
    "run",
]
