"""The Dockerfiles, compose files and systemd units that we ship say what our command line understands."""

import importlib
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from promptfed.sites.settings import Federation

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
DOCKERFILES = sorted(EXAMPLES.rglob("Dockerfile"))
COMPOSE = sorted(EXAMPLES.rglob("compose*.yaml"))
UNITS = sorted(EXAMPLES.rglob("*.service"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
HARDENED = {
    "NoNewPrivileges": "yes",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "PrivateDevices": "yes",
    "CapabilityBoundingSet": "",
    "RestrictNamespaces": "yes",
    "RestrictSUIDSGID": "yes",
    "SystemCallArchitectures": "native",
    "UMask": "0077",
    "Restart": "on-failure",
}


def shown(path: Path) -> str:
    return str(path.relative_to(EXAMPLES))


def parse_command(words: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let our command line parse the words after `promptfed`; return what it understood."""
    command: Any = importlib.import_module("typer.main").get_command(importlib.import_module("promptfed.cli").app)
    rest = list(words)
    while hasattr(command, "commands"):
        name = rest.pop(0)
        assert name in command.commands, f"promptfed has no command {name}"
        command = command.commands[name]
    with monkeypatch.context() as patch:
        patch.setattr(Path, "exists", lambda path, **options: True)  # the folders are those of another machine
        return command.make_context(words[0], rest).params


def test_there_is_something_to_test() -> None:
    assert [shown(path) for path in (*DOCKERFILES, *COMPOSE, *UNITS)] == [
        *("serving/Dockerfile", "sites/Dockerfile"),
        *("serving/compose.yaml", "sites/compose.coordinator.yaml", "sites/compose.site.yaml"),
        *("sites/promptfed-coordinator.service", "sites/promptfed-site.service"),
    ]


# -- images -------------------------------------------------------------------------------------------------------


def instructions(path: Path) -> list[tuple[str, str]]:
    """Return a Dockerfile's instructions and what follows each."""
    joined = re.sub(r"\\\n\s*", "", path.read_text(encoding="utf-8"))
    lines = [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines)]


@pytest.mark.parametrize("path", DOCKERFILES, ids=shown)
def test_an_image_is_small_and_runs_as_a_numbered_user(path: Path) -> None:
    found = instructions(path)
    last = {name: rest for name, rest in found if name in ("USER", "ENTRYPOINT", "CMD", "WORKDIR")}
    assert last["USER"] == "10001"
    (created,) = [rest for name, rest in found if name == "RUN" and rest.startswith("useradd")]
    assert "--uid 10001" in created
    stages = [rest for name, rest in found if name == "FROM"]
    assert stages == ["${BASE} AS build", "${BASE}"]  # what builds the packages stays behind
    installs = [rest for name, rest in found if name == "RUN" and "pip" in rest]
    assert len(installs) == 1
    assert "--no-cache-dir" in installs[0]
    assert "-c constraints.txt" in installs[0]
    assert "whl/cpu" in dict(rest.partition("=")[::2] for name, rest in found if name == "ARG")["TORCH_INDEX"]


@pytest.mark.parametrize("path", DOCKERFILES, ids=shown)
def test_an_image_installs_extras_that_exist_from_files_it_may_read(path: Path) -> None:
    found = instructions(path)
    arguments = dict(rest.partition("=")[::2] for name, rest in found if name == "ARG")
    (install,) = [rest for name, rest in found if name == "RUN" and "pip" in rest]
    written = re.sub(r"\$\{(\w+)\}", lambda match: arguments[match[1]], install)
    extras = re.search(r'"\.\[([a-z,]+)\]"', written)
    assert extras is not None
    assert set(extras[1].split(",")) <= set(PROJECT["optional-dependencies"])
    copied = [word for name, rest in found if name == "COPY" and "--from" not in rest for word in rest.split()[:-1]]
    allowed = (ROOT / ".dockerignore").read_text(encoding="utf-8").split("\n")
    assert copied
    for name in copied:
        assert (ROOT / name).exists()
        assert f"!{name}" in allowed
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {wheel["readme"], *wheel["license-files"], "pyproject.toml", "src"} <= set(copied)


@pytest.mark.parametrize("path", DOCKERFILES, ids=shown)
def test_an_image_starts_a_command_of_ours(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = dict(instructions(path))
    words = json.loads(found["ENTRYPOINT"])
    assert words[0] == "promptfed"
    given = json.loads(found["CMD"])
    if given != ["--help"]:
        assert parse_command([*words[1:], *given], monkeypatch)["port"] == int(found["EXPOSE"])
    else:
        assert Federation(("a",)).port == int(found["EXPOSE"])


@pytest.mark.parametrize("path", DOCKERFILES, ids=shown)
def test_hadolint_finds_nothing(path: Path) -> None:
    tool = shutil.which("hadolint") or shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if tool is None:
        pytest.skip("hadolint is not installed here; it is in promptfed[dev]")
    done = subprocess.run([tool, "--no-color", path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


# -- compose ------------------------------------------------------------------------------------------------------


def services() -> list[Any]:
    found = []
    for path in COMPOSE:
        content: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert list(content) == ["services"]
        for name, service in content["services"].items():
            found.append(pytest.param(path, service, id=name))
    return found


@pytest.mark.parametrize(("path", "service"), services())
def test_a_service_has_few_rights_and_bounded_logs(path: Path, service: dict[str, Any]) -> None:
    assert service["read_only"] is True
    assert service["init"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["tmpfs"] == ["/tmp"]
    assert set(service["logging"]["options"]) == {"max-size", "max-file"}
    assert service["restart"] == "unless-stopped"
    assert (path.parent / service["build"]["context"]).resolve() == ROOT
    assert (ROOT / service["build"]["dockerfile"]).is_file()


@pytest.mark.parametrize(("path", "service"), services())
def test_a_service_runs_commands_of_ours_on_folders_that_are_mounted(
    path: Path, service: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = dict(instructions(ROOT / service["build"]["dockerfile"]))
    words = service.get("command") or json.loads(found["CMD"])
    parse_command([*json.loads(found["ENTRYPOINT"])[1:], *words], monkeypatch)
    mounts = {entry.split(":")[1]: entry.split(":")[2:] for entry in service["volumes"]}
    inside = [word for word in words if word.startswith("/")]
    assert inside
    for place in inside:
        assert any(Path(place).is_relative_to(mount) for mount in mounts), f"{place} is not mounted"
    writable = {mount for mount, mode in mounts.items() if mode != ["ro"]}
    assert writable <= {"/federation", "/state"}
    if "healthcheck" in service:
        kind, program, *rest = service["healthcheck"]["test"]
        assert (kind, program) == ("CMD", "promptfed")
        asked = parse_command(rest, monkeypatch)
        assert str(asked["folder"]) in writable


def test_one_port_is_open_and_a_site_has_none() -> None:
    ports = {entry.id: entry.values[1].get("ports") for entry in services()}
    assert ports == {"serve": ["127.0.0.1:8000:8000"], "coordinator": ["8002:8002"], "site": None}


@pytest.mark.parametrize("path", COMPOSE, ids=shown)
def test_commands_in_the_comments_are_commands_of_ours(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    (name,) = content["services"]
    lines = [line[1:].strip() for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    prefix = f"docker compose -f {path.relative_to(ROOT)} "
    composed = [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]
    assert "up --detach" in composed
    for line in composed:
        verb, *words = shlex.split(line)
        if verb in ("run", "exec"):
            ours = words[words.index(name) + 1 :]
            parse_command(ours[1:] if verb == "exec" else ["sites", *ours], monkeypatch)
    for line in lines:
        if line.startswith("promptfed "):
            parse_command(shlex.split(line)[1:], monkeypatch)


# -- systemd ------------------------------------------------------------------------------------------------------


def settings(path: Path) -> dict[str, list[str]]:
    """Return a unit's settings; some are set more than once."""
    found: dict[str, list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


@pytest.mark.parametrize("path", UNITS, ids=shown)
def test_a_unit_runs_commands_of_ours_with_few_rights(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = settings(path)
    assert {key: found[key][-1] for key in HARDENED} == HARDENED
    assert found["User"] == ["promptfed"]
    commands = [shlex.split(value) for key in ("ExecStart", "ExecStartPost") for value in found.get(key, [])]
    for program, *words in commands:
        assert program == "/opt/promptfed/bin/promptfed"
        understood = parse_command(words, monkeypatch)
        written = understood.get("home") or understood.get("folder")
        assert Path(written).is_relative_to(found["ReadWritePaths"][0])


@pytest.mark.parametrize("path", UNITS, ids=shown)
def test_systemd_understands_a_unit_and_finds_it_hardened(path: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed here")
    text = path.read_text(encoding="utf-8").replace("/opt/promptfed/bin/promptfed", "/bin/true")
    (tmp_path / path.name).write_text(text)
    for words in (["verify"], ["security", "--offline=true", "--threshold=20", "--no-pager"]):
        command = ["systemd-analyze", *words, str(tmp_path / path.name)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-300:] + done.stderr
        assert path.name not in done.stderr, done.stderr
