"""Kits: every party gets its own keys and its own rules, and nothing of anyone else's."""

import json
import stat
import zipfile
from pathlib import Path

import pytest

from promptfed.core.errors import PromptFedError
from promptfed.sites import kits


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kits")
    (folder / "fed.toml").write_text('name = "care"\nsites = ["north", "south"]\n')
    federation = kits.provision(folder / "fed.toml", folder / "federation")
    assert federation.sites == ("north", "south")
    return folder / "federation"


def test_every_site_gets_a_zip_with_its_own_key_alone(home: Path) -> None:
    assert sorted(path.name for path in (home / "kits").iterdir()) == ["admin", "coordinator", "north.zip", "south.zip"]
    assert stat.S_IMODE((home / "kits" / "north.zip").stat().st_mode) == 0o600
    with zipfile.ZipFile(home / "kits" / "north.zip") as archive:
        names = archive.namelist()
    assert all(name.startswith("north/") for name in names)
    assert [name for name in names if name.endswith(".key")] == ["north/startup/client.key"]


def test_a_kit_is_unpacked_once_and_its_site_sets_its_own_rules(home: Path, tmp_path: Path) -> None:
    given = tmp_path / "north.zip"
    given.write_bytes((home / "kits" / "north.zip").read_bytes())
    kit = kits.unpack(given)
    assert kit == tmp_path / "north" == kits.unpack(kit)
    assert kits.site_name(kit) == "north"
    kits.write_local_config(kit, tmp_path / "state")
    resources = json.loads((kit / "local" / "resources.json").read_text())
    assert resources["class_allow_list"] == [
        "promptfed.sites.flare_controller.Conductor",
        "promptfed.sites.flare_executor.Site",
    ]
    assert resources["allow_log_streaming"] is False
    assert "site_log_streamer" not in {part["id"] for part in resources["components"]}
    rights = json.loads((kit / "local" / "authorization.json").read_text())["permissions"]["project_admin"]
    assert (rights["byoc"], rights["shell_commands"], rights["submit_job"]) == ("none", "none", "any")
    assert "uid=north" in kits.parent_command(kit)


def test_the_server_keeps_its_jobs_in_the_federation(home: Path, tmp_path: Path) -> None:
    kits.write_local_config(home / "kits" / "coordinator", tmp_path / "state")
    text = (home / "kits" / "coordinator" / "local" / "resources.json").read_text()
    assert str(tmp_path / "state" / "jobs") in text
    assert "/tmp/nvflare" not in text


def test_kits_are_not_made_twice_over(home: Path) -> None:
    with pytest.raises(PromptFedError, match="is not empty; choose another --out"):
        kits.provision(home / "fed.toml", home)


def test_what_is_no_kit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PromptFedError, match=r"The kit .*missing\.zip does not exist"):
        kits.unpack(tmp_path / "missing.zip")
    with pytest.raises(PromptFedError, match=r"is not a site's kit: it has no site\.json"):
        kits.unpack(tmp_path)
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as archive:
        archive.writestr("../escape", "x")
    with pytest.raises(PromptFedError, match=r"bad\.zip is not a site's kit"):
        kits.unpack(tmp_path / "bad.zip")
