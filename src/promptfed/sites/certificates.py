"""A federation's certificates after the first day: how long they are good, new ones, and sites that are out.

FEDERATION/ca/NAME/state/cert.json    the authority's key and certificate, and those of every party
FEDERATION/kits/SITE.renewal.zip      a new certificate for the key that the site has; it holds no key
FEDERATION/kits/SITE.zip              with a new key: a whole kit
"""

import datetime
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptfed.core.errors import PromptFedError, choice
from promptfed.core.files import held, private, write_json
from promptfed.sites.flare_workspace import ORGANISATION
from promptfed.sites.kits import AUTHORITY, CERTIFICATE, KEY, Kit, write_kit, write_renewal
from promptfed.sites.provisioning import ADMIN, ROOT_DAYS
from promptfed.sites.revocations import REVOKED, key_digest, read_revoked
from promptfed.sites.settings import Federation
from promptfed.sites.signed_requests import SERVER_CERTIFICATE, SERVER_KEY

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.x509 import Certificate

DAYS = 360  # that a certificate is good for
WARNING = datetime.timedelta(days=30)  # before a certificate ends
COORDINATOR, SUPERVISOR, ROOT = "coordinator", "admin", "authority"
LOCK = ".certificates.lock"
LONGEST_NAME = 64  # letters of a name in a certificate


@dataclass(frozen=True)
class Validity:
    """Whose certificate it is, and when it ends."""

    party: str
    ends: datetime.datetime

    def warning(self, now: datetime.datetime) -> str:
        """Return what is said of a certificate that ends soon, or has ended; empty if there is time."""
        day = f"{self.ends:%Y-%m-%d}"
        if self.ends < now:
            return f"the certificate of {self.party} has expired on {day}"
        left = self.ends - now
        return f"the certificate of {self.party} ends in {left.days} days, on {day}" if left < WARNING else ""


def now() -> datetime.datetime:
    """Return the time in UTC."""
    return datetime.datetime.now(datetime.UTC)


def validities(home: Path, federation: Federation) -> list[Validity]:
    """Return how long the certificates are good: the coordinator's own, and the sites' where the authority's key is."""
    server, admin = home / "kits" / COORDINATOR / "startup", home / "kits" / SUPERVISOR / "startup"
    own = {ROOT: server / AUTHORITY, COORDINATOR: server / SERVER_CERTIFICATE, SUPERVISOR: admin / CERTIFICATE}
    texts = {party: path.read_text(encoding="utf-8") for party, path in own.items() if path.is_file()}
    if _state(home, federation).is_file():
        state = _read(home, federation)
        texts |= {site: state[site]["cert"] for site in federation.sites}
    return [Validity(party, _certificate(text).not_valid_after_utc) for party, text in texts.items()]


def renew(home: Path, federation: Federation, parties: list[str], *, new_key: bool = False) -> dict[str, Path]:
    """Make new certificates; return for each site the file that it needs, a kit if it gets a new key.

    A revoked site gets a new key, and is in again: its old key stays revoked. The server and the supervisor take theirs
    when they start next.
    """
    subjects = _subjects(federation)
    for party in parties:
        if party not in subjects:
            raise choice("site", party, list(subjects), str(home / "fed.toml"))
    with held(home / LOCK, wait=True):
        state, revoked = _read(home, federation), read_revoked(home / REVOKED)
        _renew_root(state)
        made: dict[str, Path] = {}
        for party in parties or [one for one in subjects if one not in revoked["sites"]]:
            fresh = new_key or party in revoked["sites"]
            if fresh and party in federation.sites:
                revoked["keys"][key_digest(_certificate(state[party]["cert"]))] = party
                revoked["sites"].pop(party, None)
            _issue(state, subjects[party], party, federation, fresh)
            made[party] = home / "kits" / f"{party}.{'zip' if fresh else 'renewal.zip'}"
        _write(home, federation, state)
        for party, path in made.items():
            _hand_out(home, federation, state, party, path)
        _install_root(home, state)
        if any(revoked.values()):
            write_json(home / REVOKED, revoked)  # last: a site is let in by a kit that is there
    return {party: path for party, path in made.items() if party in federation.sites}


def revoke(home: Path, federation: Federation, site: str) -> bool:
    """Put a site out; say whether it was in. When it gets a new kit, its old key is what stays out."""
    if site not in federation.sites:
        raise choice("site", site, federation.sites, str(home / "fed.toml"))
    with held(home / LOCK, wait=True):
        revoked = read_revoked(home / REVOKED)
        if site in revoked["sites"]:
            return False
        revoked["sites"][site] = int(now().timestamp())
        write_json(home / REVOKED, revoked)
    return True


def require_valid(home: Path, federation: Federation) -> None:
    """Refuse to start a server that no site would talk to."""
    for one in validities(home, federation):
        if one.party not in federation.sites and one.ends < now():
            sentence = one.warning(now())
            raise PromptFedError(f"{sentence[0].upper()}{sentence[1:]}; renew it with: promptfed sites renew")


def _subjects(federation: Federation) -> dict[str, str]:
    """Return the name in every party's certificate."""
    own = {COORDINATOR: federation.coordinator[:LONGEST_NAME], SUPERVISOR: ADMIN}
    return own | {site: site for site in federation.sites}


def _state(home: Path, federation: Federation) -> Path:
    return home / "ca" / federation.name / "state" / "cert.json"


def _read(home: Path, federation: Federation) -> dict[str, Any]:
    path = _state(home, federation)
    try:
        state = dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise PromptFedError(
            f"{path} is not there, and only with it certificates can be made; restore ca/ from a backup."
        ) from None
    except ValueError as error:
        raise PromptFedError(f"{path} is damaged; restore ca/ from a backup.") from error
    for party, subject in _subjects(federation).items():
        if subject not in state:
            raise PromptFedError(f"{path} has no certificate of {party}; a new site needs a new federation.")
    return state


def _write(home: Path, federation: Federation, state: dict[str, Any]) -> None:
    path = _state(home, federation)
    part = path.with_name(f".{path.name}.part")
    with open(part, "w", encoding="utf-8", opener=private) as file:
        json.dump(state, file)
    part.replace(path)


def _renew_root(state: dict[str, Any]) -> None:
    """Give the authority a new certificate for its key before it ends sooner than what it signs."""
    from nvflare.lighter.utils import Identity, generate_cert, serialize_cert

    old, key = _certificate(state["root_cert"]), _key(state["root_pri_key"])
    if old.not_valid_after_utc > now() + datetime.timedelta(days=DAYS):
        return
    who = Identity(_name(old))
    made = generate_cert(who, who, key, key.public_key(), valid_days=ROOT_DAYS, ca=True)
    state["root_cert"] = serialize_cert(made).decode()


def _issue(state: dict[str, Any], subject: str, party: str, federation: Federation, fresh: bool) -> None:
    """Make a new certificate, for the same key or for a new one."""
    from nvflare.lighter.utils import Identity, generate_cert, generate_keys, serialize_cert, serialize_pri_key

    if fresh:
        state[subject]["pri_key"] = serialize_pri_key(generate_keys()[0]).decode()
    who = Identity(subject, ORGANISATION, "project_admin" if party == SUPERVISOR else None)
    made = generate_cert(
        who,
        Identity(_name(_certificate(state["root_cert"]))),
        _key(state["root_pri_key"]),
        _key(state[subject]["pri_key"]).public_key(),
        valid_days=DAYS,
        server_default_host=federation.coordinator if party == COORDINATOR else None,
    )
    state[subject]["cert"] = serialize_cert(made).decode()


def _hand_out(home: Path, federation: Federation, state: dict[str, Any], party: str, path: Path) -> None:
    """Write what a site needs, or put a certificate where the server or the supervisor has its own."""
    kits, subject = home / "kits", _subjects(federation)[party]
    own = {KEY: state[subject]["pri_key"], CERTIFICATE: state[subject]["cert"]}
    if party not in federation.sites:
        names = {KEY: SERVER_KEY, CERTIFICATE: SERVER_CERTIFICATE} if party == COORDINATOR else {KEY: KEY}
        for name, content in own.items():
            _install(kits / party / "startup" / names.get(name, name), content)
        return
    parts = [text.encode() for text in (state["root_cert"], own[CERTIFICATE], own[KEY])]
    kit = Kit(party, federation.name, federation.coordinator, federation.port, *parts)
    if path == kits / f"{party}.zip":
        (kits / f"{party}.renewal.zip").unlink(missing_ok=True)  # it is for the old key
        write_kit(path, kit)
    else:
        write_renewal(path, kit)


def _install_root(home: Path, state: dict[str, Any]) -> None:
    for party in (COORDINATOR, SUPERVISOR):
        _install(home / "kits" / party / "startup" / AUTHORITY, state["root_cert"])


def _install(path: Path, content: str) -> None:
    part = path.with_name(f".{path.name}.part")
    with open(part, "w", encoding="utf-8", opener=private) as file:
        file.write(content)
    part.replace(path)


def _certificate(text: str) -> "Certificate":
    from cryptography import x509

    return x509.load_pem_x509_certificate(text.encode())


def _key(text: str) -> "RSAPrivateKey":
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = load_pem_private_key(text.encode(), None)
    assert isinstance(key, RSAPrivateKey)
    return key


def _name(certificate: "Certificate") -> str:
    from cryptography import x509

    return str(certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value)
