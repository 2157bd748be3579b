"""Whether a party is up: the coordinator's server answers at its port, a site has been answered by the server."""

import time
from collections.abc import Callable
from pathlib import Path

from promptfed.core.errors import PromptFedError
from promptfed.sites.dialling import Credentials, DialError, dial
from promptfed.sites.kits import AUTHORITY
from promptfed.sites.pid_file import running
from promptfed.sites.settings import read_federation

HEARTBEAT = "heartbeat"  # in a site's home: touched whenever the server has answered
SILENT_SECONDS = 60.0  # a site sends a heartbeat every ten seconds
RETRY_SECONDS = 0.5
FEDERATION, SITE_PID = "fed.toml", "site.pid"


def is_coordinator(folder: Path) -> bool:
    """Say whether a folder is a coordinator's; otherwise it is a site's home."""
    if (folder / FEDERATION).is_file():
        return True
    if (folder / "engine").is_dir() or (folder / SITE_PID).exists():
        return False
    raise PromptFedError(
        f"{folder} is neither a coordinator's folder, which `sites init` makes, nor the --home of a site that has "
        "joined."
    )


def find_trouble(folder: Path, seconds: float = 5.0) -> str:
    """Return why the party of a folder is not well; empty if it is."""
    return _server_trouble(folder, seconds) if is_coordinator(folder) else _site_trouble(folder)


def wait_for_health(folder: Path, seconds: float, look: Callable[[Path], str] = find_trouble) -> str:
    """Return the trouble that is left after so many seconds, or as soon as there is none."""
    ends = time.monotonic() + seconds
    while True:
        try:
            trouble = look(folder)
        except PromptFedError:  # a site that is about to join has nothing in its folder yet
            if time.monotonic() >= ends:
                raise
            trouble = "not there yet"
        if not trouble or time.monotonic() >= ends:
            return trouble
        time.sleep(RETRY_SECONDS)


def server_credentials(folder: Path) -> Credentials:
    """Return the certificate with which the coordinator's machine calls its own server."""
    startup = folder / "kits" / "admin" / "startup"
    return Credentials(startup / AUTHORITY, startup / "client.crt", startup / "client.key")


def _server_trouble(folder: Path, seconds: float) -> str:
    if running(folder / "server.pid") is None:
        return "The server is not running; start it with: promptfed sites start"
    federation = read_federation(folder / FEDERATION)
    try:
        dial(federation.coordinator, federation.port, server_credentials(folder), seconds).close()
    except DialError as error:
        return str(error)
    return ""


def _site_trouble(home: Path) -> str:
    if running(home / SITE_PID) is None:
        return "This site has not joined; start it with: promptfed sites join"
    try:
        silent = time.time() - (home / HEARTBEAT).stat().st_mtime
    except FileNotFoundError:
        return "The server has not answered this site yet."
    return f"The server has not answered this site for {silent:.0f} seconds." if silent > SILENT_SECONDS else ""
