"""HOME/ledger.jsonl: a line for every noisy answer a site has given, whatever the run. Its owner's budget for life.

A line is on the disk before the answer leaves. Lines are only ever added.
"""

import json
import os
import time
from collections import Counter
from pathlib import Path

from promptfed.core.files import private
from promptfed.federation.guards.accountant import composed_epsilon
from promptfed.sites.wire import Refused

FILE = "ledger.jsonl"


class Ledger:
    """What a site has given in all its runs."""

    def __init__(self, home: Path) -> None:
        self.path = home / FILE

    def spent(self, delta: float, more: float | None = None) -> float:
        """Return the ε of all answers so far at this δ, and of one `more` with that much noise."""
        counts = Counter(self._noises())
        if more is not None:
            counts[more] += 1
        return composed_epsilon(tuple(sorted(counts.items())), delta)

    def charge(self, noise: float, run: str, round: int) -> None:  # noqa: A002
        """Add an answer; when this returns, its line is on the disk."""
        line = json.dumps({"time": int(time.time()), "run": run, "round": round, "noise": noise})
        with open(self.path, "a+b", opener=private) as file:
            file.seek(0)
            file.truncate(self._whole(file.read()))  # a line cut off by a crash: nothing had left yet
            file.write(line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def _noises(self) -> list[float]:
        content = self.path.read_bytes() if self.path.exists() else b""
        try:
            found = [float(json.loads(line)["noise"]) for line in content[: self._whole(content)].splitlines()]
        except (ValueError, KeyError, TypeError) as error:
            raise Refused(f"its {FILE} is damaged, so what it has spent is unknown") from error
        if not all(noise > 0 for noise in found):
            raise Refused(f"its {FILE} is damaged, so what it has spent is unknown")
        return found

    def _whole(self, content: bytes) -> int:
        """Return how many bytes of the file are whole lines."""
        return content.rfind(b"\n") + 1
