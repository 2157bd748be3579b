"""Requests are signed by the coordinator: a site knows, and can show later, to whom its answers went.

The key is that of the server's own certificate, for which the federation's authority vouches.
"""

import datetime
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from promptfed.sites.identity import STARTUP, rsa_form
from promptfed.sites.kits import AUTHORITY
from promptfed.sites.wire import Header, Refused

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

SIGNED = "coordinator"  # the part of a request's head that says who asks
PARTS = ("run", "round", "nonce", "kind", "site", "client")
SERVER_CERTIFICATE, SERVER_KEY = "server.crt", "server.key"
LONGEST, LONGEST_NAME = 2**13, 64  # letters of a certificate, and of the name in it
UNSIGNED = "the request is not signed by this federation's coordinator"


@dataclass(frozen=True)
class Signer:
    """The coordinator's certificate, and the key that signs for it."""

    certificate: str
    key: "RSAPrivateKey"

    def sign(self, head: Header) -> Header:
        """Return what a request's head says about who asks."""
        signature = self.key.sign(_statement(head), *rsa_form())
        return {"certificate": self.certificate, "signature": signature.hex()}


def load_signer(startup: Path) -> Signer:
    """Return the signer of the coordinator whose server has its certificate in this folder."""
    from cryptography.hazmat.primitives.asymmetric import rsa
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = load_pem_private_key((startup / SERVER_KEY).read_bytes(), None)
    assert isinstance(key, rsa.RSAPrivateKey)
    return Signer((startup / SERVER_CERTIFICATE).read_text(encoding="utf-8"), key)


def asker(home: Path, head: Header) -> str:
    """Return the fingerprint of the certificate that has signed a request; refuse one that is not the coordinator's."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import rsa

    given, startup = head.get(SIGNED), home / STARTUP
    if not isinstance(given, dict) or len(str(given.get("certificate", ""))) > LONGEST:
        raise Refused(UNSIGNED)
    expected = json.loads((startup / "fed_client.json").read_text(encoding="utf-8"))["servers"][0]["identity"]
    authority = x509.load_pem_x509_certificate((startup / AUTHORITY).read_bytes())
    try:
        certificate = x509.load_pem_x509_certificate(given["certificate"].encode())
        certificate.verify_directly_issued_by(authority)
        key = certificate.public_key()
        if not isinstance(key, rsa.RSAPublicKey):
            raise Refused(UNSIGNED)
        key.verify(bytes.fromhex(given["signature"]), _statement(head), *rsa_form())
    except (ValueError, TypeError, KeyError, AttributeError, InvalidSignature) as error:
        raise Refused(UNSIGNED) from error
    names = [str(name.value) for name in certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)]
    if names != [expected[:LONGEST_NAME]]:
        raise Refused(f'the request is signed by "{"".join(names)}", which is not the coordinator')
    if certificate.not_valid_after_utc < datetime.datetime.now(datetime.UTC):
        raise Refused("the coordinator's certificate has expired")
    return certificate.fingerprint(hashes.SHA256()).hex()


def _statement(head: Header) -> bytes:
    """Return what is signed: which request this is, and under which recipe."""
    recipe = hashlib.sha256(str(head.get("recipe")).encode()).hexdigest()
    return json.dumps(["promptfed request", recipe, *(head.get(part) for part in PARTS)]).encode()
