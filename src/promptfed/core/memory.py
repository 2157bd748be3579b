"""How much memory this machine may use, and the refusal of what needs more, before any of it is allocated."""

import math
import os
from functools import cache
from pathlib import Path

try:
    import resource
except ImportError:  # on Windows
    resource = None  # type: ignore[assignment]

CGROUPS = Path("/sys/fs/cgroup")


class ShortOfMemoryError(MemoryError):
    """Something needs more memory than there is; `keys` of the recipe decide how much."""

    def __init__(self, wanted: float, there: float, keys: tuple[str, ...]) -> None:
        super().__init__(f"it needs at least {wanted / 1e9:,.1f} GB, and there are {there / 1e9:,.1f} GB")
        self.keys = keys


def require(size: float, *keys: str, there: float | None = None) -> None:
    """Refuse what takes more bytes than `there` are, by default in the machine."""
    limit = machine_bytes() if there is None else there
    if size > limit:
        raise ShortOfMemoryError(size, limit, keys)


@cache
def machine_bytes() -> float:
    """Return the bytes that this process may use at most: the machine's, or its container's; infinity if not known."""
    try:
        physical: float = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # on Windows
        physical = math.inf
    allowed = resource.getrlimit(resource.RLIMIT_AS)[0] if resource else -1
    return min(physical, allowed if allowed >= 0 else math.inf, container_bytes(CGROUPS, Path("/proc/self/cgroup")))


def container_bytes(root: Path, own: Path) -> float:
    """Return the least memory limit of the control groups that a process is in, whose list is the file `own`."""
    try:
        lines = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        return math.inf
    limits = [math.inf]
    for _, controllers, path in (line for line in lines if len(line) == 3):
        version2 = not controllers
        if version2 or "memory" in controllers.split(","):
            top = root if version2 else root / "memory"
            file = "memory.max" if version2 else "memory.limit_in_bytes"
            inner = Path(path.lstrip("/"))
            limits += [_limit(top / folder / file) for folder in (inner, *inner.parents)]
    return min(limits)


def _limit(file: Path) -> float:
    try:
        return float(file.read_text())
    except (OSError, ValueError):  # "max": there is none
        return math.inf
