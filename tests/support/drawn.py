"""What a figure leaves behind: the numbers beside its picture, and everything else as it was."""

import json
from pathlib import Path
from typing import Any


def about(picture: Path) -> dict[str, Any]:
    """Return what lies beside a picture."""
    found: dict[str, Any] = json.loads(picture.with_suffix(".json").read_text(encoding="utf-8"))
    return found


def files(folder: Path) -> dict[str, bytes]:
    """Return a run folder's files, but for what a figure may add."""
    found = [path for path in folder.rglob("*") if path.is_file() and path.parent.name != "figures"]
    return {str(path): path.read_bytes() for path in found if path.name != "report.html"}
