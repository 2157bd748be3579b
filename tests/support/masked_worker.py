"""A coordinator that plays sessions of secure aggregation with a site's process, and may lie to it."""

import hashlib
import json
from types import SimpleNamespace
from typing import Any

from promptfed.core.tree import Tree
from promptfed.sites.masks import Masks
from promptfed.sites.wire import Message
from support.masked_session import Curious
from support.real_worker import RealSite

EVERYONE = [0, 1, 2]


class CuriousAtADistance(Curious):
    """Plays sessions with a site's process, of which it knows what a coordinator knows."""

    def __init__(self, site: RealSite) -> None:
        self.site, self.survivors = site, list[int]()
        super().__init__(site.folder)

    def restart(self) -> None:
        """Put an object in the site's place that only passes requests on."""
        secrets = SimpleNamespace(_statement=self._signed, _list=lambda: Masks._list(self._known()))
        self.worker: Any = SimpleNamespace(answer=self.site.answer, _masks=secrets)

    def _known(self) -> Any:
        digest = hashlib.sha256(self.recipe.encode()).hexdigest()
        context = json.dumps([self.run, self.number, "s", digest])
        return SimpleNamespace(context=context, keys=EVERYONE, agreed=self.survivors)

    def _signed(self, client: int, keys: bytes) -> bytes:
        return Masks._statement(self._known(), client, keys)

    def confirm(self, *survivors: int) -> Message:
        self.survivors = list(survivors)
        return super().confirm(*survivors)

    def server(self) -> Tree:
        """Return a model, as any coordinator can make one."""
        return self.site.model(0)

    def hand_on(self, *members: int, **more: object) -> str:
        """Begin a session and hand on the keys of some sites; return why that is refused, if it is."""
        self.begin()
        identities = [self.claims[member] for member in members]
        given = {"members": list(members), "identities": identities, **more}
        return str(self.ask("shares", self.told(*members), **given).head.get("error", ""))
