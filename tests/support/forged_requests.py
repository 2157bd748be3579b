"""Requests to the site "north" that its coordinator has not signed."""

from collections.abc import Callable

from promptfed.sites.signed_requests import UNSIGNED
from promptfed.sites.wire import Header
from support.real_worker import sign, signer
from support.three_sites import recipe

SIGNED_RUN = "signed"


def asked(**more: object) -> Header:
    """Return the head of a request to "north"."""
    head = {"run": SIGNED_RUN, "round": 0, "nonce": "0", "kind": "hello", "site": "north", "client": 0, "classes": []}
    return head | {"recipe": recipe("fedavg").to_toml(), **more}


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
