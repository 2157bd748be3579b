"""How a site's worker is started: the environment variables of `promptfed sites join` and the command line."""

import sys
from pathlib import Path

DATA, HOME, DEVICE = "PROMPTFED_SITE_DATA", "PROMPTFED_SITE_HOME", "PROMPTFED_SITE_DEVICE"


def worker_command(site: str, home: Path, data: str, device: str = "auto", *, signed: bool = False) -> list[str]:
    """Return the command line of a site's worker; with `signed` it answers only what the coordinator has signed."""
    module = "promptfed.sites.worker_process"
    given = ["--site", site, "--home", str(home), "--data", data, "--device", device]
    return [sys.executable, "-m", module, *given, *(["--signed"] if signed else [])]
