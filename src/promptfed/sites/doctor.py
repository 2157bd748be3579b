"""`promptfed sites doctor`: everything about a machine that must be right before a site or a coordinator works."""

import ipaddress
import json
import socket
import tempfile
from collections import Counter
from pathlib import Path

from promptfed.core.errors import PromptFedError
from promptfed.core.version import __version__
from promptfed.results.folder import names
from promptfed.results.folder.parts import read_json
from promptfed.sites.certificate_checks import check_certificate, check_clock, read
from promptfed.sites.dialling import SECONDS, Credentials, DialError, dial, find_proxy
from promptfed.sites.findings import Finding, failed, ok, skipped, warning
from promptfed.sites.health import FEDERATION, is_coordinator, server_credentials
from promptfed.sites.kits import AUTHORITY, CERTIFICATE, KEY, Kit, default_home, read_kit
from promptfed.sites.machine_checks import check_disk, check_installed, check_power, check_private
from promptfed.sites.pid_file import running
from promptfed.sites.settings import Federation, read_federation
from promptfed.sites.versions import PACKED_BY, find_mismatch, read_notes, series
from promptfed.sites.watchdog import port_trouble

FEW_TESTS = 10  # with fewer test images no result leaves a site, unless its owner's terms say otherwise


def examine(place: Path, data: str | None = None, home: Path | None = None, seconds: float = SECONDS) -> list[Finding]:
    """Return what is found on this machine, given a kit, a joined site's home, or a federation's folder."""
    if not place.exists():
        raise PromptFedError(f"{place} does not exist; give a kit, a site's --home, or a coordinator's folder.")
    if place.is_dir() and (place / FEDERATION).is_file():
        if data is not None:
            raise PromptFedError("A coordinator has no images; leave out --data.")
        return _examine_coordinator(place, seconds)
    return _examine_site(place, data, home, seconds)


# -- a site's machine ---------------------------------------------------------------------------------------------


def _examine_site(place: Path, data: str | None, home: Path | None, seconds: float) -> list[Finding]:
    machine = [check_installed(), check_power()]
    joined = place.is_dir() and not (place / "site.json").exists() and not is_coordinator(place)
    try:
        kit = read_joined(place) if joined else read_kit(place)
    except PromptFedError as error:
        return [failed("certificate", str(error)), *machine, _check_data(data)]
    state = place if joined else home or default_home(place, kit)
    keys = [state / "engine" / "startup" / KEY, state / "identity.pem"]
    notes = read_notes(state)
    return [
        check_certificate(kit.certificate, kit.authority, kit.site),
        check_clock([kit.certificate, kit.authority], notes),
        _check_way(kit, seconds),
        _check_version(notes.version if notes else None),
        *machine,
        check_disk(state),
        check_private([state], [*keys, *([] if joined else [place] if place.is_file() else [place / KEY])]),
        _check_data(data),
    ]


def read_joined(home: Path) -> Kit:
    """Return the kit with which a site has joined, from what its engine is told."""
    startup = home / "engine" / "startup"
    try:
        told = json.loads((startup / "fed_client.json").read_text(encoding="utf-8"))
        server = told["servers"][0]
        host, _, port = server["service"]["target"].rpartition(":")
        files = ((startup / name).read_bytes() for name in (AUTHORITY, CERTIFICATE, KEY))
        return Kit(told["client"]["fqsn"], server["name"], host, int(port), *files)
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise PromptFedError(f"{startup} is damaged; join again with the site's kit.") from error


def _check_way(kit: Kit, seconds: float) -> Finding:
    """Go all the way to the coordinator's port, as the site's engine does."""
    proxy, variable = find_proxy(kit.coordinator)
    via = f" through the proxy of {variable}" if proxy else ""
    with tempfile.TemporaryDirectory() as folder:  # readable by its owner alone
        paths = [Path(folder) / name for name in (AUTHORITY, CERTIFICATE, KEY)]
        for path, content in zip(paths, (kit.authority, kit.certificate, kit.key), strict=True):
            path.write_bytes(content)
        return _dialled(kit.coordinator, kit.port, Credentials(*paths), seconds, via)


def _dialled(host: str, port: int, credentials: Credentials, seconds: float, via: str) -> Finding:
    try:
        dial(host, port, credentials, seconds).close()
    except DialError as error:
        return failed("port", str(error))
    return ok("port", f"{host}:{port} answers{via}; both sides trust each other's certificate.")


def _check_version(other: str | None) -> Finding:
    if other is None:
        return skipped("version", f"Not known before the first run; the coordinator needs {series(__version__)} too.")
    trouble = find_mismatch(other, "The coordinator")
    return (
        failed("version", f"{trouble}.") if trouble else ok("version", f"{__version__}; the coordinator has {other}.")
    )


def _check_data(source: str | None) -> Finding:
    """Read the images as the site will, and count them."""
    if source is None:
        return skipped("data", "Give --data to have the images read and counted.")
    from promptfed.runs.config import resolve
    from promptfed.sites.client_run import own_data

    try:
        found = own_data(source, resolve({}))
    except PromptFedError as error:
        return failed("data", str(error))
    train = Counter(found.labels[~found.test].tolist())
    tests = int(found.test.sum())
    counts = f"{sum(train.values()):,} training and {tests:,} test images of {len(found.classes)} classes"
    lacking = [name for number, name in enumerate(found.classes) if not train[number]]
    if lacking:
        return warning("data", f"{counts}; no training image of {', '.join(lacking)}.")
    if tests < FEW_TESTS:
        return warning("data", f"{counts}; with fewer than {FEW_TESTS} test images no test result leaves.")
    return ok("data", f"{counts}, {min(train.values()):,} to {max(train.values()):,} of a class.")


# -- the coordinator's machine ------------------------------------------------------------------------------------


def _examine_coordinator(home: Path, seconds: float) -> list[Finding]:
    federation, startup = read_federation(home / FEDERATION), home / "kits" / "coordinator" / "startup"
    own, authority = read(startup / "server.crt"), read(startup / AUTHORITY)
    if not own or not authority:
        trouble = f"{startup} has no certificates; was it made by `promptfed sites init`?"
        return [failed("certificate", trouble), check_installed(), check_power(), check_disk(home)]
    return [
        check_certificate(own, authority, federation.coordinator, host=True),
        check_clock([own, authority]),
        _check_address(federation),
        _check_server(home, federation, seconds),
        _check_sites(home),
        check_installed(),
        check_power(),
        check_disk(home),
        check_private([home], [*(home / "kits").glob("*.zip"), *(home / "ca").rglob("*.json")]),
    ]


def _check_address(federation: Federation) -> Finding:
    """Look where the coordinator's name leads on its own machine: that is where its server listens."""
    name = federation.coordinator
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(name, federation.port, type=socket.SOCK_STREAM)}
    except socket.gaierror:
        return failed("address", f"The name {name} is unknown on this machine; add it to /etc/hosts or DNS.")
    if all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in found):
        return warning(
            "address", f"{name} is {', '.join(sorted(found))} here, so only this machine's sites get through."
        )
    return ok("address", f"{name} is {', '.join(sorted(found))} here.")


def _check_server(home: Path, federation: Federation, seconds: float) -> Finding:
    if running(home / "server.pid") is not None:
        return _dialled(federation.coordinator, federation.port, server_credentials(home), seconds, "")
    for port in (federation.port, federation.admin_port):
        if trouble := port_trouble(port):
            return failed("port", f"The server is not running, and port {port} is not free: {trouble}.")
    return ok("port", f"The server is not running; ports {federation.port} and {federation.admin_port} are free.")


def _check_sites(home: Path) -> Finding:
    """Compare versions with those that the sites of the last run had."""
    runs = sorted((home / "runs").glob(f"*/{names.SITES}"), key=lambda path: path.stat().st_mtime)
    if not runs:
        return skipped("version", f"Not known before the first run; the sites need {series(__version__)} too.")
    told = (read_json(runs[-1]) or {}).get("sites", {})
    versions = {site: declared.get(PACKED_BY) for site, declared in told.items()}
    trouble = [why for site, version in versions.items() if (why := find_mismatch(version, site))]
    if trouble:
        return warning("version", f"In the last run, {trouble[0]}.")
    return ok("version", f"{__version__}; the sites of the last run had {', '.join(sorted(set(versions.values())))}.")
