"""What a run leaves behind: the run folder and the report, without torch.

`read_run(DIR)` returns a whole run folder as one value.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from promptfed.results.folder.parts import read_summary as read_summary
    from promptfed.results.folder.reader import RunFolder as RunFolder
    from promptfed.results.folder.reader import read_run as read_run
    from promptfed.results.folder.reader import run_folders as run_folders

_HOMES = {"RunFolder": "reader", "read_run": "reader", "read_summary": "parts", "run_folders": "reader"}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    """Import a public name when it is first used: the names of files alone need no numpy."""
    if name not in _HOMES:
        raise AttributeError(f"module 'promptfed.results' has no attribute {name!r}")
    return getattr(import_module(f"promptfed.results.folder.{_HOMES[name]}"), name)
