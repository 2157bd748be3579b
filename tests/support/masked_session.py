"""A coordinator that plays a session of secure aggregation with one site, step by step, and may lie to it."""

from pathlib import Path

import torch

from promptfed.core.tree import Tree
from promptfed.federation.guards import secure
from promptfed.federation.loop import rng_for
from promptfed.sites import wire
from promptfed.sites.identity import load_identity
from promptfed.sites.masks import SEALED
from promptfed.sites.wire import Message
from promptfed.sites.worker import Worker
from support.three_sites import recipe, workers

SECURE = "guards.secure=true"


class Curious:
    """A coordinator that plays a session with the first site step by step, and may lie to it."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.folder, self.run, self.number = folder, "x", 0
        self.restart()
        self.recipe = recipe("fedavg", SECURE, *words).to_toml()
        self.others = {client: secure.fresh(client) for client in (1, 2)}
        self.keys = {client: secure.public(own) for client, own in self.others.items()}
        self.signers = {
            client: load_identity(folder / "home" / site, site) for client, site in ((1, "south"), (2, "west"))
        }
        self.claims: dict[int, object] = {}

    def restart(self) -> None:
        """Let the site forget what it has only in memory."""
        self.worker: Worker = workers(self.folder)["north"]

    def ask(self, kind: str, content: Tree | None = None, **more: object) -> Message:
        common = {"run": self.run, "round": self.number, "nonce": "0" * 32, "site": "north", "client": 0, "classes": []}
        head = common | {"kind": kind, "recipe": self.recipe, "session": "s", **more}
        return wire.unpack(self.worker.answer(wire.pack(Message(head, content or {}))), 2**30)

    def error(self, kind: str, content: Tree | None = None, **more: object) -> str:
        return str(self.ask(kind, content, **more).head["error"])

    def fit(self) -> Message:
        down = self.server()
        words = {"names": list(down), "base": "", "settled": "", "keep": True, "test": False}
        return self.ask("fit", down, **words)

    def session(self) -> None:
        """Play a session up to the masked answer."""
        self.begin()
        self.shares()
        self.open()
        assert "error" not in self.fit().head

    def server(self) -> Tree:
        place = self.worker._run
        assert place is not None
        return place.method.init_server(place.task, rng_for(0, "server"))

    def told(self, *clients: int) -> Tree:
        rows = [list(self.keys[client].sealing + self.keys[client].masking) for client in clients]
        return {"keys": torch.tensor(rows, dtype=torch.uint8)}

    def begin(self) -> None:
        """Begin a session: the other two sites sign their keys for it, as this one does."""
        answer = self.ask("keys")
        data = bytes(answer.tree["keys"].tolist())
        self.keys[0] = secure.Keys(data[:32], data[32:])
        self.claims = {0: answer.head["identity"]}
        for client, signer in self.signers.items():
            self.claims[client] = signer.sign(self.statement(client))

    def statement(self, client: int) -> bytes:
        """Return what a site signs in this session."""
        masks = self.worker._masks
        assert masks is not None
        keys = self.keys[client]
        return masks._statement(client, keys.sealing + keys.masking)

    def shares(self, *members: int) -> Message:
        """Hand on the keys of some sites, all three if none are named."""
        among = members or (0, 1, 2)
        identities = [self.claims[member] for member in among]
        return self.ask("shares", self.told(*among), members=list(among), identities=identities)

    def open(self) -> Message:
        return self.ask("open", self.sealed(0, 1, 2), members=[0, 1, 2])

    def confirm(self, *survivors: int) -> Message:
        """Say who has answered; the others sign what the site is told."""
        return self.ask("confirm", survivors=list(survivors))

    def reveal(self, *survivors: int) -> Message:
        """Have the masks of a sum opened, with the others' signatures under the same list."""
        own = self.confirm(*survivors)
        if "error" in own.head:
            return own
        assert self.worker._masks is not None
        listed = self.worker._masks._list()
        signed = {str(client): signer.confirm(listed) for client, signer in self.signers.items() if client in survivors}
        return self.ask("reveal", confirmed=signed | {"0": own.head["confirmed"]})

    def sealed(self, *members: int) -> Tree:
        """Return shares as the two others seal them for this site; its own are of no use here."""
        rows = {0: bytes(SEALED)}
        rows |= {client: secure.share(own, self.keys, 2)[0] for client, own in self.others.items()}
        return {"sealed": torch.tensor([list(rows[member]) for member in members], dtype=torch.uint8)}
