"""Which versions of PromptFed may work together: those whose first two numbers are equal, such as 0.1.0 and 0.1.3.

Every message says which version packed it. A site also keeps, in HOME/coordinator.json, what the coordinator's requests
tell: its version, and how its clock compares.
"""

import contextlib
import json
import math
import re
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from promptfed.core.errors import PromptFedError
from promptfed.core.files import write_json
from promptfed.core.version import __version__

FILE = "coordinator.json"
PACKED_BY, SENT = "promptfed", "sent"  # in the head of a message: the version, and the sender's clock
VERSION = re.compile(r"\d{1,4}\.\d{1,4}[A-Za-z0-9.+-]{0,30}")
WORTH_WRITING = 1.0  # seconds by which a comparison of clocks must have become closer


def series(version: str) -> str:
    """Return the first two numbers of a version, which must be equal everywhere."""
    return ".".join(re.split(r"[.+-]", version)[:2])


def find_mismatch(other: object, whose: str) -> str:
    """Return why this version cannot work with the other one; empty if it can."""
    if not isinstance(other, str) or not VERSION.fullmatch(other):
        return f"{whose} does not say which version of PromptFed it has; install {series(__version__)} on both"
    if series(other) != series(__version__):
        return f"{whose} has PromptFed {other}, and this is {__version__}; install the same version on both"
    return ""


@dataclass(frozen=True)
class CoordinatorNotes:
    """What a site knows of its coordinator from its requests."""

    version: str
    lag: float  # seconds between the sender's clock then and ours on arrival; travelling and waiting make it larger
    at: float  # when it was seen, by our clock


@dataclass
class NoteTaker:
    """Keeps the notes of one worker: the closest comparison of clocks, and the last version."""

    home: Path
    _last: CoordinatorNotes = field(default_factory=lambda: CoordinatorNotes("", math.inf, 0.0))

    def take(self, head: dict[str, object]) -> None:
        """Note what a request tells; a disk that is full takes no notes."""
        version, sent, now = head.get(PACKED_BY), head.get(SENT), time.time()
        if not isinstance(version, str) or not VERSION.fullmatch(version):
            return
        lag = now - sent if isinstance(sent, float) and math.isfinite(sent) else math.inf
        if version == self._last.version and lag > self._last.lag - WORTH_WRITING:
            return
        self._last = CoordinatorNotes(version, lag, now)
        with contextlib.suppress(OSError):
            write_json(self.home / FILE, asdict(self._last))


def read_notes(home: Path) -> CoordinatorNotes | None:
    """Return what a site knows of its coordinator, if it has had a request."""
    try:
        return CoordinatorNotes(**json.loads((home / FILE).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise PromptFedError(f"{home / FILE} cannot be read; delete it, the next request writes it anew.") from error
