"""What a run began with at a site: digests of its images and of the frozen weights, in HOME/runs/RUN/sources.json."""

import hashlib
import json
import secrets
from collections.abc import Mapping
from pathlib import Path

from promptfed.core.files import write_json, write_text
from promptfed.runs.planning import IMAGES
from promptfed.sites.wire import Refused

FILE, SALT = "sources.json", "salt"


def pin_sources(folder: Path, found: Mapping[str, str]) -> None:
    """Refuse to go on with other images or frozen weights than those the run began with here."""
    path = folder / FILE
    if not path.exists():
        write_json(path, found)
        return
    known = json.loads(path.read_text(encoding="utf-8"))
    if changed := [what for what, digest in found.items() if known.get(what, digest) != digest]:
        raise Refused(f"its {changed[0]} are not those that this run began with; restore them, or start a new run")


def shown_sources(home: Path, found: Mapping[str, str]) -> dict[str, str]:
    """Return the digests for the coordinator, which must not be able to compare a site's images with its own."""
    path = home / SALT
    if not path.exists():
        write_text(path, secrets.token_hex(32))
    salt = path.read_text(encoding="utf-8")
    return {
        what: hashlib.sha256(f"{salt}|{digest}".encode()).hexdigest() if what == IMAGES else digest
        for what, digest in found.items()
    }
