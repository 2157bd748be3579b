"""Authorities and certificates like those of a federation's kits, written where a site that has joined has them."""

import datetime
from functools import cache
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from promptfed.sites.identity import STARTUP
from promptfed.sites.kits import AUTHORITY, CERTIFICATE, KEY


@cache
def private_key(owner: str) -> rsa.RSAPrivateKey:
    """Return someone's private key, the same one every time."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def named(name: str) -> x509.Name:
    """Return a certificate's name for someone."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def certificate(site: str, authority: str = "authority", days: int = 1) -> bytes:
    """Return the certificate of a site, or of the authority itself, which ends in so many days."""
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(named(site))
        .issuer_name(named(authority))
        .public_key(private_key(site).public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=2))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=site == authority, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(site)]), critical=False)
        .sign(private_key(authority), hashes.SHA256())
    )
    return made.public_bytes(Encoding.PEM)


def write_certificates(home: Path, site: str, authority: str = "authority", days: int = 1) -> Path:
    """Write what `sites join` takes from a kit into a site's folder, and return that folder."""
    startup = home / STARTUP
    startup.mkdir(parents=True, exist_ok=True)
    key = private_key(site).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (startup / AUTHORITY).write_bytes(certificate(authority, authority))
    (startup / CERTIFICATE).write_bytes(certificate(site, authority, days))
    (startup / KEY).write_bytes(key)
    return home
