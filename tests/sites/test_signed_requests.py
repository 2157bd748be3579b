"""A site answers only what its coordinator has signed, and its audit log says to whom each answer went."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from promptfed.sites import wire
from promptfed.sites.audit_check import check_audit
from promptfed.sites.signed_requests import SIGNED, UNSIGNED, asker
from promptfed.sites.wire import Header, Message, Refused
from support.real_worker import name_coordinator, sign, signer, site_process
from support.three_sites import recipe, workers


def asked(**more: object) -> Header:
    """Return the head of a request to "north"."""
    head = {"run": "x", "round": 0, "nonce": "0", "kind": "hello", "site": "north", "client": 0, "classes": []}
    return head | {"recipe": recipe("fedavg").to_toml(), **more}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return the home of a site whose coordinator is "localhost"."""
    worker = workers(tmp_path)["north"]
    name_coordinator(worker.home)
    return worker.home


FORGED: dict[str, tuple[Callable[[], Header], str]] = {
    "nobody": (asked, UNSIGNED),
    "nonsense": (lambda: asked(coordinator={"certificate": "x", "signature": "zz"}), UNSIGNED),
    "not a table": (lambda: asked(coordinator=[1]), UNSIGNED),
    "too long": (lambda: asked(coordinator={"certificate": "x" * 10**5, "signature": ""}), UNSIGNED),
    "another site": (lambda: sign(asked(), signer("south")), 'signed by "south", which is not the coordinator'),
    "another authority": (lambda: sign(asked(), signer("localhost", "stranger")), UNSIGNED),
    "an expired certificate": (lambda: sign(asked(), signer(days=-1)), "the coordinator's certificate has expired"),
    "another request": (lambda: sign(asked(), signer()) | {"round": 1}, UNSIGNED),
    "another recipe": (lambda: sign(asked(), signer()) | {"recipe": "x"}, UNSIGNED),
}


@pytest.mark.parametrize("name", FORGED)
def test_what_the_coordinator_has_not_signed_is_refused(name: str, home: Path) -> None:
    head, sentence = FORGED[name]
    with pytest.raises(Refused, match=sentence):
        asker(home, head())


@pytest.mark.real_processes
def test_the_worker_of_a_real_site_answers_its_coordinator_alone(tmp_path: Path) -> None:
    worker = workers(tmp_path)["north"]
    with site_process(worker) as child:

        def answer(head: Header) -> Any:
            return wire.unpack(child.ask(wire.pack(Message(head, {}))), 2**30).head

        for given, sentence in FORGED.values():
            assert sentence in answer(given())["error"]
        head = sign(asked(), signer())
        assert answer(head)["classes"] == ["dark", "light"]
    found = check_audit(worker.home)
    assert found.problems == []
    *forged, last = found.records
    assert [record["to"] for record in forged] == [None] * len(FORGED)
    assert [record["request"] for record in forged] == [None] * len(FORGED)
    assert (last["to"], last["request"]) == (asker(worker.home, head), head[SIGNED]["signature"])
