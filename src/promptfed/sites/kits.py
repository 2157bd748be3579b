"""Kits: the keys and certificates of each party of a federation, made by NVIDIA FLARE's provisioning.

FEDERATION/fed.toml             who takes part
FEDERATION/kits/SITE.zip        the kit for the site SITE, with its private key: send it over a secure channel
FEDERATION/kits/coordinator/    the server's own
FEDERATION/kits/admin/          what the supervisor submits jobs with
FEDERATION/ca/                  the authority's key; whoever has it can make kits
"""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

from promptfed.core.errors import PromptFedError
from promptfed.core.files import write_json, write_text
from promptfed.sites.settings import Federation, read_federation

ADMIN = "admin@promptfed.local"
ORGANISATION = "promptfed"
EXTRA = "NVIDIA FLARE is not installed here; install it with: pip install 'promptfed[flare]'"
ALLOWED = ["promptfed.sites.flare_controller.Conductor", "promptfed.sites.flare_executor.Site"]
GONE_SECONDS = 30  # after the last of the beats that come every ten seconds a site counts as away
RIGHTS = ("submit_job", "clone_job", "manage_job", "download_job", "view", "operate")


def require_flare() -> None:
    """Refuse to continue, naming the missing extra, if FLARE is not installed."""
    try:
        import nvflare  # noqa: F401
    except ImportError as error:
        raise PromptFedError(f"{EXTRA}.") from error


def provision(source: Path, folder: Path) -> Federation:
    """Make the kits of the federation in fed.toml at `source`, in a new folder."""
    require_flare()
    federation = read_federation(source)
    if folder.exists() and any(folder.iterdir()):
        raise PromptFedError(f"{folder} is not empty; choose another --out, or remove it to make all kits again.")
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    write_json(folder / "project.yml", _project(federation))  # JSON is YAML
    _run_provisioning(folder)
    made = folder / "ca" / federation.name / "prod_00"
    kits = folder / "kits"
    kits.mkdir()
    shutil.move(made / federation.coordinator, kits / "coordinator")
    shutil.move(made / ADMIN, kits / "admin")
    for site in federation.sites:
        write_json(made / site / "site.json", {"site": site, "federation": federation.name})
        shutil.make_archive(str(kits / site), "zip", made, site)
        (kits / f"{site}.zip").chmod(0o600)
    shutil.rmtree(made)
    for path in (folder / "ca").rglob("*.json"):  # they hold the private keys of all parties
        path.chmod(0o600)
    write_text(folder / "fed.toml", source.read_text(encoding="utf-8"))
    return federation


def _project(federation: Federation) -> dict[str, object]:
    server = {
        "name": federation.coordinator,
        "type": "server",
        "org": ORGANISATION,
        "fed_learn_port": federation.port,
        "admin_port": federation.admin_port,
        "default_host": federation.coordinator,
    }
    sites = [{"name": site, "type": "client", "org": ORGANISATION} for site in federation.sites]
    admin = {"name": ADMIN, "type": "admin", "org": ORGANISATION, "role": "project_admin"}
    prefix = "nvflare.lighter.impl"
    return {
        "api_version": 3,
        "name": federation.name,
        "description": "A federation of PromptFed",
        "participants": [server, *sites, admin],
        "builders": [
            {"path": f"{prefix}.workspace.WorkspaceBuilder"},
            {
                "path": f"{prefix}.static_file.StaticFileBuilder",
                "args": {"config_folder": "config", "scheme": "tcp"},
            },
            {"path": f"{prefix}.cert.CertBuilder"},
            {"path": f"{prefix}.signature.SignatureBuilder"},
        ],
    }


def _run_provisioning(folder: Path) -> None:
    command = [sys.executable, "-m", "nvflare.lighter.provision", "-p", "project.yml", "-w", "ca"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PromptFedError(f"The kits could not be made: {(done.stderr or done.stdout).strip()[-300:]}")


def unpack(kit: Path) -> Path:
    """Return the kit's folder; a zip is unpacked beside itself, once."""
    if not kit.exists():
        raise PromptFedError(f"The kit {kit} does not exist.")
    if kit.is_file() and zipfile.is_zipfile(kit):
        with zipfile.ZipFile(kit) as archive:
            top = {name.partition("/")[0] for name in archive.namelist()}
            if len(top) != 1 or any(".." in Path(name).parts or name.startswith("/") for name in archive.namelist()):
                raise PromptFedError(f"{kit} is not a site's kit.")
            folder = kit.parent / top.pop()
            if not folder.exists():
                archive.extractall(kit.parent)
        kit = folder
    if not (kit / "site.json").is_file():
        raise PromptFedError(f"{kit} is not a site's kit: it has no site.json.")
    for key in kit.glob("startup/*.key"):
        key.chmod(0o600)
    return kit


def site_name(kit: Path) -> str:
    """Return the name of the kit's site."""
    return str(json.loads((kit / "site.json").read_text(encoding="utf-8"))["site"])


def write_local_config(kit: Path, state: Path) -> None:
    """Write the party's own rules into its kit: only our code runs, nobody reads its files or logs from afar."""
    local = kit / "local"
    resources: dict[str, Any] = json.loads((local / "resources.json.default").read_text(encoding="utf-8"))
    resources["class_allow_list"] = ALLOWED
    if "allow_log_streaming" in resources:
        resources["allow_log_streaming"] = False
    parts = [part for part in resources["components"] if part["id"] not in ("site_log_streamer", "log_receiver")]
    for part in parts:
        if part["id"] == "job_manager":
            part["args"]["uri_root"] = str(state / "jobs")
    resources["components"] = parts
    for server in resources.get("servers", ()):
        server["heart_beat_timeout"] = GONE_SECONDS
    if "snapshot_persistor" in resources:
        resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(state / "snapshots")
    write_json(local / "resources.json", resources)
    rights = dict.fromkeys(RIGHTS, "any") | {"shell_commands": "none", "byoc": "none"}
    write_json(local / "authorization.json", {"format_version": "1.0", "permissions": {"project_admin": rights}})


def parent_command(kit: Path) -> list[str]:
    """Return the command of the party's parent process, as FLARE's own start script has it."""
    site = (kit / "site.json").is_file()
    kind = "client" if site else "server"
    module = f"nvflare.private.fed.app.{kind}.{kind}_train"
    who = [f"uid={site_name(kit)}"] if site else []
    given = ["--set", "secure_train=true", *who, f"org={ORGANISATION}", "config_folder=config"]
    return [sys.executable, "-u", "-m", module, "-m", str(kit.resolve()), "-s", f"fed_{kind}.json", *given]


def parent_environment(**more: str) -> dict[str, str]:
    """Return the environment of a parent process."""
    return os.environ | {"MALLOC_ARENA_MAX": "4"} | more
