"""What the server's port lets through, frame by frame: only sites whose certificate is good, under their own names.

FLARE looks at a certificate when a connection begins. Here every piece of a message is held to it: a site that is out,
or whose certificate has expired, is cut off at its next one, and cannot come back.
"""

import datetime
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
from cryptography import x509
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.drivers.grpc_driver import StreamConnection
from nvflare.fuel.f3.sfm.constants import Types
from nvflare.fuel.f3.sfm.prefix import PREFIX_LEN, Prefix

from promptfed.sites.revocations import Revocations, key_digest

log = logging.getLogger("promptfed.port")


@dataclass(frozen=True)
class Peer:
    """Who is at the other end of a connection, as its certificate says."""

    name: str
    key: str  # its digest
    ends: datetime.datetime


def guard_port(revoked: Path, sites: frozenset[str]) -> None:
    """Hold every frame that comes over a connection to this process to the certificate of that connection."""
    known, honest = Revocations(revoked), StreamConnection.read_loop

    def read_loop(connection: Any, frames: Iterable[Any]) -> None:
        peer = _peer(connection.context)
        honest(connection, frames if peer is None else _admitted(frames, peer, known, sites))
        if peer is not None:
            connection.close()

    StreamConnection.read_loop = read_loop


def _admitted(frames: Iterable[Any], peer: Peer, known: Revocations, sites: frozenset[str]) -> Iterator[Any]:
    """Yield the frames of a peer until it is out, but none that says it is another site's."""
    for frame in frames:
        if reason := refusal(peer, known.refresh()):
            log.warning("%s is cut off: %s", peer.name, reason)
            return
        if peer.name in sites and (claimed := origin(frame.data)) not in ("", peer.name):
            log.warning("a message of %s was dropped: it says that it comes from %s", peer.name, claimed)
            continue
        yield frame


def refusal(peer: Peer, known: Revocations, now: Callable[..., datetime.datetime] = datetime.datetime.now) -> str:
    """Return why nothing more is heard from a peer; empty if it is."""
    if peer.name in known.sites or peer.key in known.keys:
        return "its certificate is revoked"
    return "its certificate has expired" if peer.ends < now(datetime.UTC) else ""


def origin(frame: bytes) -> str:
    """Return the party that a message says it comes from; empty if it is not a message, or does not say."""
    try:
        prefix = Prefix.from_bytes(frame)
        if prefix.type != Types.DATA or not prefix.header_len:
            return ""
        headers = msgpack.unpackb(memoryview(frame)[PREFIX_LEN : PREFIX_LEN + prefix.header_len])
        return str(headers.get(MessageHeaderKey.ORIGIN, "")).partition(".")[0]
    except Exception:  # what cannot be read is none of ours, and FLARE drops it
        return ""


def _peer(context: Any) -> Peer | None:
    """Return who is at the other end; None on the side that has called, or without TLS."""
    found = context.auth_context().get("x509_pem_cert") if context is not None else None
    if not found:
        return None
    certificate = x509.load_pem_x509_certificate(found[0])
    names = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    name = str(names[0].value) if names else ""
    return Peer(name, key_digest(certificate), certificate.not_valid_after_utc)
