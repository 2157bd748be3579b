"""What `sites doctor` looks at on any machine: installed packages, disk, rights of private folders, threads, memory."""

import ctypes
import importlib.metadata
import os
import re
import shutil
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

from promptfed.core.version import __version__
from promptfed.sites.findings import Finding, failed, ok, warning

EXTRA = "pip install 'promptfed[flare]'"
GIB = 2**30
LEAST_DISK, AMPLE_DISK = 1 * GIB, 5 * GIB
AMPLE_MEMORY = 2 * GIB
OTHERS = stat.S_IRWXG | stat.S_IRWXO
UNSYNCHRONISED = 5  # what adjtimex(2) returns of a clock that nothing corrects


def check_installed() -> Finding:
    """Look for NVIDIA FLARE, in the version that this package is made for."""
    wanted = _wanted_flare()
    try:
        found = importlib.metadata.version("nvflare")
    except importlib.metadata.PackageNotFoundError:
        return failed("packages", f"NVIDIA FLARE is not installed; install it with: {EXTRA}")
    if wanted and found != wanted:
        return failed("packages", f"NVIDIA FLARE is {found}, but this needs {wanted}; install it with: {EXTRA}")
    return ok("packages", f"PromptFed {__version__}, NVIDIA FLARE {found}")


def _wanted_flare() -> str:
    """Return the version that the extra pins; empty if the package's own metadata does not say."""
    try:
        lines = importlib.metadata.requires("promptfed") or []
    except importlib.metadata.PackageNotFoundError:
        return ""
    pins = [pin for line in lines if (pin := re.match(r"nvflare==([\w.]+)", line))]
    return pins[0][1] if pins else ""


def check_disk(folder: Path) -> Finding:
    """Look for free space where a folder is, or will be, and whether one may write there."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    free = shutil.disk_usage(there).free
    says = f"{free / GIB:.1f} GiB free at {there}"
    if not os.access(there, os.W_OK):
        return failed("disk", f"{there} cannot be written by user {os.getuid()}; change its owner or rights.")
    if free < LEAST_DISK:
        return failed("disk", f"{says}; free at least {LEAST_DISK // GIB} GiB.")
    return warning("disk", f"{says}; logs and models will need more.") if free < AMPLE_DISK else ok("disk", says)


def check_private(folders: Iterable[Path], files: Iterable[Path]) -> Finding:
    """Look whether anyone else may enter these folders or read these files; those that do not exist are fine."""
    for path, mode in [*((folder, "700") for folder in folders), *((file, "600") for file in files)]:
        if not path.exists():
            continue
        if path.stat().st_mode & OTHERS:
            return failed("permissions", f"Others may read {path}; run: chmod {mode} {path}")
        if path.stat().st_uid != os.getuid():
            whose = path.stat().st_uid
            return failed("permissions", f"{path} belongs to user {whose}, and this is user {os.getuid()}; use chown.")
    return ok("permissions", "Private folders and keys are readable by their owner alone.")


def check_power() -> Finding:
    """Look at threads and memory."""
    cores, asked = len(os.sched_getaffinity(0)), os.environ.get("OMP_NUM_THREADS", "")
    memory = available_memory()
    says = f"{cores} cores, {memory / GIB:.1f} GiB of memory free"
    if asked.isdigit() and int(asked) > cores:
        return warning("threads and memory", f"{says}; OMP_NUM_THREADS={asked} is more than the cores: lower it.")
    if memory < AMPLE_MEMORY:
        return warning(
            "threads and memory", f"{says}; a frozen transformer may need {AMPLE_MEMORY // GIB} GiB or more."
        )
    return ok("threads and memory", says)


def available_memory(system: Path = Path("/proc/meminfo"), group: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many bytes can still be used: of the machine's, and of what a container is allowed."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", system.read_text(encoding="ascii"), re.M)
    free = [int(found[1]) * 1024] if found else []
    limit, used = group / "memory.max", group / "memory.current"
    if limit.exists() and used.exists() and (most := limit.read_text(encoding="ascii").strip()).isdigit():
        free.append(int(most) - int(used.read_text(encoding="ascii")))
    return max(0, min(free, default=0))


def clock_is_synchronised() -> bool | None:
    """Say whether something keeps this machine's clock right; None where the system does not tell."""
    try:
        state: int = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512))  # all zero: nothing is changed
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != UNSYNCHRONISED


def failures(findings: Sequence[Finding]) -> int:
    """Return how many checks failed."""
    return sum(finding.verdict == "failed" for finding in findings)
