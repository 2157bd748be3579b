"""What the doctor finds on a site's and on the coordinator's machine: every verdict, with the thing really wrong."""

import datetime
import importlib.metadata
import json
import os
import shutil
import socket
import time
from pathlib import Path

import numpy as np
import pytest

from promptfed.core.errors import PromptFedError
from promptfed.core.files import write_sealed
from promptfed.core.version import __version__
from promptfed.sites import certificate_checks, doctor, machine_checks, versions
from promptfed.sites.certificate_checks import check_certificate, check_clock
from promptfed.sites.doctor import examine, read_joined
from promptfed.sites.findings import CheckVerdict, Finding, ok, warning
from promptfed.sites.flare_workspace import build_site_workspace
from promptfed.sites.kits import Kit, read_kit, write_kit
from promptfed.sites.machine_checks import available_memory, check_disk, check_installed, check_power, check_private
from promptfed.sites.pid_file import watching
from promptfed.sites.settings import read_federation
from promptfed.sites.versions import CoordinatorNotes
from support.certificates import certificate, private_key, write_certificates
from support.three_sites import write_sites


def make_kit(folder: Path, port: int = 1, days: int = 100) -> Path:
    """Return north's kit as a zip; its coordinator would be this machine."""
    startup = write_certificates(folder, "north", days=days) / "engine" / "startup"
    files = ((startup / name).read_bytes() for name in ("rootCA.pem", "client.crt", "client.key"))
    write_kit(folder / "north.zip", Kit("north", "promptfed", "localhost", port, *files))
    return folder / "north.zip"


def by_check(findings: list[Finding]) -> dict[str, Finding]:
    """Return the findings by their names, which differ."""
    assert len({finding.check for finding in findings}) == len(findings)
    return {finding.check: finding for finding in findings}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("localhost", 0))
        port: int = one.getsockname()[1]
    return port


# -- a site -------------------------------------------------------------------------------------------------------


def test_a_sites_machine_before_and_after_it_has_joined(tmp_path: Path) -> None:
    port, data = free_port(), write_sites(tmp_path)["north"]
    kit = make_kit(tmp_path / "kit", port)
    found = by_check(examine(kit, str(data), tmp_path / "home"))
    assert found["port"] == Finding(
        "port",
        CheckVerdict.FAILED,
        f"Nothing listens on localhost:{port}; is the coordinator's server running?",
    )
    assert found["certificate"].verdict == "ok"
    assert found["certificate"].says == "The certificate of north is good for 99 more days."
    assert found["data"].says.startswith("11 training and 3 test images of 2 classes; with fewer than 10 test images")
    assert found["version"].verdict == "skipped"
    assert found["permissions"].verdict == found["packages"].verdict == "ok"
    build_site_workspace(read_kit(kit), tmp_path / "home" / "engine")
    (tmp_path / "home").chmod(0o700)
    assert read_joined(tmp_path / "home") == read_kit(kit)
    again = by_check(examine(tmp_path / "home"))
    assert again["certificate"] == found["certificate"]
    assert again["port"] == found["port"]
    assert again["data"].verdict == "skipped"


def test_a_kit_that_is_none_is_told_and_the_rest_is_still_examined(tmp_path: Path) -> None:
    expired = by_check(examine(make_kit(tmp_path, days=-1)))
    assert expired["certificate"].verdict == "failed"
    assert "it must be renewed" in expired["certificate"].says
    none = tmp_path / "none.zip"
    none.write_bytes(b"not a kit")
    found = by_check(examine(none))
    assert found["certificate"].verdict == "failed"
    assert found["packages"].verdict == "ok"
    assert "port" not in found
    with pytest.raises(PromptFedError, match=r"does not exist; give a kit"):
        examine(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(PromptFedError, match=r"is neither a coordinator's folder"):
        examine(tmp_path / "empty")


def test_a_joined_home_that_is_damaged_is_a_finding(tmp_path: Path) -> None:
    write_certificates(tmp_path, "north")
    (tmp_path / "engine" / "startup" / "fed_client.json").write_text('{"servers": []}')
    found = by_check(examine(tmp_path))
    assert found["certificate"].verdict == "failed"
    assert "is damaged; join again with the site's kit" in found["certificate"].says


def test_versions_are_compared_with_the_last_requests(tmp_path: Path) -> None:
    kit, home = make_kit(tmp_path / "kit"), tmp_path / "home"
    home.mkdir(0o700)
    for version, verdict in ((__version__, "ok"), ("9.9.9", "failed")):
        versions.NoteTaker(home).take({"promptfed": version, "sent": time.time()})
        found = by_check(examine(kit, home=home))["version"]
        assert (found.verdict, version in found.says) == (verdict, True)


@pytest.mark.parametrize(
    ("labels", "tests", "verdict", "says"),
    [
        ([0, 0, 1, 1, 1], 10, "ok", "5 training and 10 test images of 2 classes, 2 to 3 of a class."),
        ([0, 0, 0, 0, 0], 10, "warning", "5 training and 10 test images of 2 classes; no training image of cat."),
        ([0, 0, 1, 1, 1], 9, "warning", "with fewer than 10 test images no test result leaves."),
    ],
)
def test_images_are_read_and_counted(labels: list[int], tests: int, verdict: str, says: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "own.npz",
        x_train=rng.integers(0, 255, (len(labels), 8, 8, 3), np.uint8),
        y_train=np.array(labels),
        x_test=rng.integers(0, 255, (tests, 8, 8, 3), np.uint8),
        y_test=np.zeros(tests, np.int64),
        class_names=np.array(["dog", "cat"]),
    )
    found = doctor._check_data(str(tmp_path / "own.npz"))
    assert (found.verdict, says in found.says) == (verdict, True), found


def test_images_that_cannot_be_read_fail(tmp_path: Path) -> None:
    (tmp_path / "own.npz").write_bytes(b"PK")
    found = doctor._check_data(str(tmp_path / "own.npz"))
    assert found.verdict == "failed"
    assert "own.npz" in found.says


# -- the coordinator ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from promptfed.sites.provisioning import provision

    folder = tmp_path_factory.mktemp("coordinator")
    text = f'sites = ["north", "south"]\nport = {free_port()}\nadmin_port = {free_port()}\n'
    (folder / "fed.toml").write_text(text)
    provision(folder / "fed.toml", folder / "federation")
    return folder / "federation"


@pytest.fixture
def home(federation: Path, tmp_path: Path) -> Path:
    """Return a copy of a federation's folder, which a test may change."""
    return shutil.copytree(federation, tmp_path / "federation")


def test_a_coordinator_that_has_not_started(home: Path) -> None:
    found = by_check(examine(home))
    assert {check: finding.verdict for check, finding in found.items() if check != "threads and memory"} == {
        "certificate": "ok",
        "clock": found["clock"].verdict,  # "warning" where nothing keeps the clock right
        "address": "warning",
        "port": "ok",
        "version": "skipped",
        "packages": "ok",
        "disk": "ok",
        "permissions": "ok",
    }
    assert found["certificate"].says.startswith("The certificate of localhost is good for 35")
    assert "so only this machine's sites get through" in found["address"].says
    with pytest.raises(PromptFedError, match=r"A coordinator has no images; leave out --data"):
        examine(home, "photographs")


def test_a_port_that_someone_else_has_taken_fails(home: Path) -> None:
    port = read_federation(home / "fed.toml").port
    with socket.create_server(("localhost", port)):
        found = by_check(examine(home, seconds=0.2))["port"]
        assert (found.verdict, f"port {port} is not free" in found.says) == ("failed", True)
        with watching(home / "server.pid"):  # a server that is there but does not answer
            found = by_check(examine(home, seconds=0.2))["port"]
            assert (found.verdict, "accepts connections but no TLS" in found.says) == ("failed", True)


def test_a_name_that_leads_nowhere_or_elsewhere(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fed = home / "fed.toml"
    fed.write_text(fed.read_text() + 'coordinator = "hub.invalid"\n')
    found = by_check(examine(home))
    assert found["certificate"].says == "The certificate is for localhost, not for hub.invalid."
    assert (found["address"].verdict, "is unknown on this machine" in found["address"].says) == ("failed", True)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *given, **named: [(2, 1, 6, "", ("10.0.0.1", 8002))])
    assert doctor._check_address(read_federation(fed)).says == "hub.invalid is 10.0.0.1 here."


def test_versions_of_the_last_runs_sites(home: Path) -> None:
    for number, told in enumerate((__version__, "9.9.9", None)):
        folder = home / "runs" / f"run-{number}"
        folder.mkdir(parents=True)
        write_sealed(
            folder / "sites.json", {"sites": {"north": {"promptfed": __version__}, "south": {"promptfed": told}}}
        )
        os.utime(folder / "sites.json", (number, number))
        found = by_check(examine(home))["version"]
        assert found.verdict == ("ok" if told == __version__ else "warning")
        assert told is None or told in found.says


def test_a_coordinator_without_certificates(home: Path) -> None:
    shutil.rmtree(home / "kits")
    found = by_check(examine(home))["certificate"]
    assert (found.verdict, "was it made by `promptfed sites init`?" in found.says) == ("failed", True)


# -- certificates and clocks --------------------------------------------------------------------------------------


def test_certificates_that_end_soon_or_are_someone_elses() -> None:
    authority = certificate("authority", "authority")
    assert check_certificate(certificate("north", days=100), authority, "north").verdict == "ok"
    assert check_certificate(certificate("north", days=3), authority, "north") == warning(
        "certificate", "The certificate of north ends in 2 days; renew it in time."
    )
    assert "expired on" in check_certificate(certificate("north", days=-1), authority, "north").says
    assert check_certificate(certificate("south"), authority, "north").says == (
        "The certificate is for south, not for north."
    )
    foreign = check_certificate(certificate("north", "another"), authority, "north")
    assert foreign.says == "The certificate of north is not signed by this federation's authority."
    assert check_certificate(b"text", authority, "north").verdict == "failed"
    assert private_key("north") is private_key("north")


@pytest.mark.parametrize(
    ("lag", "verdict", "says"),
    [
        (2.0, "ok", "Within 60 seconds of the coordinator's clock."),
        (-59.0, "ok", "Within 60 seconds of the coordinator's clock."),
        (
            -3600.0,
            "warning",
            "This clock is at least 3,600 seconds behind the coordinator's; let both machines use NTP.",
        ),
        (7200.0, "warning", "This clock is up to 7,200 seconds ahead of the coordinator's; let both machines use NTP."),
    ],
)
def test_clocks_are_compared(lag: float, verdict: str, says: str) -> None:
    found = check_clock([certificate("north")], CoordinatorNotes("0.1.0", lag, 0.0))
    assert (found.verdict, found.says) == (verdict, says)


def test_a_clock_before_the_certificates_begin_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    class Early(datetime.datetime):
        """A week ago."""

        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> "Early":
            return super().now(tz) - datetime.timedelta(days=7)

    own = certificate("north")
    monkeypatch.setattr(datetime, "datetime", Early)
    found = check_clock([own])
    assert (found.verdict, "before the certificates begin: set it" in found.says) == ("failed", True)


@pytest.mark.parametrize(("kept", "verdict"), [(True, "ok"), (None, "ok"), (False, "warning")])
def test_without_a_request_the_system_says_whether_its_clock_is_kept_right(
    kept: bool | None, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificate_checks, "clock_is_synchronised", lambda: kept)
    assert check_clock([certificate("north")]).verdict == verdict
    assert machine_checks.clock_is_synchronised() in (True, False, None)


# -- the machine --------------------------------------------------------------------------------------------------


def test_packages_that_are_missing_or_of_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_installed().says == f"PromptFed {__version__}, NVIDIA FLARE 2.9.0"

    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.8.0")
    assert check_installed().says.startswith("NVIDIA FLARE is 2.8.0, but this needs 2.9.0; install it with: pip")
    monkeypatch.setattr(importlib.metadata, "version", absent)
    assert check_installed().says.startswith("NVIDIA FLARE is not installed; install it with: pip")


def test_a_disk_that_is_full_or_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    for free, verdict in ((2**29, "failed"), (2 * 2**30, "warning"), (2**33, "ok")):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: usage._replace(free=free))
        assert check_disk(tmp_path / "not" / "there" / "yet").verdict == verdict
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert check_disk(tmp_path).verdict == "failed"


def test_what_others_may_read_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, file = tmp_path / "home", tmp_path / "key"
    folder.mkdir(0o700)
    file.touch(0o600)
    assert check_private([folder, tmp_path / "absent"], [file]).verdict == "ok"
    file.chmod(0o640)
    assert check_private([folder], [file]).says == f"Others may read {file}; run: chmod 600 {file}"
    folder.chmod(0o755)
    assert check_private([folder], [file]).says == f"Others may read {folder}; run: chmod 700 {folder}"
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    folder.chmod(0o700)
    assert "and this is user 12345; use chown" in check_private([folder], []).says


def test_threads_and_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = tmp_path / "meminfo"
    system.write_text("MemTotal: 9000 kB\nMemAvailable:    8000 kB\n")
    assert available_memory(system, tmp_path) == 8000 * 1024
    (tmp_path / "memory.current").write_text("1000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory(system, tmp_path) == 8000 * 1024
    (tmp_path / "memory.max").write_text("5000\n")
    assert available_memory(system, tmp_path) == 4000
    monkeypatch.setenv("OMP_NUM_THREADS", "4096")
    assert "OMP_NUM_THREADS=4096 is more than the cores" in check_power().says
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(machine_checks, "available_memory", lambda: 2**30)
    assert (check_power().verdict, "1.0 GiB of memory free" in check_power().says) == ("warning", True)


def test_what_is_written_for_machines_is_json() -> None:
    assert json.loads(json.dumps([vars(ok("a", "b"))])) == [{"check": "a", "verdict": "ok", "says": "b"}]
