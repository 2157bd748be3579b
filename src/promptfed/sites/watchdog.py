"""Keeps the parent process of the server or of a site running: one at a time, restarted whenever it dies."""

import contextlib
import math
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from promptfed.core.errors import PromptFedError
from promptfed.core.files import make_private, private
from promptfed.sites.log_rotation import rotating
from promptfed.sites.pid_file import acquire

RESTART_SECONDS = 1.0
END_SECONDS = 8.0  # a parent process has this long to end by itself
LOOK_SECONDS = 1.0  # between two looks into a party's log
UNTRUSTED = b"certificate verify failed"
FREE_SECONDS = 3.0  # a process that just ended has this long to release its port

Say = Callable[[str], None]


@dataclass(frozen=True)
class Party:
    """A party's parent process: its command, the folder it works in, its log, and the ports it listens on."""

    command: tuple[str, ...]
    workspace: Path
    log: Path
    pid_file: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    ports: tuple[int, ...] = ()
    more_logs: tuple[Path, ...] = ()  # of its other processes


def keep_running(party: Party, say: Say, begin: Callable[[], None] = lambda: None) -> None:
    """Run the party's parent process until Ctrl-C or a termination signal; restart it whenever it dies.

    Its ports must be free at the start. `begin` is called once no other watchdog holds the party.
    """
    make_private(party.pid_file.parent)
    with _alone(party.pid_file), _terminated() as stopping, open(party.log, "ab", opener=private) as out:
        _end_jobs(party.workspace, 0.0)  # left over from a watchdog that was killed: a party must not run twice
        begin()
        _require_free(party.ports)
        look, rotate = _watch_certificates(party.log, say), rotating((party.log, *party.more_logs))
        while not stopping:
            process = subprocess.Popen(
                party.command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=dict(party.environment),
                start_new_session=True,
                umask=0o077,  # what it writes is private
            )
            try:
                while process.poll() is None and not stopping:
                    look()
                    rotate()
                    time.sleep(0.1)
            finally:
                _end_group(process)
                _end_jobs(party.workspace, END_SECONDS if stopping else 0.0)
            if not stopping:
                say(f"The process ended with code {process.returncode}; restarting it.")
                _wait(RESTART_SECONDS, stopping)


def _watch_certificates(log: Path, say: Say) -> Callable[[], None]:
    """Return a function that reads the log now and then, and reports an untrusted certificate once."""
    read, due = log.stat().st_size, 0.0

    def look() -> None:
        nonlocal read, due
        if time.monotonic() < due:
            return
        due = time.monotonic() + LOOK_SECONDS
        with log.open("rb") as file:
            if file.seek(0, os.SEEK_END) < read:
                read = 0  # it was full, and begins anew
            file.seek(read)
            found = file.read()
        read += len(found)
        if UNTRUSTED in found.lower():
            due = math.inf
            say(f"This kit does not trust the server's certificate; ask the coordinator for a new kit ({log}).")

    return look


def _require_free(ports: Sequence[int]) -> None:
    """Refuse ports that are not free on this machine."""
    ends = time.monotonic() + FREE_SECONDS
    for port in ports:
        while trouble := port_trouble(port):
            if time.monotonic() > ends:
                raise PromptFedError(
                    f"The server cannot listen on port {port}: {trouble}. Stop the process that uses it, or "
                    "make a federation with another port in fed.toml."
                )
            time.sleep(0.1)


def port_trouble(port: int) -> str:
    """Return why a port is not free; empty if it is."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as a server does after a restart
        try:
            probe.bind(("", port))
        except OSError as error:
            return str(error.strerror)
    return ""


def _processes(workspace: Path) -> list[int]:
    """Return the party's parent and job processes; the latter lead sessions of their own."""
    found, wanted = [], os.fsencode(workspace.resolve())
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if wanted in words and any(word.startswith(b"nvflare.") for word in words):
                found.append(int(path.parent.name))
    return found


def _end_jobs(workspace: Path, grace: float) -> None:
    """End all processes of the party that have not ended by themselves within `grace` seconds."""
    ends = time.monotonic() + grace
    while (left := _processes(workspace)) and time.monotonic() < ends:
        time.sleep(0.1)
    for number in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


@contextmanager
def _alone(pid_file: Path) -> Iterator[None]:
    """Hold the file that names this process; a second one for the same party is refused."""
    with pid_file.open("a+") as file:
        try:
            acquire(file)
        except BlockingIOError as error:
            raise PromptFedError(f"It is already running; see {pid_file}.") from error
        try:
            yield
        finally:
            file.truncate(0)


@contextmanager
def _terminated() -> Iterator[list[int]]:
    """Collect Ctrl-C and termination signals instead of being ended by them."""
    caught: list[int] = []
    before = {
        number: signal.signal(number, lambda n, _: caught.append(n)) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(seconds: float, stopping: list[int]) -> None:
    ends = time.monotonic() + seconds
    while time.monotonic() < ends and not stopping:
        time.sleep(0.1)


def _end_group(process: "subprocess.Popen[bytes]") -> None:
    """End a parent process and whatever is left of the group it leads."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
