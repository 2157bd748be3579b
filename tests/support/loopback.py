"""A whole federation on this machine: a server and sites as real processes, with mutual TLS, by the command line."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from promptfed.sites.provisioning import provision
from support.real_processes import note
from support.three_sites import NAMES, OPEN, write_sites

# Many processes import the same packages: compile them once, wherever bytecode is not written beside the sources.
ENVIRONMENT = os.environ | {
    "OMP_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "",
    "PYTHONPYCACHEPREFIX": str(Path(tempfile.gettempdir()) / f"promptfed-pycache-{os.getuid()}"),
}


def free_ports(count: int) -> list[int]:
    """Return ports nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("localhost", 0))
        return [one.getsockname()[1] for one in sockets]


def promptfed(*words: object, cwd: Path) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end."""
    command = [sys.executable, "-m", "promptfed", *map(str, words)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=cwd, env=ENVIRONMENT, stdout=pipe, stderr=pipe, text=True) as process:
        note(process)
        try:
            out, err = process.communicate(timeout=280)
        finally:
            process.kill()
    return subprocess.CompletedProcess(command, process.returncode, out, err)


class Loopback:
    """The processes of a federation, by name: "server", every site, and whatever else is started."""

    def __init__(self, folder: Path, *keys: str) -> None:
        self.folder = folder
        self.files = write_sites(folder)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.left: list[int] = []
        port, admin_port = free_ports(2)
        names = ", ".join(f'"{name}"' for name in NAMES)
        lines = [f"sites = [{names}]", f"port = {port}", f"admin_port = {admin_port}", *keys]
        (folder / "fed.toml").write_text("\n".join(lines))
        (folder / "terms.toml").write_text(OPEN)
        provision(folder / "fed.toml", folder / "federation")

    def start(self, name: str, *words: object, **environment: str) -> None:
        """Start one of our commands in the background."""
        self.start_command(name, sys.executable, "-m", "promptfed", "sites", *map(str, words), **environment)

    def start_command(self, name: str, *command: str, **environment: str) -> None:
        """Start a command in the background, at the head of its own process group."""
        with (self.folder / f"{name}.out").open("ab") as out:
            process = subprocess.Popen(
                list(command),
                cwd=self.folder,
                env=ENVIRONMENT | environment,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self.processes[name] = process
        note(process)

    def start_all(self) -> None:
        """Start the server and all sites."""
        self.start("server", "start")
        for site in NAMES:
            self.join(site)

    def join(self, site: str, **environment: str) -> None:
        """Start a site."""
        kit = Path("federation") / "kits" / f"{site}.zip"
        own = ("--data", self.files[site], "--home", self.home(site), "--terms", self.folder / "terms.toml")
        self.start(site, "join", kit, *own, "--device", "cpu", **environment)

    def home(self, site: str) -> Path:
        """Return the folder in which a site keeps its state."""
        return self.folder / "homes" / site

    def said(self, name: str) -> str:
        """Return all a background command has printed."""
        return (self.folder / f"{name}.out").read_text(encoding="utf-8")

    def close(self) -> None:
        """End everything, gently where possible; what did not end by itself is in `left`."""
        for process in reversed(self.processes.values()):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        ends = time.monotonic() + 60  # a worker sees within a moment that its parent has gone
        while self.of_federation() and time.monotonic() < ends:
            time.sleep(0.1)
        self.left = self.of_federation()
        for number in self.left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)

    def of_federation(self, *words: str) -> list[int]:
        """Return the processes whose command line names this federation's folder, and all of `words`."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if (
                    str(self.folder) in line
                    and all(word in line for word in words)
                    and int(path.parent.name) != os.getpid()
                ):
                    found.append(int(path.parent.name))
        return found


@contextmanager
def loopback(folder: Path, *keys: str) -> Iterator[Loopback]:
    """Make a federation, start all of it, and leave no process behind."""
    federation = Loopback(folder, *keys)
    try:
        federation.start_all()
        yield federation
    finally:
        federation.close()


def until(true: Callable[[], object], seconds: float = 200) -> None:
    """Wait until something is true."""
    ends = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < ends, "it did not come true in time"
        time.sleep(0.1)


def rounds(folder: Path) -> int:
    """Return how many rounds a run has finished."""
    path = folder / "rounds.jsonl"
    return len(path.read_text(encoding="utf-8").splitlines()) if path.exists() else 0
