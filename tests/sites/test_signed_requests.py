"""A site answers only what its coordinator has signed, and its audit log says to whom each answer went."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from promptfed.sites import wire
from promptfed.sites.audit_check import check_audit
from promptfed.sites.child_process import Child
from promptfed.sites.identity import STARTUP
from promptfed.sites.signed_requests import SIGNED, UNSIGNED, Signer, asker
from promptfed.sites.wire import Header, Message, Refused
from promptfed.sites.worker_command import worker_command
from support.certificates import certificate, private_key
from support.three_sites import recipe, workers


def signer(name: str = "localhost", authority: str = "authority", days: int = 1) -> Signer:
    """Return someone who signs with a certificate of that authority."""
    return Signer(certificate(name, authority, days).decode(), private_key(name))


def asked(**more: object) -> Header:
    """Return the head of a request to "north"."""
    head = {"run": "x", "round": 0, "nonce": "0", "kind": "hello", "site": "north", "client": 0, "classes": []}
    return head | {"recipe": recipe("fedavg").to_toml(), **more}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return the home of a site whose coordinator is "localhost"."""
    worker = workers(tmp_path)["north"]
    config = {"servers": [{"identity": "localhost"}]}
    (worker.home / STARTUP / "fed_client.json").write_text(json.dumps(config))
    return worker.home


def sign(head: Header, by: Signer) -> Header:
    return head | {SIGNED: by.sign(head)}


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


def test_the_worker_of_a_real_site_answers_its_coordinator_alone(home: Path, tmp_path: Path) -> None:
    data = str(tmp_path / "north.npz")
    child = Child(worker_command("north", home, data, "cpu", signed=True), tmp_path / "worker.log")

    def answer(head: Header) -> Any:
        return wire.unpack(child.ask(wire.pack(Message(head, {}))), 2**30).head

    try:
        assert answer(asked())["error"] == UNSIGNED
        head = sign(asked(), signer())
        assert answer(head)["classes"] == ["dark", "light"]
    finally:
        child.close()
    found = check_audit(home)
    assert found.problems == []
    assert [record["to"] for record in found.records] == [None, asker(home, head)]
    assert [record["error"] for record in found.records] == [UNSIGNED, None]
    assert [record["request"] for record in found.records] == [None, head[SIGNED]["signature"]]
