"""Programs outside the package, such as tools/ and benchmarks/, as modules."""

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


@cache
def load_script(path: str) -> ModuleType:
    """Return the program at a path such as "tools/release_notes.py" as a module."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    if (folder := str((ROOT / path).parent)) not in sys.path:  # a program imports those beside it
        sys.path.append(folder)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
