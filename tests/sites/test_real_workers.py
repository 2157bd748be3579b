"""What a malicious coordinator is refused by the process that works at a real site, not only by the objects in it."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from promptfed.core.tree import Tree
from promptfed.federation.loop import rng_for
from promptfed.sites import terms
from promptfed.sites.audit_check import check_audit
from promptfed.sites.child_process import Child
from promptfed.sites.identity import load_identity
from promptfed.sites.masks import Masks
from promptfed.sites.wire import Message
from promptfed.sites.worker import Worker
from promptfed.sites.worker_command import worker_command
from support.certificates import write_certificates
from support.curious import Prober
from support.masked_session import Curious
from support.three_sites import OPEN, recipe, workers

TERMS = OPEN + 'methods = ["fedavg"]\nbackbones = ["cnn"]\n[guards]\nclip = 1.0\nnoise = 4.0\nepsilon_for_life = 4.0\n'
NOISY = ("guards.clip=1", "guards.noise=4", "guards.entropy=system")


@pytest.fixture
def started() -> Iterator[list[Child]]:
    """Collect the processes of a test, and end them."""
    children: list[Child] = []
    yield children
    for child in children:
        child.close()


def real(worker: Worker, started: list[Child]) -> Child:
    """Start the process that would work at this site."""
    child = Child(worker_command(worker.site, worker.home, worker.data, "cpu"), worker.home / "worker.log")
    started.append(child)
    return child


class CuriousAtADistance(Curious):
    """Plays sessions with a site's process, of which it knows what a coordinator knows."""

    def __init__(self, folder: Path, started: list[Child]) -> None:
        self.started, self.survivors = started, list[int]()
        super().__init__(folder)

    def restart(self) -> None:
        """Start the site's process, and an object in its place that only passes requests on."""
        twin = workers(self.folder)["north"]
        child = real(twin, self.started)
        secrets = SimpleNamespace(_statement=self._signed, _list=lambda: Masks._list(self._known()))
        self.worker: Any = SimpleNamespace(answer=child.ask, _masks=secrets)

    def _known(self) -> Any:
        digest = hashlib.sha256(self.recipe.encode()).hexdigest()
        return SimpleNamespace(context=json.dumps(["x", 0, "s", digest]), keys=[0, 1, 2], agreed=self.survivors)

    def _signed(self, client: int, keys: bytes) -> bytes:
        return Masks._statement(self._known(), client, keys)

    def confirm(self, *survivors: int) -> Message:
        self.survivors = list(survivors)
        return super().confirm(*survivors)

    def server(self) -> Tree:
        """Return the model that a run begins with, as any coordinator can work it out."""
        if not hasattr(self, "first"):
            prober = Prober(self.folder / "twin", recipe("fedavg"), OPEN)
            prober.model(0)
            place = prober.worker._run
            assert place is not None
            self.first = place.method.init_server(place.task, rng_for(0, "server"))
        return self.first


@pytest.mark.slow
def test_a_sites_process_hides_its_answer_or_sends_none(tmp_path: Path, started: list[Child]) -> None:
    (tmp_path / "twin").mkdir()
    curious = CuriousAtADistance(tmp_path, started)
    curious.begin()
    mine = {**curious.claims, 1: curious.signers[2].sign(curious.statement(1))}  # keys of its own in the name of south
    everyone = [0, 1, 2]
    forged = curious.error(
        "shares", curious.told(0, 1, 2), members=everyone, identities=[mine[member] for member in everyone]
    )
    assert forged == "one site takes part as several"
    curious.begin()
    unsigned = curious.error("shares", curious.told(0, 1, 2), members=everyone)
    assert unsigned == "the keys of the other sites are not signed"
    curious.begin()
    assert curious.error("shares", curious.told(0), members=[0]) == "an answer would not be hidden among these sites"
    curious.session()
    assert "out of turn" in curious.fit().head["error"]  # a second answer under the same mask
    assert "error" not in curious.reveal(0, 1, 2).head
    curious.session()
    other = "it has already helped to open another sum of this round"
    assert curious.reveal(0, 1).head["error"] == other
    curious.signers[1] = load_identity(write_certificates(tmp_path / "second kit", "south"), "south")
    curious.begin()
    identities = [curious.claims[member] for member in everyone]
    met = curious.error("shares", curious.told(0, 1, 2), members=everyone, identities=identities)
    assert met == 'the key of "south" is not the one it had before'
    found = check_audit(tmp_path / "home" / "north")
    assert found.problems == []
    assert {forged, other, met} <= {record["error"] for record in found.records}


@pytest.mark.slow
def test_a_sites_process_keeps_to_its_owners_terms(tmp_path: Path, started: list[Child]) -> None:
    prober = Prober(tmp_path, recipe("fedavg", *NOISY), TERMS)
    model = prober.model(0)
    prober.answer = real(prober.worker, started).ask
    assert "error" not in prober.ask("fit", model, keep=True, test=True).head
    assert "error" not in prober.ask("fit", model, keep=True, test=True).head  # the same numbers once more
    for text, sentence in (
        (recipe("fedrep").to_toml(), "its owner's terms allow fedavg, not fedrep"),
        (recipe("fedavg").to_toml(), "they ask for guards.noise, added at the site"),
        (recipe("fedavg", *NOISY, "guards.clip=2").to_toml(), "its owner's terms ask for guards.clip=1 at most, not 2"),
        (recipe("fedavg").to_toml().replace('"fedavg"', '"os:system"'), "this site runs no other code"),
    ):
        assert sentence in prober.ask("hello", run="y", recipe=text).head["error"]
    assert (
        "which cannot change"
        in prober.ask("hello", recipe=recipe("fedavg", *NOISY, "rounds=2").to_toml()).head["error"]
    )
    said = [
        prober.ask("fit", model, run=f"run-{number}", keep=True, test=False).head.get("error") for number in range(6)
    ]
    assert said[0] is None
    assert "its owner's terms allow ε=4 for life" in str(said[-1])
    found = check_audit(tmp_path / "home" / "north")
    assert found.problems == []
    spent = [record["guards"].get("epsilon_for_life", 0) for record in found.records]
    assert 0 < max(spent) <= 4.0 < 4.0 + terms.of_site(tmp_path / "home" / "north").guards.epsilon_for_life
