"""Kits: every site gets its own key, nothing of anyone else's, and nothing that could run."""

import json
import os
import stat
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from promptfed.cli.sites import app
from promptfed.core.errors import PromptFedError
from promptfed.sites import flare_workspace as flare
from promptfed.sites.kits import Kit, default_home, read_kit, write_kit
from promptfed.sites.provisioning import provision


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kits")
    (folder / "fed.toml").write_text('name = "care"\nsites = ["north", "south"]\n')
    made = CliRunner().invoke(app, ["init", str(folder / "fed.toml"), "--out", str(folder / "federation")])
    assert made.exit_code == 0, made.output
    said = made.output.replace("\n", "")
    for site in ("north", "south"):
        assert f"Kit for {site}: {folder / 'federation' / 'kits' / site}.zip" in said
    assert f"Next: promptfed sites start --federation {folder / 'federation'}" in said
    return folder / "federation"


@pytest.fixture(scope="module")
def north(home: Path) -> Kit:
    return read_kit(home / "kits" / "north.zip")


def test_every_site_gets_a_zip_with_its_own_key_alone(home: Path) -> None:
    assert sorted(path.name for path in (home / "kits").iterdir()) == ["admin", "coordinator", "north.zip", "south.zip"]
    assert stat.S_IMODE((home / "kits" / "north.zip").stat().st_mode) == 0o600
    with zipfile.ZipFile(home / "kits" / "north.zip") as archive:
        names = archive.namelist()
    assert sorted(names) == ["north/client.crt", "north/client.key", "north/rootCA.pem", "north/site.json"]


def test_a_kit_is_read_from_its_zip_or_its_folder(home: Path, north: Kit, tmp_path: Path) -> None:
    assert (north.site, north.federation, north.coordinator, north.port) == ("north", "care", "localhost", 8002)
    with zipfile.ZipFile(home / "kits" / "north.zip") as archive:
        archive.extractall(tmp_path)
    (tmp_path / "north" / "state").mkdir()
    assert read_kit(tmp_path / "north") == north
    assert default_home(tmp_path / "north.zip", north) == tmp_path / "north" / "state"
    assert default_home(tmp_path / "north", north) == tmp_path / "north" / "state"


def test_a_site_sets_its_own_rules(north: Kit, tmp_path: Path) -> None:
    (tmp_path / "local" / "custom").mkdir(parents=True)  # left from before
    flare.build_site_workspace(north, tmp_path)
    names = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file())
    assert names == [
        "local/authorization.json",
        "local/comm_config.json",
        "local/log_config.json",
        "local/resources.json",
        "startup/client.crt",
        "startup/client.key",
        "startup/fed_client.json",
        "startup/rootCA.pem",
    ]
    assert not (tmp_path / "local" / "custom").exists()
    assert stat.S_IMODE((tmp_path / "startup" / "client.key").stat().st_mode) == 0o600
    resources = json.loads((tmp_path / "local" / "resources.json").read_text())
    assert resources["class_allow_list"] == [flare.CONDUCTOR, flare.SITE]
    assert resources["class_list_enforcement_mode"] == "enforce"
    assert resources["allow_log_streaming"] is False
    rights = json.loads((tmp_path / "local" / "authorization.json").read_text())["permissions"]["project_admin"]
    assert (rights["byoc"], rights["shell_commands"], rights["submit_job"]) == ("none", "none", "any")
    assert "uid=north" in flare.parent_command(tmp_path, "north")


def test_the_server_keeps_its_jobs_in_the_federation(home: Path, tmp_path: Path) -> None:
    flare.build_server_workspace(home / "kits" / "coordinator", tmp_path / "state", ("north", "south"), 2**26)
    text = (home / "kits" / "coordinator" / "local" / "resources.json").read_text()
    assert str(tmp_path / "state" / "jobs") in text
    assert "/tmp/nvflare" not in text
    limits = json.loads((home / "kits" / "coordinator" / "local" / "comm_config.json").read_text())
    assert limits["streaming_max_blob_size"] == 2**26 + flare.ENVELOPE


def test_kits_are_not_made_twice_over(home: Path) -> None:
    with pytest.raises(PromptFedError, match="is not empty; choose another --out"):
        provision(home / "fed.toml", home)


def test_what_is_not_a_kit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PromptFedError, match=r"The kit .*missing\.zip does not exist"):
        read_kit(tmp_path / "missing.zip")
    with pytest.raises(PromptFedError, match=r"is not a site's kit: it has no site\.json"):
        read_kit(tmp_path)
    (tmp_path / "bad.txt").write_text("x")
    with pytest.raises(PromptFedError, match=r"bad\.txt is not a site's kit"):
        read_kit(tmp_path / "bad.txt")
    with pytest.raises(PromptFedError, match=r"bad\.txt in .* is not part of a kit"):
        read_kit(tmp_path)


@pytest.mark.parametrize(
    "name", ["../escape", "north/../escape", "/etc/escape", "north/startup/start.sh", "north/\x1b[2J"]
)
def test_a_foreign_file_is_refused_by_name(name: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as archive:
        archive.writestr(name, "x")
    with pytest.raises(
        PromptFedError, match=r"in .*bad\.zip is not part of a kit, which has only site\.json"
    ) as caught:
        read_kit(tmp_path / "bad.zip")
    assert str(caught.value).isprintable()
    assert [path.name for path in tmp_path.iterdir()] == ["bad.zip"]


def test_a_bomb_is_refused_by_its_size(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("north/site.json", bytes(10**8))
    with pytest.raises(PromptFedError, match=r"site\.json in .* has 100,000,000 bytes"):
        read_kit(tmp_path / "bomb.zip")


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("site", "north uid=south", "site in site.json of .* is not a valid name"),
        ("site", "../south", "site in site.json of .* is not a valid name"),
        ("federation", ["care"], "federation in site.json of .* is not a valid name"),
        ("coordinator", "host:1/x", "coordinator in site.json of .* is not a valid name"),
        ("port", "8002", "port in site.json of .* is not a port number"),
        ("port", 70000, "port in site.json of .* is not a port number"),
        ("site", "south", "The certificate in .* is not for south"),
        ("scheme", "http", "must have exactly these keys: site, federation, coordinator, port"),
    ],
)
def test_names_and_addresses_are_checked(key: str, value: object, sentence: str, north: Kit, tmp_path: Path) -> None:
    write_kit(tmp_path / "kit.zip", north)
    with zipfile.ZipFile(tmp_path / "kit.zip") as archive:
        archive.extractall(tmp_path)
    path = tmp_path / "north" / "site.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(PromptFedError, match=sentence):
        read_kit(tmp_path / "north")


def test_certificates_must_go_together(home: Path, north: Kit, tmp_path: Path) -> None:
    south = read_kit(home / "kits" / "south.zip")
    write_kit(tmp_path / "key.zip", replace(north, key=south.key))
    with pytest.raises(PromptFedError, match=r"The key in .* does not fit its certificate"):
        read_kit(tmp_path / "key.zip")
    write_kit(tmp_path / "authority.zip", replace(north, authority=south.certificate))
    with pytest.raises(PromptFedError, match=r"The certificates in .* are not valid"):
        read_kit(tmp_path / "authority.zip")
    write_kit(tmp_path / "text.zip", replace(north, certificate=b"text"))
    with pytest.raises(PromptFedError, match=r"The certificates in .* are not valid"):
        read_kit(tmp_path / "text.zip")


@pytest.mark.parametrize(
    "content", [b"[" * 60_000, b"\xff\xfe", b"null", b'"x"', b'{"site": 1}', b'{"site": "a", "site": NaN}', b""]
)
def test_a_bad_site_json_is_one_sentence(content: bytes, tmp_path: Path) -> None:
    for name in ("rootCA.pem", "client.crt", "client.key"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "site.json").write_bytes(content)
    with pytest.raises(PromptFedError, match=r"^site\.json in [^\n]*\.$"):
        read_kit(tmp_path)


def test_a_pipe_in_a_kit_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "site.json")
    with pytest.raises(PromptFedError, match=r"site\.json in .* is not a regular file"):
        read_kit(tmp_path)
