"""A kit carries certificates and an address, nothing else: whatever a hostile one adds is refused, and never runs."""

import json
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from promptfed.sites.provisioning import provision
from support.loopback import ENVIRONMENT, free_ports
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


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_kit_runs_nothing_at_the_site(name: str, kit: Path, tmp_path: Path) -> None:
    change, file = HOSTILE[name]
    marker, hostile = tmp_path / "marker", tmp_path / "north.zip"
    with zipfile.ZipFile(kit) as archive:
        files = {entry.removeprefix("north/"): archive.read(entry) for entry in archive.namelist() if entry[-1] != "/"}
    change(files, [sys.executable, "-c", f"open({str(marker)!r}, 'w').close()"])
    with zipfile.ZipFile(hostile, "w") as archive:
        for entry, content in files.items():
            archive.writestr(f"north/{entry}", content)
    data = write_sites(tmp_path)["north"]
    command = [sys.executable, "-m", "promptfed", "sites", "join", str(hostile), "--data", str(data)]
    with (tmp_path / "out").open("wb") as out:
        process = subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, stdout=out, stderr=out)
        ends = time.monotonic() + 200
        while process.poll() is None and not marker.exists() and time.monotonic() < ends:
            time.sleep(0.1)
        process.terminate()
        code = process.wait(60)
    said = (tmp_path / "out").read_text()
    assert not marker.exists(), "the kit ran a command"
    assert code == 2, said
    assert f"{file} in {hostile} is not part of a kit" in " ".join(said.split())
    assert not (tmp_path / "north").exists()
