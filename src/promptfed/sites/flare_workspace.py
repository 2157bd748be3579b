"""The folders that NVIDIA FLARE's processes run in: every file in them that configures code is written here.

WORKSPACE/startup/    certificates, and whom to connect to or where to listen
WORKSPACE/local/      which code runs, and what may be asked for from afar
"""

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from promptfed.core.errors import PromptFedError
from promptfed.core.files import write_json
from promptfed.sites.kits import AUTHORITY, CERTIFICATE, KEY, Kit
from promptfed.sites.revocations import REVOKED

ORGANISATION = "promptfed"
SCHEME = "grpc"  # its TLS handshakes run beside each other; those of FLARE's "tcp" stop one another
HANDSHAKE_SECONDS = 20
LARGEST_FRAME = 2**24  # bytes; messages travel in pieces of 2**20
LEAST_MESSAGE = 2**24  # bytes; what the engine's own messages may need
ENVELOPE = 2**20  # bytes that the engine adds to an answer or a request
LARGEST_REQUEST = 2**30  # bytes; of what a site is asked
CONDUCTOR, SITE = "promptfed.sites.flare_controller.Conductor", "promptfed.sites.flare_executor.Site"
ALLOWED = [CONDUCTOR, SITE]
GONE_SECONDS = 30  # sites send a heartbeat every ten seconds; after this long without one a site counts as away
RIGHTS = ("submit_job", "clone_job", "manage_job", "download_job", "view", "operate")
ENGINE_LOG = "audit.log"  # in a workspace: the engine's own, of who asked it for what
EXTRA = "NVIDIA FLARE is not installed here; install it with: pip install 'promptfed[flare]'"
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s - %(name)s - %(levelname)s - %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line", "stream": "ext://sys.stdout"}},
    "root": {"level": "INFO", "handlers": ["console"]},
}


def require_flare() -> None:
    """Refuse to continue, naming the missing extra, if FLARE is not installed."""
    try:
        import nvflare  # noqa: F401
    except ImportError as error:
        raise PromptFedError(f"{EXTRA}.") from error


def build_site_workspace(kit: Kit, folder: Path) -> None:
    """Make the folder of a site's processes from its kit."""
    _clear(folder)
    startup = folder / "startup"
    for name, content in ((AUTHORITY, kit.authority), (CERTIFICATE, kit.certificate), (KEY, kit.key)):
        (startup / name).touch(0o600)
        (startup / name).write_bytes(content)
    server = {
        "name": kit.federation,
        "service": {"target": f"{kit.coordinator}:{kit.port}", "scheme": SCHEME},
        "identity": kit.coordinator,
    }
    client = {
        "ssl_private_key": KEY,
        "ssl_cert": CERTIFICATE,
        "ssl_root_cert": AUTHORITY,
        "fqsn": kit.site,
        "is_leaf": True,
        "connection_security": "mtls",
    }
    write_json(startup / "fed_client.json", {"format_version": 2, "servers": [server], "client": client})
    gpus = {"num_of_gpus": 0, "mem_per_gpu_in_GiB": 0, "expiration_period": 300}
    components = [
        {"id": "limits", "path": "promptfed.sites.flare_limits.SiteLimits", "args": {}},
        {"id": "heartbeat", "path": "promptfed.sites.flare_heartbeat.Heartbeat", "args": {}},
        _component("resource_manager", "resource_managers.gpu_resource_manager.GPUResourceManager", **gpus),
        _component("resource_consumer", "resource_consumers.gpu_resource_consumer.GPUResourceConsumer"),
        _component("process_launcher", "job_launcher.client_process_launcher.ClientProcessJobLauncher"),
    ]
    resources = {
        "allow_log_streaming": False,
        "client": {"retry_timeout": 30, "compression": "Gzip"},
        "components": components,
    }
    _write_local(folder, resources)
    _write_limits(folder, LARGEST_REQUEST)


def build_server_workspace(kit: Path, state: Path, sites: Sequence[str], largest: int) -> None:
    """Complete the coordinator's kit, in which its server runs; jobs and snapshots go to `state`.

    A message of more than `largest` bytes, or one that says it has, is refused before any of it is kept. Of the `sites`
    those in revoked.json, beside `state`, are cut off.
    """
    (kit / "local").mkdir(exist_ok=True)
    storage = {"root_dir": str(state / "snapshots"), "uri_root": "/"}
    limits = {"revoked": str(state.parent / REVOKED), "sites": list(sites), "largest": _whole(largest)}
    jobs = {"uri_root": str(state / "jobs"), "job_store_id": "job_store"}
    filesystem = "nvflare.app_common.storages.filesystem_storage.FilesystemStorage"
    manager = "nvflare.apis.impl.job_def_manager.SimpleJobDefManager"
    components = [
        {"id": "limits", "path": "promptfed.sites.flare_limits.ServerLimits", "args": limits},
        _component("job_scheduler", "job_schedulers.job_scheduler.DefaultJobScheduler", max_jobs=4),
        {"id": "job_manager", "path": manager, "args": jobs},
        {"id": "job_store", "path": filesystem},
        _component("process_launcher", "job_launcher.server_process_launcher.ServerProcessJobLauncher"),
    ]
    server = {
        "admin_storage": "transfer",
        "max_num_clients": 100,
        "heart_beat_timeout": GONE_SECONDS,
        "admin_timeout": 10.0,
    }
    persistor = {
        "path": "nvflare.app_common.state_persistors.storage_state_persistor.StorageStatePersistor",
        "args": {"uri_root": "/", "storage": {"path": filesystem, "args": storage}},
    }
    _write_local(kit, {"servers": [server], "snapshot_persistor": persistor, "components": components})
    _write_limits(kit, largest)


def parent_command(workspace: Path, site: str | None) -> list[str]:
    """Return the command of a party's parent process: a site's, or the server's if no site is named."""
    kind, who = ("server", []) if site is None else ("client", [f"uid={site}"])
    module = f"nvflare.private.fed.app.{kind}.{kind}_train"
    given = ["--set", "secure_train=true", *who, f"org={ORGANISATION}", "config_folder=config"]
    return [sys.executable, "-u", "-m", module, "-m", str(workspace.resolve()), "-s", f"fed_{kind}.json", *given]


def parent_environment(**more: str) -> dict[str, str]:
    """Return the environment of a parent process."""
    return os.environ | {"MALLOC_ARENA_MAX": "4"} | more


def _clear(folder: Path) -> None:
    """Remove what an earlier version may have left where the engine looks for code and settings."""
    for name in ("startup", "local"):
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir(parents=True)


def _write_limits(folder: Path, largest: int) -> None:
    """Write what bounds a handshake, a piece of a message, and a whole message."""
    options = [
        ("grpc.max_send_message_length", LARGEST_FRAME),
        ("grpc.max_receive_message_length", LARGEST_FRAME),
        ("grpc.server_handshake_timeout_ms", 1000 * HANDSHAKE_SECONDS),
    ]
    whole = _whole(largest)
    limits = {"grpc": {"options": options}, "streaming_max_blob_size": whole, "max_message_size": LARGEST_FRAME}
    write_json(folder / "local" / "comm_config.json", limits)


def _whole(largest: int) -> int:
    """Return the most bytes of a whole message, the engine's own ones included."""
    return max(LEAST_MESSAGE, largest) + ENVELOPE


def _component(name: str, path: str, **args: object) -> dict[str, object]:
    return {"id": name, "path": f"nvflare.app_common.{path}", "args": args}


def _write_local(folder: Path, resources: dict[str, object]) -> None:
    """Write which code runs, and who may do what: only our classes, and no one reads files or logs from afar."""
    local = folder / "local"
    common = {"format_version": 2, "class_list_enforcement_mode": "enforce", "class_allow_list": ALLOWED}
    write_json(local / "resources.json", common | resources)
    rights = dict.fromkeys(RIGHTS, "any") | {"shell_commands": "none", "byoc": "none"}
    write_json(local / "authorization.json", {"format_version": "1.0", "permissions": {"project_admin": rights}})
    write_json(local / "log_config.json", LOGGING)
