"""Who is out of a federation: the sites and keys in its revoked.json. The server asks at every frame, without torch."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptfed.core.errors import PromptFedError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

REVOKED = "revoked.json"
OUT = "its certificate is revoked"


@dataclass
class Revocations:
    """The revoked sites and keys in a file, which may change at any time."""

    path: Path
    sites: frozenset[str] = frozenset()
    keys: frozenset[str] = frozenset()
    _read: tuple[int, int] | None = None

    def refresh(self) -> "Revocations":
        """Read the file again if it has changed."""
        try:
            state = self.path.stat()
        except FileNotFoundError:
            self.sites = self.keys = frozenset()
            self._read = None
            return self
        if self._read != (found := (state.st_mtime_ns, state.st_ino)):
            content = read_revoked(self.path)
            self.sites, self.keys = frozenset(content["sites"]), frozenset(content["keys"])
            self._read = found
        return self


def key_digest(certificate: "Certificate") -> str:
    """Return what a certificate's key is known by, whatever certificate it is in."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    key = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(key).hexdigest()


def read_revoked(path: Path) -> dict[str, Any]:
    """Return who is revoked since when, and whose keys are no longer good."""
    if not path.exists():
        return {"sites": {}, "keys": {}}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {"sites": dict(content["sites"]), "keys": dict(content["keys"])}
    except (ValueError, KeyError, TypeError) as error:  # nobody is let in by a file that was damaged
        raise PromptFedError(f"{path} is damaged, so who is revoked is unknown; restore it from a backup.") from error
