"""A kit carries certificates and an address, nothing else: whatever a hostile one adds is refused, and never runs."""

import json
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from promptfed.sites.certificates import renew
from promptfed.sites.provisioning import provision
from promptfed.sites.settings import read_federation
from support.loopback import ENVIRONMENT, free_ports, until
from support.real_processes import note
from support.three_sites import write_sites

Change = Callable[[dict[str, bytes], list[str]], None]


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the sound kit of "north"."""
    folder = tmp_path_factory.mktemp("kits")
    port, admin_port = free_ports(2)
    (folder / "fed.toml").write_text(f'sites = ["north", "south"]\nport = {port}\nadmin_port = {admin_port}\n')
    provision(folder / "fed.toml", folder / "federation")
    return folder / "federation" / "kits" / "north.zip"


def add_component(files: dict[str, bytes], command: list[str]) -> None:
    """Add a component whose constructor runs a command to the engine's resources."""
    resources = json.loads(files.get("local/resources.json.default", b'{"components": []}'))
    resources["components"].append({"id": "x", "path": "subprocess.Popen", "args": {"args": command}})
    files["local/resources.json.default"] = json.dumps(resources).encode()


def add_log_config(files: dict[str, bytes], command: list[str]) -> None:
    """Let the logging configuration build its formatter by running a command."""
    config = {"version": 1, "formatters": {"x": {"()": "subprocess.Popen", "args": command}}}
    files["local/log_config.json"] = json.dumps(config).encode()


def add_extra_resources(files: dict[str, bytes], command: list[str]) -> None:
    """Add one more file of resources, which the engine merges with its own."""
    component = {"id": "x", "path": "subprocess.Popen", "args": {"args": command}}
    files["startup/x__p_resources.json"] = json.dumps({"format_version": 2, "components": [component]}).encode()


def add_driver(files: dict[str, bytes], command: list[str]) -> None:
    """Let the engine search a folder of the kit for network drivers, which it imports."""
    files["local/comm_config.json"] = json.dumps({"comm_driver_path": "local/drivers"}).encode()
    files["local/drivers/x.py"] = f"import subprocess\nsubprocess.Popen({command!r})\n".encode()


HOSTILE: dict[str, tuple[Change, str]] = {
    "component": (add_component, "local/resources.json.default"),
    "logging": (add_log_config, "local/log_config.json"),
    "more resources": (add_extra_resources, "startup/x__p_resources.json"),
    "driver": (add_driver, "local/comm_config.json"),
}


def packed(folder: Path, content: dict[str, bytes]) -> Path:
    """Write a kit with these files."""
    path = folder / "north.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for entry, data in content.items():
            archive.writestr(f"north/{entry}", data)
    return path


def files_of(kit: Path) -> dict[str, bytes]:
    """Return the files of a kit."""
    with zipfile.ZipFile(kit) as archive:
        return {entry.removeprefix("north/"): archive.read(entry) for entry in archive.namelist() if entry[-1] != "/"}


@contextmanager
def joining(folder: Path, kit: Path, *more: object) -> Iterator["subprocess.Popen[bytes]"]:
    """Join with a kit, and end whatever has come of it; what the command says is in `out`."""
    data = write_sites(folder)["north"]
    command = [sys.executable, "-m", "promptfed", "sites", "join", str(kit), "--data", str(data), *map(str, more)]
    with (folder / "out").open("wb") as out:
        process = subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, stdout=out, stderr=out)
    note(process)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


def said(folder: Path) -> str:
    """Return what the command has said, in one line."""
    return " ".join((folder / "out").read_text().split())


# one of them for every day; the others are refused in the same way, and by the same names in test_kits.py
@pytest.mark.real_processes
@pytest.mark.parametrize(
    "name", [name if name == "component" else pytest.param(name, marks=pytest.mark.slow) for name in HOSTILE]
)
def test_a_hostile_kit_runs_nothing_at_the_site(name: str, kit: Path, tmp_path: Path) -> None:
    change, file = HOSTILE[name]
    marker, content = tmp_path / "marker", files_of(kit)
    change(content, [sys.executable, "-c", f"open({str(marker)!r}, 'w').close()"])
    hostile = packed(tmp_path, content)
    with joining(tmp_path, hostile) as process:
        until(lambda: process.poll() is not None or marker.exists())
        code = process.poll()
    assert not marker.exists(), "the kit ran a command"
    assert code == 2, said(tmp_path)
    assert f"{file} in {hostile} is not part of a kit" in said(tmp_path)
    assert not (tmp_path / "north").exists()


@pytest.mark.real_processes
def test_a_kit_of_another_coordinator_decides_whom_a_site_talks_to(tmp_path: Path) -> None:
    with socket.create_server(("localhost", 0)) as listener:
        port = listener.getsockname()[1]
        (tmp_path / "fed.toml").write_text(
            f'sites = ["north", "south"]\nport = {port}\nadmin_port = {port % 60000 + 1}\n'
        )
        provision(tmp_path / "fed.toml", tmp_path / "federation")
        listener.settimeout(200)
        with joining(tmp_path, tmp_path / "federation" / "kits" / "north.zip", "--device", "cpu"):
            called, _ = listener.accept()
            with called:
                called.settimeout(60)
                assert called.recv(3)[:2] == b"\x16\x03"  # a TLS handshake, which only the right coordinator can end
    assert "north: 14 images of 2 classes" in said(tmp_path)


@pytest.mark.real_processes
@pytest.mark.parametrize("wrong", ["authority", pytest.param("site", marks=pytest.mark.slow)])
def test_a_foreign_renewal_is_refused_by_the_command(wrong: str, kit: Path, tmp_path: Path) -> None:
    home, party = kit.parents[1], "south" if wrong == "site" else "north"
    if wrong == "authority":
        home = tmp_path / "other"
        provision(kit.parents[1] / "fed.toml", home)
    renewal = renew(home, read_federation(home / "fed.toml"), [party])[party]
    with joining(tmp_path, kit, "--home", tmp_path / "home", "--renew", renewal) as process:
        assert process.wait(200) == 2
    sentence = "is a renewal for south of promptfed, not for north" if wrong == "site" else "is of another authority"
    assert sentence in said(tmp_path)
    assert not [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
