"""A small federation of real processes over real TLS, short enough for every day: numbers, refusals, clean leaving."""

import datetime
import json
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID
from PIL import Image

from promptfed.core.files import write_sealed
from promptfed.core.version import __version__
from promptfed.data import open_dataset
from promptfed.data.digest import digest_images
from promptfed.sites import flare_workspace as flare
from promptfed.sites.admin_session import connected
from promptfed.sites.audit_check import check_audit
from promptfed.sites.doctor import examine
from promptfed.sites.health import find_trouble
from promptfed.sites.kits import read_kit
from promptfed.sites.provisioning import provision
from promptfed.sites.settings import read_federation
from support.connect_proxy import ConnectProxy, connect_proxy
from support.loopback import Loopback, promptfed, until
from support.silent_connections import closed, handshake, listening, strangers
from support.three_sites import NAMES, SETTINGS, furthest, server_tree, simulate

PATIENCE = 240.0  # a dozen processes that import torch may share two busy cores with much else


@pytest.fixture
def proxy() -> Iterator[ConnectProxy]:
    with connect_proxy("secret") as made:
        yield made


@pytest.mark.timeout(900)
@pytest.mark.real_processes
def test_three_sites_over_tls(tmp_path: Path, proxy: ConnectProxy) -> None:
    federation = Loopback(tmp_path)
    fed = read_federation(tmp_path / "fed.toml")
    try:
        federation.start("server", "start")
        with strangers((fed.port, fed.admin_port), 20, PATIENCE) as silent:
            for site in NAMES[:2]:
                federation.join(site)
            start_thief(federation, tmp_path / "stolen")
            check_refusals(federation, tmp_path)
            stop_thief(federation)
            federation.join("west", https_proxy=proxy.url, no_proxy="")
            federation.start("run", "run", "pfedpt", "rounds=2", "device=cpu", *SETTINGS["pfedpt"], "--out", "run")
            simulated = simulate(tmp_path, "pfedpt", "rounds=2")
            until(lambda: (tmp_path / "run" / "summary.json").exists() or not running(federation, "run"), PATIENCE)
            assert federation.processes["run"].wait(60) == 0, federation.said("run")
            until(lambda: all(closed(connection) for connection in silent), PATIENCE)
        check_health(federation, proxy)
    finally:
        federation.close()
    assert federation.left == []
    assert "round 2 · accuracy" in federation.said("run")
    assert furthest(server_tree(tmp_path / "run"), server_tree(simulated)) <= 1e-6
    check_what_a_site_holds(federation, tmp_path)
    check_what_the_coordinator_knows(federation, tmp_path)
    check_disks(federation)
    check_audit_logs(federation)


def check_health(federation: Loopback, proxy: ConnectProxy) -> None:
    """Find the coordinator and west well; west's engine came through the proxy, and asked for nothing but one port."""
    home, west = federation.folder / "federation", federation.home("west")
    assert [find_trouble(home), find_trouble(west)] == ["", ""]
    assert set(proxy.asked) == {f"localhost:{read_federation(home / 'fed.toml').port}"}
    assert proxy.refused == []
    (version,) = [finding for finding in examine(west) if finding.check == "version"]
    assert version.says == f"{__version__}; the coordinator has {__version__}."


def running(federation: Loopback, name: str) -> bool:
    """Say whether a command is still at work."""
    return federation.processes[name].poll() is None


# -- who is refused -----------------------------------------------------------------------------------------------


def start_thief(federation: Loopback, folder: Path) -> None:
    """Let someone with north's kit claim to be west, on a machine where nothing of ours stops him."""
    kit = read_kit(federation.folder / "federation" / "kits" / "north.zip")
    flare.build_site_workspace(replace(kit, site="west"), folder)
    federation.start_command("thief", *flare.parent_command(folder, "west"))


def stop_thief(federation: Loopback) -> None:
    """Wait until the thief was refused, see that he is not taken for west, and send him away."""
    home = federation.folder / "federation"
    sentence = "authenticated as 'north' but claimed endpoint 'west'"
    until(lambda: sentence in (home / "server.log").read_text(), PATIENCE)
    assert "west" not in (connected(home) or ())
    federation.processes["thief"].terminate()
    federation.processes["thief"].wait(60)


def check_refusals(federation: Loopback, folder: Path) -> None:
    """Dial the server with our own certificate, an expired one, foreign ones, and none."""
    startup = federation.folder / "federation" / "kits" / "coordinator" / "startup"
    service = json.loads((startup / "fed_server.json").read_text())["servers"][0]
    assert service["connection_security"] == "mtls"
    port = int(service["service"]["target"].rpartition(":")[2])
    until(lambda: listening(port), PATIENCE)
    root = startup / "rootCA.pem"
    own = folder / "stolen" / "startup"
    assert handshake(port, root, own / "client.crt", own / "client.key") == "accepted"
    ours: Any = json.loads((federation.folder / "federation/ca/promptfed/state/cert.json").read_text())
    authority = x509.load_pem_x509_certificate(ours["root_cert"].encode())
    signing: Any = serialization.load_pem_private_key(ours["root_pri_key"].encode(), None)
    expired = certificate(folder / "old", authority.subject, signing, days=-1)
    assert handshake(port, root, *expired) == "refused"
    foreign_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    foreign = certificate(folder / "foreign", named("another authority"), foreign_key, days=1)
    assert handshake(port, root, *foreign) == "refused"
    provision(federation.folder / "fed.toml", folder / "other")  # another authority, but all the same names
    flare.build_site_workspace(read_kit(folder / "other" / "kits" / "west.zip"), folder / "elsewhere")
    other = folder / "elsewhere" / "startup"
    assert handshake(port, root, other / "client.crt", other / "client.key") == "refused"
    assert handshake(port, root) == "refused"


def named(name: str) -> x509.Name:
    """Return a certificate's name for someone."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def certificate(stem: Path, issuer: x509.Name, signing: Any, days: int) -> tuple[Path, Path]:
    """Return a certificate for "west" that ends in so many days, and its key."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(named("west"))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=2))
        .not_valid_after(now + datetime.timedelta(days=days))
        .sign(signing, hashes.SHA256())
    )
    paths = stem.with_suffix(".crt"), stem.with_suffix(".key")
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8
    paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return paths


# -- what is left -------------------------------------------------------------------------------------------------


def check_what_a_site_holds(federation: Loopback, folder: Path) -> None:
    """Find a model at every site, which answers there, and in the log of what left only what the method sends."""
    for site in NAMES:
        (run,) = (federation.home(site) / "runs").iterdir()
        assert {"model.safetensors", "model.json", "report.json"} <= {path.name for path in run.iterdir()}
        lines = [json.loads(line) for line in (federation.home(site) / "audit.jsonl").read_text().splitlines()]
        left = {name for line in lines for name in line["tensors"]}
        assert not [name for name in left if name.startswith("up.prompt")]  # the frame is the site's own
        log = (federation.home(site) / "worker.log").read_text()
        assert log.count(" images\n") == 1  # the run was built, and a backbone loaded, once
    Image.new("RGB", (32, 32), "white").save(folder / "photo.png")
    said = promptfed("predict", run, folder / "photo.png", "--json", cwd=folder)
    assert {entry["class"] for entry in json.loads(said.stdout)[0]["classes"]} == {"dark", "light"}


def check_what_the_coordinator_knows(federation: Loopback, folder: Path) -> None:
    """Find classes, sizes and counts in the coordinator's record, and of the images a salted digest alone."""
    known = json.loads((folder / "run" / "sites.json").read_text())
    assert (known["classes"], known["shape"]) == (["dark", "light"], [32, 32])
    counts = {site: (about["train"], about["test"]) for site, about in known["sites"].items()}
    assert counts == {"north": (11, 3), "south": (8, 2), "west": (12, 4)}
    for site, about in known["sites"].items():
        assert about["sources"]["images"] != digest_images(open_dataset(f"npz:{federation.files[site]}"))


def check_disks(federation: Loopback) -> None:
    """Find files that other users cannot open, and keys that whoever has the disk can: none has a password."""
    state: Any = json.loads((federation.folder / "federation/ca/promptfed/state/cert.json").read_text())
    for site in NAMES:
        home = federation.home(site)
        secret = [home / "identity.pem", home / "engine" / "startup" / "client.key"]
        written = [path for path in (home / "runs").rglob("*") if path.is_file()]
        assert stat.S_IMODE(home.stat().st_mode) == 0o700
        for path in (*secret, *written, *home.glob("audit.*"), *home.glob("*.log")):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
        for pem in (*(path.read_bytes() for path in secret), state[site]["pri_key"].encode()):
            serialization.load_pem_private_key(pem, None)


def check_audit_logs(federation: Loopback) -> None:
    """Change one site's log and cut off its end, set another's back as a whole: the command notices."""
    known = json.loads((federation.folder / "federation" / "audits.json").read_text())["west"]
    homes = {site: federation.home(site) for site in ("north", "west")}
    north, west = ((home / "audit.jsonl").read_bytes().splitlines(keepends=True) for home in homes.values())
    changed = b"".join(north[:-1]).replace(b'"kind": "fit"', b'"kind": "fat"', 1)
    (homes["north"] / "audit.jsonl").write_bytes(changed)
    head = json.loads(west[1])
    (homes["west"] / "audit.jsonl").write_bytes(b"".join(west[:2]))
    write_sealed(homes["west"] / "audit.head", {"n": head["n"], "hash": head["hash"]})
    assert check_audit(homes["west"]).problems == []  # it could not be told here
    back = ("--known", f"{known['n']}:{known['hash']}")
    for site, more, sentences in (
        ("north", (), ("was changed", f"ends at record {len(north) - 1}, and audit.head says that there were")),
        ("west", back, (f"ends at record 2, and the coordinator was told of record {known['n']}",)),
    ):
        done = promptfed("sites", "audit", homes[site], *more, cwd=federation.folder)
        assert done.returncode == 1
        for sentence in sentences:
            assert sentence in " ".join((done.stdout + done.stderr).split())
