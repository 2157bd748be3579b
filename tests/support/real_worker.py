"""The process that works at a real site, and a coordinator that asks it whatever it likes."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from promptfed.sites.child_process import Child
from promptfed.sites.identity import STARTUP
from promptfed.sites.signed_requests import SIGNED, Signer
from promptfed.sites.wire import Header
from promptfed.sites.worker import Worker
from promptfed.sites.worker_command import worker_command
from support.certificates import certificate, private_key
from support.real_processes import note

COORDINATOR = "localhost"


def signer(name: str = COORDINATOR, authority: str = "authority", days: int = 1) -> Signer:
    """Return someone who signs with a certificate of that authority."""
    return Signer(certificate(name, authority, days).decode(), private_key(name))


def sign(head: Header, by: Signer) -> Header:
    """Return the head of a request, signed."""
    return head | {SIGNED: by.sign(head)}


def name_coordinator(home: Path) -> None:
    """Write whose requests a site answers, as its kit says it."""
    (home / STARTUP / "fed_client.json").write_text(json.dumps({"servers": [{"identity": COORDINATOR}]}))


@contextmanager
def site_process(worker: Worker, *, signed: bool = False) -> Iterator[Child]:
    """Start the process that would work at this site, and end it."""
    command = worker_command(worker.site, worker.home, worker.data, "cpu", signed=signed)
    child = Child(command, worker.home / "worker.log")
    note(lambda: child.process is not None and child.process.poll() is None)
    try:
        child.start()
        yield child
    finally:
        child.close()
