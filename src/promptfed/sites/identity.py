"""Who a site is to the other sites: a signing key made at the site, for which the certificate of its kit vouches.

    HOME/engine/startup/    from the kit: the federation's authority, the site's certificate and its key
    HOME/identity.pem       the signing key, made here; it never leaves
    HOME/members.json       the other sites' public signing keys, as they were first seen

The coordinator has made the kits, and could vouch for anyone with them. It cannot sign with a key that was made at a
site: it can pass for a site neither to those who have met it before, nor to those whose owners have its key in their
terms.
"""

import datetime
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from promptfed.core.files import write_json
from promptfed.sites.kits import AUTHORITY, CERTIFICATE, KEY
from promptfed.sites.wire import Refused

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.asymmetric.padding import PSS
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.x509 import Certificate

STARTUP, OWN, MEMBERS = Path("engine") / "startup", "identity.pem", "members.json"
VOUCHED = b"promptfed site\n"  # before a signing key that a certificate vouches for
CLAIM = ("site", "certificate", "key", "voucher", "signature")
LONGEST = 2**13  # letters of a certificate, or of anything else in a claim
Claim = dict[str, str]


@dataclass(frozen=True)
class Identity:
    """A site's own signing key, and the authority whose certificates it trusts."""

    site: str
    home: Path
    authority: "Certificate"
    certificate: bytes
    voucher: bytes
    signing: "Ed25519PrivateKey"

    @property
    def key(self) -> str:
        """Return the public signing key, which others recognise this site by."""
        return self.signing.public_key().public_bytes_raw().hex()

    def sign(self, statement: bytes) -> Claim:
        """Return a signature of `statement` with all that others need to check it."""
        signature = self.signing.sign(_spoken(self.site, statement))
        texts = (self.site, self.certificate.decode(), self.key, self.voucher.hex(), signature.hex())
        return dict(zip(CLAIM, texts, strict=True))

    def confirm(self, statement: bytes) -> str:
        """Return a signature of `statement` for those who know this site's key."""
        return self.signing.sign(statement).hex()

    def verify(self, claim: object, statement: bytes) -> tuple[str, str]:
        """Return the site whose claim this is and its public key; refuse one that is not signed by that site."""
        from cryptography import x509
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        found = check_claim(claim)
        site, key, now = found["site"], found["key"], datetime.datetime.now(datetime.UTC)
        try:
            certificate = x509.load_pem_x509_certificate(found["certificate"].encode())
            certificate.verify_directly_issued_by(self.authority)
            _check_voucher(certificate, bytes.fromhex(found["voucher"]), bytes.fromhex(key))
            signer = Ed25519PublicKey.from_public_bytes(bytes.fromhex(key))
            signer.verify(bytes.fromhex(found["signature"]), _spoken(site, statement))
        except (ValueError, TypeError, InvalidSignature) as error:
            raise Refused(f'the keys of "{site}" are not signed by that site') from error
        names = [str(name.value) for name in certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)]
        if names != [site] or not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
            raise Refused(f'the certificate of "{site}" is not for it, or has expired')
        return site, key

    def recognise(self, met: Mapping[str, str], listed: Mapping[str, str]) -> None:
        """Refuse sites with other keys than before, or than the owner has listed; remember those seen first."""
        path = self.home / MEMBERS
        known: dict[str, str] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        for site, key in met.items():
            if listed and site != self.site and listed.get(site) != key:
                raise Refused(f'its owner\'s terms do not list "{site}" with this key')
            if known.get(site, key) != key:
                raise Refused(f'the key of "{site}" is not the one it had before')
        if met.keys() - known.keys():
            write_json(path, known | dict(met))


def load_identity(home: Path, site: str) -> Identity:
    """Return a site's identity; its signing key is made the first time."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import rsa
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    startup = home / STARTUP
    if not all((startup / name).is_file() for name in (AUTHORITY, CERTIFICATE, KEY)):
        raise Refused("it has no certificate, with which it would prove to other sites who it is")
    authority = x509.load_pem_x509_certificate((startup / AUTHORITY).read_bytes())
    vouching = load_pem_private_key((startup / KEY).read_bytes(), None)
    signing = signing_key(home)
    assert isinstance(vouching, rsa.RSAPrivateKey)
    voucher = vouching.sign(VOUCHED + signing.public_key().public_bytes_raw(), *rsa_form())
    return Identity(site, home, authority, (startup / CERTIFICATE).read_bytes(), voucher, signing)


def signing_key(home: Path) -> "Ed25519PrivateKey":
    """Return a site's own signing key, made the first time."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = load_pem_private_key(_own_key(home / OWN), None)
    assert isinstance(key, Ed25519PrivateKey)
    return key


def confirmed_by(key: str, signature: object, statement: bytes) -> bool:
    """Say whether the owner of a public signing key has signed `statement`."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(bytes.fromhex(str(signature)), statement)
    except (ValueError, InvalidSignature):
        return False
    return True


def check_claim(claim: object) -> Claim:
    """Return a claim in its form, if it has that."""
    if not isinstance(claim, dict) or set(claim) != set(CLAIM):
        raise Refused("it does not prove who it is")
    if any(not isinstance(text, str) or len(text) > LONGEST for text in claim.values()):
        raise Refused("it does not prove who it is")
    return {name: claim[name] for name in CLAIM}


def _own_key(path: Path) -> bytes:
    """Return the signing key in a file, made if it is not there."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    if not path.exists():
        made = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        part = path.with_name(f"{path.name}.part")
        part.unlink(missing_ok=True)
        part.touch(0o600)
        part.write_bytes(made)
        part.replace(path)
    return path.read_bytes()


def _check_voucher(certificate: "Certificate", voucher: bytes, key: bytes) -> None:
    """Raise InvalidSignature or TypeError if the certificate's key has not signed the signing key."""
    from cryptography.hazmat.primitives.asymmetric import rsa

    vouching = certificate.public_key()
    if not isinstance(vouching, rsa.RSAPublicKey):
        raise TypeError
    vouching.verify(voucher, VOUCHED + key, *rsa_form())


def rsa_form() -> "tuple[PSS, SHA256]":
    """Return how a certificate's key signs."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import padding

    return padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH), hashes.SHA256()


def _spoken(site: str, statement: bytes) -> bytes:
    return f"promptfed statement of {site}\n".encode() + statement
