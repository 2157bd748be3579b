"""What `sites doctor` looks at in certificates: whose they are, how long they are good, and what the clock says."""

import datetime
from pathlib import Path

from promptfed.sites.findings import Finding, failed, ok, warning
from promptfed.sites.machine_checks import clock_is_synchronised
from promptfed.sites.versions import CoordinatorNotes

SOON_DAYS = 30
MOST_DIFFERENCE = 60.0  # seconds


def check_certificate(own: bytes, authority: bytes, name: str, *, host: bool = False) -> Finding:
    """Look whether a certificate is for `name`, signed by the authority, and good for more than a month."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    try:
        certificate = x509.load_pem_x509_certificate(own)
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority))
    except (ValueError, TypeError, InvalidSignature):
        return failed("certificate", f"The certificate of {name} is not signed by this federation's authority.")
    names = [str(one.value) for one in certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)]
    if host:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(
            x509.DNSName
        )
    if name not in names:
        return failed("certificate", f"The certificate is for {', '.join(names)}, not for {name}.")
    ends, now = certificate.not_valid_after_utc, datetime.datetime.now(datetime.UTC)
    days = (ends - now).days
    if ends < now:
        return failed("certificate", f"The certificate of {name} expired on {ends:%Y-%m-%d}; it must be renewed.")
    if days < SOON_DAYS:
        return warning("certificate", f"The certificate of {name} ends in {days} days; renew it in time.")
    return ok("certificate", f"The certificate of {name} is good for {days} more days.")


def check_clock(certificates: list[bytes], notes: CoordinatorNotes | None = None) -> Finding:
    """Compare this machine's clock with when certificates were made, and with the coordinator's requests."""
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    begins = max(x509.load_pem_x509_certificate(one).not_valid_before_utc for one in certificates)
    if now < begins:
        return failed("clock", f"This clock says {now:%Y-%m-%d %H:%M} UTC, before the certificates begin: set it.")
    if notes is not None and (off := _difference(notes.lag)):
        return warning("clock", f"This clock is {off} the coordinator's; let both machines use NTP.")
    if notes is not None and abs(notes.lag) <= MOST_DIFFERENCE:
        return ok("clock", f"Within {MOST_DIFFERENCE:.0f} seconds of the coordinator's clock.")
    if clock_is_synchronised() is False:
        return warning("clock", "Nothing keeps this machine's clock right; switch on NTP.")
    return ok("clock", "Within the time for which the certificates are good.")


def _difference(lag: float) -> str:
    """Return a difference that matters in words; a request also takes its time, so being ahead is less certain."""
    if lag < -MOST_DIFFERENCE:
        return f"at least {-lag:,.0f} seconds behind"
    return f"up to {lag:,.0f} seconds ahead of" if MOST_DIFFERENCE < lag < float("inf") else ""


def read(path: Path) -> bytes:
    """Return a file's content; nothing if it cannot be read, which no certificate is."""
    try:
        return path.read_bytes()
    except OSError:
        return b""
