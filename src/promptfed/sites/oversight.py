"""What a coordinator keeps about its sites, whatever the run: who is out, and where their audit logs were last.

FEDERATION/revoked.json    the sites that are out, and digests of public keys that are no longer good
FEDERATION/audits.json     the number and hash of each site's last audit record, as its answers told them
"""

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from promptfed.core.errors import PromptFedError
from promptfed.core.files import held, write_json
from promptfed.sites.audit_log import AUDIT
from promptfed.sites.revocations import REVOKED, Revocations
from promptfed.sites.signed_requests import SIGNED, Signer, load_signer
from promptfed.sites.wire import Header

AUDITS = "audits.json"
HASH = re.compile("[0-9a-f]{64}")
MOST = 2**53  # records


@dataclass
class Oversight:
    """A run's view of the federation's folder; without one nothing is signed, kept or revoked."""

    home: Path | None = None
    signer: Signer | None = None
    marks: dict[str, Header] = field(default_factory=dict)  # of this run, since they were last written
    run: str = ""
    _revoked: Revocations | None = None

    @classmethod
    def of(cls, home: Path) -> "Oversight":
        """Return the oversight of the federation in `home`."""
        signer = load_signer(home / "kits" / "coordinator" / "startup")
        return cls(home, signer, _revoked=Revocations(home / REVOKED))

    def revoked(self) -> frozenset[str]:
        """Return the sites that are out now."""
        return frozenset() if self._revoked is None else self._revoked.refresh().sites

    def signed(self, head: Header) -> Header:
        """Return a request's head, signed."""
        return head if self.signer is None else head | {SIGNED: self.signer.sign(head)}

    def note(self, site: str, answer: Header) -> None:
        """Remember where a site's audit log is, as a valid answer of it says."""
        told = answer.pop(AUDIT, None)
        if not isinstance(told, dict) or type(told.get("n")) is not int or not 0 < told["n"] < MOST:
            return
        if isinstance(told.get("hash"), str) and HASH.fullmatch(told["hash"]):
            self.marks[site] = {"n": told["n"], "hash": told["hash"]}

    def keep(self) -> None:
        """Write where the sites' audit logs are, and which of them have gone back."""
        if self.home is None or not self.marks:
            return
        with held(self.home / f".{AUDITS}.lock", wait=True):
            known = read_audits(self.home)
            for site, mark in self.marks.items():
                write = mark | {"run": self.run, "time": int(time.time())}
                known[site] = write | {"back": _back(known.get(site, {}), mark)}
            write_json(self.home / AUDITS, known)
        self.marks = {}


def _back(before: Mapping[str, Any], mark: Header) -> list[int]:
    """Return from which records the log has gone back, so far: its owner has restored or removed what was there."""
    back = list(before.get("back", []))
    if mark["n"] < before.get("n", 0) or (mark["n"] == before.get("n") and mark["hash"] != before.get("hash")):
        back.append(before["n"])
    return back


def read_audits(home: Path) -> dict[str, dict[str, Any]]:
    """Return where every site's audit log was last."""
    path = home / AUDITS
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}
    except ValueError as error:
        raise PromptFedError(f"{path} is damaged; remove it to begin anew.") from error
