"""The process that works at a real site, and a coordinator that asks it whatever it likes."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from promptfed.core.tree import Tree
from promptfed.runs.recipe import Recipe
from promptfed.sites import disclosure, ledger, wire
from promptfed.sites.child_process import Child
from promptfed.sites.identity import STARTUP
from promptfed.sites.signed_requests import SIGNED, Signer
from promptfed.sites.terms import FILE
from promptfed.sites.wire import Header, Message
from promptfed.sites.worker import Worker
from promptfed.sites.worker_command import worker_command
from support.certificates import certificate, private_key
from support.curious import Prober
from support.real_processes import note
from support.three_sites import OPEN

COORDINATOR = "localhost"
LIFE = (disclosure.FILE, disclosure.ROUNDS, ledger.FILE)  # what a site counts in all its runs


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
def site_process(worker: Worker, *, signed: bool = True) -> Iterator[Child]:
    """Start the process that would work at this site, and end it."""
    name_coordinator(worker.home)
    command = worker_command(worker.site, worker.home, worker.data, "cpu", signed=signed)
    child = Child(command, worker.home / "worker.log")
    try:
        child.start()
        assert child.process is not None
        note(child.process)
        yield child
    finally:
        child.close()


def ask_signed(child: Child, request: bytes) -> bytes:
    """Return the process's answer to a request, which the coordinator signs."""
    asked = wire.unpack(request, 2**30)
    return child.ask(wire.pack(Message(sign(asked.head, signer()), asked.tree)))


class RealSite(Prober):
    """Asks the process that works at "north", of which it sees what a coordinator sees."""

    def __init__(self, folder: Path, asked: Recipe, terms: str = OPEN) -> None:
        for place in (folder, folder / "twin"):
            place.mkdir(exist_ok=True)
        self.twin = Prober(folder / "twin", asked, OPEN)
        super().__init__(folder, asked, terms)
        self.home = self.worker.home

    @contextmanager
    def at_work(self) -> Iterator[Child]:
        """Start its process, which answers from now on, and end it."""
        with site_process(self.worker) as child:
            self.child, self.answer = child, lambda request: ask_signed(child, request)
            yield child

    def agree(self, terms: str) -> None:
        """Let the owner have other terms, and a site that has given nothing yet."""
        (self.home / FILE).write_text(terms, encoding="utf-8")
        for name in LIFE:
            (self.home / name).unlink(missing_ok=True)

    def model(self, seed: int, run: str = "x") -> Tree:
        """Return a model of the coordinator's own choice, whose shape it knows without asking."""
        return self.twin.model(seed, run)
