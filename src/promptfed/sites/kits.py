"""A site's kit: its name, its certificate and key, and the coordinator's address. It holds nothing that could run.

    SITE/site.json      the site, the federation, the coordinator's host name and its port
    SITE/rootCA.pem     the federation's authority
    SITE/client.crt     the site's certificate
    SITE/client.key     its private key

A kit comes from someone else, so it is read as data: anything more is refused by name, and everything that configures
the site's processes is written by this package.
"""

import datetime
import json
import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from promptfed.core.errors import PromptFedError
from promptfed.core.files import write_bytes
from promptfed.sites.settings import MOST_PORT, NAME

ABOUT, AUTHORITY, CERTIFICATE, KEY = "site.json", "rootCA.pem", "client.crt", "client.key"
FILES = (ABOUT, AUTHORITY, CERTIFICATE, KEY)
RENEWAL = "renewal.zip"  # in a site's state: the newest certificate for the key of its kit
STATE = "state"  # what a site adds to the folder of its own kit
LARGEST_FILE = 2**16  # bytes
HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")


@dataclass(frozen=True)
class Kit:
    """Who a site is, and whom it trusts."""

    site: str
    federation: str
    coordinator: str
    port: int
    authority: bytes
    certificate: bytes
    key: bytes


def write_kit(path: Path, kit: Kit) -> None:
    """Write a kit as a zip that only its owner can read."""
    _write_archive(path, kit, FILES)


def _write_archive(path: Path, kit: Kit, names: Sequence[str]) -> None:
    about = {key: value for key, value in asdict(kit).items() if key in ("site", "federation", "coordinator", "port")}
    contents = (json.dumps(about, indent=1).encode(), kit.authority, kit.certificate, kit.key)
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    part.touch(0o600)
    with zipfile.ZipFile(part, "w") as archive:
        for name, content in zip(FILES, contents, strict=True):
            if name in names:
                archive.writestr(f"{kit.site}/{name}", content)
    part.replace(path)


def read_kit(path: Path) -> Kit:
    """Read a kit, a zip or a folder, and refuse one that holds anything more, or that does not fit together."""
    if not path.exists():
        raise PromptFedError(f"The kit {path} does not exist.")
    files = _folder_files(path) if path.is_dir() else _archive_files(path)
    for name in FILES:
        if name not in files:
            raise PromptFedError(f"{path} is not a site's kit: it has no {name}.")
    about = _read_about(files[ABOUT], path)
    return Kit(*about, *_read_certificates(files, about[0], path))


def _renewed(files: Mapping[str, bytes], kit: Kit, path: Path) -> Kit:
    """Return the kit with the certificates of a renewal, if that is of the same site, authority and key."""
    from cryptography import x509

    for name in FILES[:-1]:
        if name not in files:
            raise PromptFedError(f"{path} is not a renewal: it has no {name}.")
    site, federation, *_ = _read_about(files[ABOUT], path)
    if (site, federation) != (kit.site, kit.federation):
        raise PromptFedError(f"{path} is a renewal for {site} of {federation}, not for {kit.site} of {kit.federation}.")
    try:
        keys = [x509.load_pem_x509_certificate(one).public_key() for one in (files[AUTHORITY], kit.authority)]
    except ValueError as error:
        raise PromptFedError(f"The certificates in {path} are not valid; ask the coordinator for new ones.") from error
    if keys[0] != keys[1]:
        raise PromptFedError(f"{path} is of another authority than the kit; ask the coordinator for a new kit.")
    made = _read_certificates({**files, KEY: kit.key}, site, path)
    return replace(kit, authority=made[0], certificate=made[1])


def write_renewal(path: Path, kit: Kit) -> None:
    """Write a new certificate for the key that a site has, as a zip without any key."""
    _write_archive(path, kit, FILES[:-1])


def take_renewal(path: Path, kit: Kit, home: Path) -> Kit:
    """Check a renewal against the kit it is for, and keep it in the site's state for every later join."""
    if not path.exists():
        raise PromptFedError(f"The renewal {path} does not exist.")
    files = _archive_files(path)
    if KEY in files:
        raise PromptFedError(f"{path} is a whole kit; join with it in place of the old one, and with the same --home.")
    renewed = _renewed(files, kit, path)
    require_valid(renewed, path)
    write_bytes(home / RENEWAL, path.read_bytes())
    (home / RENEWAL).chmod(0o600)
    return renewed


def newest(kit: Kit, home: Path) -> Kit:
    """Return the kit with the certificate that the site has taken later, if that is for the same key."""
    path = home / RENEWAL
    if not path.exists():
        return kit
    try:
        renewed = _renewed(_archive_files(path), kit, path)
    except PromptFedError:
        return kit  # it belongs to an older kit
    return max(kit, renewed, key=expiry)


def expiry(kit: Kit) -> datetime.datetime:
    """Return when the first of a kit's certificates ends: the site's, or the authority's."""
    from cryptography import x509

    both = (x509.load_pem_x509_certificate(content) for content in (kit.authority, kit.certificate))
    return min(one.not_valid_after_utc for one in both)


def require_valid(kit: Kit, path: Path) -> None:
    """Refuse a certificate that has expired."""
    if (ends := expiry(kit)) < datetime.datetime.now(datetime.UTC):
        raise PromptFedError(
            f"The certificate in {path} has expired on {ends:%Y-%m-%d}; ask the coordinator for a new one, which "
            f"promptfed sites renew {kit.site} makes there."
        )


def default_home(path: Path, kit: Kit) -> Path:
    """Return where a site keeps its state if its owner names no folder: in the kit's, or beside its zip."""
    return (path if path.is_dir() else path.parent / kit.site) / STATE


def _folder_files(folder: Path) -> dict[str, bytes]:
    """Return the files of a kit's folder; its own state is no part of the kit."""
    found = {}
    for path in sorted(folder.iterdir()):
        if path.name == STATE and path.is_dir():
            continue
        first = next((inner for inner in sorted(path.rglob("*")) if inner.is_file()), path) if path.is_dir() else path
        name = first.relative_to(folder).as_posix()
        _refuse_foreign(name, first.stat().st_size, folder)
        if not path.is_file():  # reading a pipe would wait for its writer
            raise PromptFedError(f"{name} in {folder} is not a regular file.")
        found[name] = path.read_bytes()
    return found


def _archive_files(path: Path) -> dict[str, bytes]:
    """Return the files of a zipped kit, which lie in one folder."""
    if not zipfile.is_zipfile(path):
        raise PromptFedError(f"{path} is not a site's kit.")
    found = {}
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            if entry.is_dir():
                continue
            name = entry.filename.partition("/")[2] or entry.filename
            _refuse_foreign(name, entry.file_size, path)
            try:
                with archive.open(entry) as file:
                    found[name] = file.read(LARGEST_FILE)
            except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:  # damaged, or encrypted
                raise PromptFedError(f"{name} in {path} cannot be unpacked; ask for a new kit.") from error
    return found


def _refuse_foreign(name: str, size: int, path: Path) -> None:
    """Refuse a file that is not part of a kit: the engine of a site would run what some of them say."""
    if name not in FILES:
        shown = "".join(letter for letter in name[:100] if letter.isprintable())
        raise PromptFedError(
            f"{shown} in {path} is not part of a kit, which has only {', '.join(FILES)}; ask the coordinator for a "
            "kit made by this version."
        )
    if size > LARGEST_FILE:
        raise PromptFedError(f"{name} in {path} has {size:,} bytes; no file of a kit has more than {LARGEST_FILE:,}.")


def _read_about(content: bytes, path: Path) -> tuple[str, str, str, int]:
    """Return the names and the address in site.json, if they are names and an address."""
    try:
        about = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise PromptFedError(f"{ABOUT} in {path} is not valid JSON.") from error
    fields = {"site": NAME, "federation": NAME, "coordinator": HOST, "port": None}
    if not isinstance(about, dict) or about.keys() != fields.keys():
        raise PromptFedError(f"{ABOUT} in {path} must have exactly these keys: {', '.join(fields)}.")
    for key, pattern in fields.items():
        value = about[key]
        if pattern is not None and not (isinstance(value, str) and pattern.fullmatch(value)):
            raise PromptFedError(f"{key} in {ABOUT} of {path} is not a valid name.")
    if type(about["port"]) is not int or not 0 < about["port"] <= MOST_PORT:
        raise PromptFedError(f"port in {ABOUT} of {path} is not a port number.")
    return about["site"], about["federation"], about["coordinator"], about["port"]


def _read_certificates(files: Mapping[str, bytes], site: str, path: Path) -> tuple[bytes, bytes, bytes]:
    """Return the certificates and the key as they are understood here, if they are this site's and go together."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

    try:
        authority = x509.load_pem_x509_certificate(files[AUTHORITY])
        own = x509.load_pem_x509_certificate(files[CERTIFICATE])
        key = load_pem_private_key(files[KEY], None)
        own.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature) as error:
        raise PromptFedError(f"The certificates in {path} are not valid; ask the coordinator for a new kit.") from error
    names = [str(name.value) for name in own.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)]
    if names != [site]:
        raise PromptFedError(f"The certificate in {path} is not for {site}; ask the coordinator for a new kit.")
    if own.public_key() != key.public_key():
        raise PromptFedError(f"The key in {path} does not fit its certificate; ask the coordinator for a new kit.")
    private = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    return authority.public_bytes(Encoding.PEM), own.public_bytes(Encoding.PEM), private
