"""The same numbers with real processes and real TLS on loopback, and a run that survives whatever is killed."""

import datetime
import json
import os
import random
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID
from loopback import Loopback, loopback, promptfed, rounds, until
from test_faults import away, ignore
from three_sites import NAMES, SETTINGS, begin, exchange, furthest, lines, server_tree, simulate

from promptfed.sites import coordinator, kits, supervisor
from promptfed.sites.settings import Federation

KILLS = int(os.environ.get("PROMPTFED_KILLS", "10"))
RECOVERY_SECONDS = 120.0  # on two busy cores; a job starts a process per party, each of which imports torch


def run_words(method: str, *more: str) -> list[str]:
    return [method, "rounds=3", "device=cpu", *SETTINGS[method], *more]


@pytest.mark.slow
def test_a_run_over_tls_gives_the_numbers_of_the_simulation(tmp_path: Path) -> None:
    simulated = simulate(tmp_path, "pfedpt")
    with loopback(tmp_path) as federation:
        done = promptfed("sites", "run", *run_words("pfedpt"), "--out", "run", cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "round 3 · accuracy" in done.stdout
        status = promptfed("sites", "status", cwd=tmp_path)
        assert status.stdout.split("\n")[:4] == [
            "server: up",
            "north: connected",
            "south: connected",
            "west: connected",
        ]
        stopped = promptfed("sites", "stop", cwd=tmp_path)
        assert stopped.stdout == "The server is down.\n"
    assert furthest(server_tree(tmp_path / "run"), server_tree(simulated)) <= 1e-6
    for site in NAMES:
        assert list(federation.home(site).glob("runs/*/report.json"))
    assert federation.left == []
    connection = json.loads((tmp_path / "federation/kits/coordinator/startup/fed_server.json").read_text())
    assert connection["servers"][0]["connection_security"] == "mtls"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    folder = tmp_path_factory.mktemp("federation")
    with loopback(folder, "min_sites = 2", "round_seconds = 20") as federation:
        yield federation


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "pfedpg"])
def test_other_methods_over_tls_give_the_numbers_of_the_simulation(
    method: str, running: Loopback, tmp_path: Path
) -> None:
    done = promptfed("sites", "run", *run_words(method), "--out", tmp_path / "run", cwd=running.folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert furthest(server_tree(tmp_path / "run"), server_tree(simulate(tmp_path, method))) <= 1e-6


def handshake(running: Loopback, certificate: Path | None, key: Path | None) -> str:
    """Dial the server with a certificate, trusting it; return what it makes of us."""
    startup = running.folder / "federation" / "kits" / "coordinator" / "startup"
    service = json.loads((startup / "fed_server.json").read_text())["servers"][0]["service"]["target"]
    context = ssl.create_default_context(cafile=startup / "rootCA.pem")
    if certificate is not None:
        context.load_cert_chain(certificate, key)
    with socket.create_connection(("localhost", int(service.rpartition(":")[2])), timeout=2) as plain:
        try:
            with context.wrap_socket(plain, server_hostname="localhost") as secured:
                secured.recv(1)
        except TimeoutError:
            return "accepted"  # it waits for what we have to say
        except (ssl.SSLError, OSError) as error:
            return str(error)
    return "closed"


def expired(running: Loopback, folder: Path) -> tuple[Path, Path]:
    """Return a certificate of our own authority for "west" that ended yesterday, and its key."""
    authority = json.loads((running.folder / "federation/ca/promptfed/state/cert.json").read_text())
    root = x509.load_pem_x509_certificate(authority["root_cert"].encode())
    signing: Any = serialization.load_pem_private_key(authority["root_pri_key"].encode(), None)
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "west")]))
        .issuer_name(root.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=2))
        .not_valid_after(now - datetime.timedelta(days=1))
        .sign(signing, hashes.SHA256())
    )
    (folder / "old.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8
    plain = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    (folder / "old.key").write_bytes(plain)
    return folder / "old.crt", folder / "old.key"


@pytest.mark.slow
def test_a_foreign_an_expired_and_no_certificate_are_refused(running: Loopback, tmp_path: Path) -> None:
    until(lambda: supervisor.connected(running.folder / "federation") == frozenset(NAMES))
    Loopback(tmp_path)  # another authority, the same names
    foreign = kits.unpack(tmp_path / "federation" / "kits" / "west.zip") / "startup"
    own = running.folder / "federation" / "kits" / "west" / "startup"
    assert handshake(running, own / "client.crt", own / "client.key") == "accepted"
    assert "unknown ca" in handshake(running, foreign / "client.crt", foreign / "client.key").lower()
    assert "certificate expired" in handshake(running, *expired(running, tmp_path)).lower()
    assert "certificate required" in handshake(running, None, None).lower()


@pytest.mark.slow
def test_a_stolen_kit_that_claims_another_name_is_refused_and_logged(running: Loopback, tmp_path: Path) -> None:
    home = running.folder / "federation"
    until(lambda: supervisor.connected(home) == frozenset(NAMES))
    running.processes["west"].send_signal(signal.SIGTERM)
    running.processes["west"].wait(30)
    until(lambda: "west" not in (supervisor.connected(home) or {"west"}))
    (tmp_path / "north.zip").write_bytes((home / "kits" / "north.zip").read_bytes())
    kit = kits.unpack(tmp_path / "north.zip")
    (kit / "site.json").write_text(json.dumps({"site": "west"}))
    client = kit / "startup" / "fed_client.json"
    client.write_text(client.read_text().replace('"fqsn": "north"', '"fqsn": "west"'))
    running.start("thief", "join", kit, "--data", running.files["west"], "--home", tmp_path / "thief")
    sentence = "authenticated as 'north' but claimed endpoint 'west'"
    try:
        until(lambda: sentence in (home / "server.log").read_text())
        assert "west" not in (supervisor.connected(home) or ())
    finally:
        running.processes["thief"].send_signal(signal.SIGTERM)
        running.processes["thief"].wait(30)
        running.join("west")
    until(lambda: supervisor.connected(home) == frozenset(NAMES))


VICTIMS = {
    "a site's worker": ("sites.worker", "south"),
    "a site's job": ("worker_process", "kits/south"),
    "a site's parent": ("client_train", "kits/west"),
    "the server's job": ("runner_process", "kits/coordinator"),
    "the server's parent": ("server_train", "kits/coordinator"),
    "the supervisor": ("sites run",),
    "a site's keeper": ("sites join", "north"),
}


@pytest.mark.slow
@pytest.mark.timeout(60 + KILLS * 2 * RECOVERY_SECONDS)
def test_a_run_survives_kills_at_random_moments(tmp_path: Path) -> None:
    draw = random.Random(KILLS)
    out = tmp_path / "run"
    with loopback(tmp_path, "min_sites = 2", "round_seconds = 20") as federation:
        federation.start("run", "run", *run_words("pfedpt", f"rounds={12 * KILLS}", "method.epochs=10"), "--out", out)
        until(lambda: rounds(out) >= 2, RECOVERY_SECONDS)
        for number in range(KILLS):
            time.sleep(draw.uniform(0, 4))
            name = list(VICTIMS)[number % len(VICTIMS)]
            before = _finished(out)
            _kill(federation, name, out)
            until(lambda before=before: _finished(out) >= before + 2 or _over(out), RECOVERY_SECONDS)  # type: ignore[misc]
            assert _finished(out) >= before  # no finished round is lost
        until(lambda: _over(out), 12 * KILLS * 2 + RECOVERY_SECONDS)
    assert federation.left == []
    found = lines(out)
    assert [line["round"] for line in found] == list(range(1, 12 * KILLS + 1))
    missed = {site: {n for n, line in enumerate(found) if i not in _clients(line)} for i, site in enumerate(NAMES)}
    there = tmp_path / "reference"
    there.mkdir()
    rules = Federation(NAMES, min_sites=2)
    reference, _ = begin(there, "pfedpt", f"rounds={12 * KILLS}", "method.epochs=10", federation=rules)
    coordinator.conduct(reference, rules, exchange(there, away(missed)), ignore)
    assert furthest(server_tree(out), server_tree(reference)) <= 1e-6


def _clients(line: dict[str, Any]) -> list[int]:
    return list(line["clients"])


def _finished(out: Path) -> int:
    """Return the rounds that are saved."""
    state = out / "checkpoint" / "state.json"
    return int(json.loads(state.read_text())["round"]) if state.exists() else 0


def _over(out: Path) -> bool:
    return (out / "summary.json").exists()


def _kill(federation: Loopback, name: str, out: Path) -> None:
    """Kill a process without warning; what nobody would start again is started again here."""
    if name == "the supervisor":
        os.kill(federation.processes["run"].pid, signal.SIGKILL)
        federation.processes["run"].wait()
        federation.start("run", "run", "--resume", out)
    elif name == "a site's keeper":
        os.kill(federation.processes["north"].pid, signal.SIGKILL)
        federation.processes["north"].wait()
        federation.join("north")
    else:
        for process in federation.of_federation(*VICTIMS[name]):
            os.kill(process, signal.SIGKILL)
