"""What a method may import: the contract, and the tools a method is written with."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from promptfed.core.errors import PromptFedError as PromptFedError
    from promptfed.core.method import Method as Method
    from promptfed.core.method import Task as Task
    from promptfed.core.method import Traits as Traits
    from promptfed.core.method import adaptable as adaptable
    from promptfed.core.method import dense as dense
    from promptfed.core.method import dual as dual
    from promptfed.core.method import text_to_image as text_to_image
    from promptfed.core.options import Count as Count
    from promptfed.core.options import NonNegative as NonNegative
    from promptfed.core.options import Positive as Positive
    from promptfed.core.options import Share as Share
    from promptfed.core.options import Whole as Whole
    from promptfed.core.protocols import Backbone as Backbone
    from promptfed.core.protocols import Batch as Batch
    from promptfed.core.protocols import Batches as Batches
    from promptfed.core.protocols import Data as Data
    from promptfed.core.protocols import Draw as Draw
    from promptfed.core.protocols import DualEncoder as DualEncoder
    from promptfed.core.protocols import Rng as Rng
    from promptfed.core.protocols import Sorter as Sorter
    from promptfed.core.protocols import TextToImage as TextToImage
    from promptfed.core.protocols import Tokens as Tokens
    from promptfed.core.tree import Tree as Tree

_HOMES = {
    "Backbone": "protocols",
    "Batch": "protocols",
    "Batches": "protocols",
    "Count": "options",
    "Data": "protocols",
    "Draw": "protocols",
    "DualEncoder": "protocols",
    "Method": "method",
    "NonNegative": "options",
    "Positive": "options",
    "PromptFedError": "errors",
    "Rng": "protocols",
    "Share": "options",
    "Sorter": "protocols",
    "Task": "method",
    "TextToImage": "protocols",
    "Tokens": "protocols",
    "Traits": "method",
    "Tree": "tree",
    "Whole": "options",
    "adaptable": "method",
    "dense": "method",
    "dual": "method",
    "text_to_image": "method",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    """Import a public name when it is first used: reading a report should not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'promptfed.core' has no attribute {name!r}")
    return getattr(import_module(f"promptfed.core.{_HOMES[name]}"), name)
