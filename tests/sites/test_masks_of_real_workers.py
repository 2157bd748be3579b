"""What a malicious coordinator is refused under masks by the process that works at a real site."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from promptfed.core.tree import Tree
from promptfed.sites.audit_check import check_audit
from promptfed.sites.child_process import Child
from promptfed.sites.identity import load_identity
from promptfed.sites.masks import Masks
from promptfed.sites.terms import FILE
from promptfed.sites.wire import Message
from support.certificates import write_certificates
from support.curious import Prober
from support.masked_session import Curious
from support.real_worker import ask_signed, site_process
from support.three_sites import OPEN, recipe, workers

pytestmark = pytest.mark.real_processes

EVERYONE = [0, 1, 2]
SUM_OPENED = "it has already helped to open another sum of this round"


class CuriousAtADistance(Curious):
    """Plays sessions with a site's process, of which it knows what a coordinator knows."""

    def __init__(self, folder: Path, child: Child) -> None:
        self.child, self.survivors = child, list[int]()
        super().__init__(folder)
        (folder / "twin").mkdir()
        self.first = Prober(folder / "twin", recipe("fedavg"), OPEN).model(0)

    def restart(self) -> None:
        """Put an object in the site's place that only passes requests on."""
        secrets = SimpleNamespace(_statement=self._signed, _list=lambda: Masks._list(self._known()))
        self.worker: Any = SimpleNamespace(answer=lambda request: ask_signed(self.child, request), _masks=secrets)

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
        return self.first

    def agree(self, terms: str) -> None:
        """Let the owner have other terms."""
        (self.folder / "home" / "north" / FILE).write_text(terms, encoding="utf-8")

    def hand_on(self, *members: int, **more: object) -> str:
        """Begin a session and hand on the keys of some sites; return why that is refused, if it is."""
        self.begin()
        identities = [self.claims[member] for member in members]
        given = {"members": list(members), "identities": identities, **more}
        return str(self.ask("shares", self.told(*members), **given).head.get("error", ""))


@pytest.fixture(scope="module")
def curious(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CuriousAtADistance]:
    """Return a coordinator that asks one process in all of these tests, each in runs of its own.

    It has made the keys of the other two sites itself: who has not listed their keys in [members] takes them at first.
    """
    folder = tmp_path_factory.mktemp("masks")
    with site_process(workers(folder)["north"]) as child:
        yield CuriousAtADistance(folder, child)


def test_the_keys_of_others_are_signed_and_known(curious: CuriousAtADistance, tmp_path: Path) -> None:
    curious.run = "keys"
    curious.agree(OPEN)
    assert curious.hand_on(*EVERYONE) == ""  # from now on it knows both
    assert curious.hand_on(*EVERYONE, identities=None) == "the keys of the other sites are not signed"
    honest = dict(curious.signers)
    try:
        curious.signers[1] = honest[2]
        assert curious.hand_on(*EVERYONE) == "one site takes part as several"
        curious.signers[1] = load_identity(write_certificates(tmp_path / "second kit", "south"), "south")
        assert curious.hand_on(*EVERYONE) == 'the key of "south" is not the one it had before'
        listed = f'[members]\nsouth = "{honest[1].key}"\nwest = "{honest[2].key}"\n'
        curious.agree(OPEN + listed)
        assert curious.hand_on(*EVERYONE) == 'its owner\'s terms do not list "south" with this key'
    finally:
        curious.signers |= honest
    assert curious.hand_on(*EVERYONE) == ""


def test_an_answer_is_hidden_among_enough_sites(curious: CuriousAtADistance) -> None:
    curious.run = "few"
    curious.agree(OPEN)
    assert curious.hand_on(0) == "an answer would not be hidden among these sites"
    curious.agree("")
    assert curious.hand_on(0, 1) == "its owner's terms ask for 3 sites in a sum, and these are 2"


def test_a_round_has_one_answer_and_one_sum(curious: CuriousAtADistance) -> None:
    curious.run = "sums"
    curious.agree(OPEN)
    curious.session()
    assert "out of turn" in curious.fit().head["error"]  # a second answer under the same mask
    assert "error" not in curious.reveal(*EVERYONE).head
    curious.session()
    assert curious.reveal(0, 1).head["error"] == SUM_OPENED
    found = check_audit(curious.folder / "home" / "north")
    assert found.problems == []
    masked = [set(record["tensors"]) for record in found.records if record["kind"] == "fit" and not record["error"]]
    assert masked == [{"masked"}] * 2


def test_sites_that_were_told_different_lists_open_nothing(curious: CuriousAtADistance) -> None:
    curious.run = "lists"
    curious.agree(OPEN)
    curious.session()
    own = curious.confirm(*EVERYONE)
    other = curious.worker._masks._list().replace(b"[0, 1, 2]", b"[0, 1]", 1)
    signed = {"0": own.head["confirmed"], "1": curious.signers[1].confirm(other), "2": None}
    answer = curious.ask("reveal", confirmed=signed)
    assert answer.head["error"] == "fewer than 2 sites have signed the list of those who have answered"
    assert answer.tree == {}


def test_two_runs_do_not_differ_by_one_site_but_two_rounds_of_one_may(curious: CuriousAtADistance) -> None:
    curious.agree(OPEN + "min_change = 2\n")
    (curious.folder / "home" / "north" / "company.json").unlink(missing_ok=True)
    curious.run = "with-west"
    assert curious.hand_on(*EVERYONE) == ""
    curious.run = "without-west"
    assert "only west would differ" in curious.hand_on(0, 1)
    curious.run, curious.number = "with-west", 1
    try:
        assert curious.hand_on(0, 1) == ""  # a site may be lost: only noise helps
    finally:
        curious.number = 0
