"""Makes a federation: its authority, the certificates of all parties, and a kit for every site.

FEDERATION/fed.toml             who takes part
FEDERATION/kits/SITE.zip        the kit for the site SITE, with its private key: send it over a secure channel
FEDERATION/kits/coordinator/    the server's own
FEDERATION/kits/admin/          what the supervisor submits jobs with
FEDERATION/ca/                  the authority's key; whoever has it can make kits
"""

import shutil
import subprocess
import sys
from pathlib import Path

from promptfed.core.errors import PromptFedError
from promptfed.core.files import make_private, write_json, write_text
from promptfed.sites.flare_workspace import ORGANISATION, SCHEME, require_flare
from promptfed.sites.kits import AUTHORITY, CERTIFICATE, KEY, Kit, write_kit
from promptfed.sites.settings import Federation, read_federation

ADMIN = "admin@promptfed.local"
ROOT_DAYS = 3650  # that the authority is good for; nothing that it signs outlives it


def provision(source: Path, folder: Path) -> Federation:
    """Make the kits of the federation in fed.toml at `source`, in a new folder."""
    require_flare()
    federation = read_federation(source)
    if folder.exists() and any(folder.iterdir()):
        raise PromptFedError(f"{folder} is not empty; choose another --out, or remove it to make all kits again.")
    make_private(folder)
    folder.chmod(0o700)
    write_json(folder / "project.yml", _project(federation))  # JSON is YAML
    _run_provisioning(folder)
    made = folder / "ca" / federation.name / "prod_00"
    kits = folder / "kits"
    kits.mkdir()
    shutil.move(made / federation.coordinator, kits / "coordinator")
    shutil.move(made / ADMIN, kits / "admin")
    for site in federation.sites:
        certificates = ((made / site / "startup" / name).read_bytes() for name in (AUTHORITY, CERTIFICATE, KEY))
        kit = Kit(site, federation.name, federation.coordinator, federation.port, *certificates)
        write_kit(kits / f"{site}.zip", kit)
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
                "args": {"config_folder": "config", "scheme": SCHEME},
            },
            {"path": f"{prefix}.cert.CertBuilder", "args": {"root_valid_days": ROOT_DAYS}},
            {"path": f"{prefix}.signature.SignatureBuilder"},
        ],
    }


def _run_provisioning(folder: Path) -> None:
    command = [sys.executable, "-m", "nvflare.lighter.provision", "-p", "project.yml", "-w", "ca"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PromptFedError(f"The kits could not be made: {(done.stderr or done.stdout).strip()[-300:]}")
