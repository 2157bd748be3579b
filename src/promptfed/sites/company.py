"""HOME/company.json: among which sites this one was hidden, run by run.

Two sums that differ by one site tell that site's answer: a coordinator could run the same recipe twice, with and
without it. `min_change` in the owner's terms says how many sites must have changed, if any have.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from promptfed.core.files import write_json
from promptfed.sites.wire import Refused

FILE = "company.json"


@dataclass(frozen=True)
class Company:
    """The sites of one run, beside those of the others."""

    home: Path
    run: str
    least: int  # sites that must differ from every earlier run, if any do; 0: any number

    def check(self, names: Collection[str]) -> None:
        """Refuse sites that are nearly those of an earlier run; remember those with which this run began."""
        path, now = self.home / FILE, set(names)
        known: dict[str, list[str]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        if self.run in known:
            if self.least and (more := sorted(now - set(known[self.run]))):
                raise Refused(f"this run began without {', '.join(more)}, and its owner's terms let no site join later")
            return
        for run, before in known.items():
            changed = sorted(now ^ set(before))
            if 0 < len(changed) < self.least:
                raise Refused(
                    f"its owner's terms ask for the sites of {run} again, or for {self.least} changes among them, and "
                    f"only {', '.join(changed)} would differ"
                )
        write_json(path, known | {self.run: sorted(now)})
