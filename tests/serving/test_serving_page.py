"""The page in a real browser: it answers, explains, fits a phone, and complains about nothing."""

import base64
import http.client
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from promptfed.serving.tokens import beside, hashed, new_token, write_hashes
from support.browser import Browser, browsing
from support.served import Visited, fill
from support.tiny_server import copied, tiny_bundle


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bundle(tmp_path_factory.mktemp("page"))


def keep(browser: Browser, name: str) -> None:
    """Keep a screenshot where the environment asks for it."""
    if folder := os.environ.get("PROMPTFED_SCREENSHOTS"):
        made = browser.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        (Path(folder) / f"{name}.png").write_bytes(base64.b64decode(made["data"]))


def test_a_picture_gets_an_answer_and_its_reason(browser: Browser, bundle: Path) -> None:
    with Visited(bundle) as address:
        for width, scheme, paper in (
            (360, "light", "rgb(255, 255, 255)"),
            (1280, "dark", "rgb(20, 23, 26)"),
        ):
            browser.open(address, width, scheme)
            found = fill(browser, "camera" if width == 360 else "picture")
            assert browser.complaints() == []
            keep(browser, f"serve-{width}-{scheme}")
            assert found["answer"].endswith(" % sure")
            assert len(found["rows"]) == 4
            assert all("%" in row for row in found["rows"])
            assert found["status"] == "Client 0 has answered."
            assert found["where"].startswith(("It looked most at the part at the ", "No single part matters"))
            assert (found["painted"] > 0) == found["where"].startswith("It looked")
            assert found["focus"] == "answer"
            assert found["page"] <= found["view"] <= width
            assert (found["paper"], found["unnamed"], found["small"], found["inline"]) == (paper, 0, 0, 0)
            assert found["outside"] == []


def test_a_token_is_asked_for_and_used(browser: Browser, bundle: Path, tmp_path: Path) -> None:
    own = copied(bundle, tmp_path / "shops")
    token = new_token()
    write_hashes(beside(own), {hashed(token): 2})
    with Visited(own) as address:
        browser.open(address, 360, "light")
        before = fill(browser)
        browser.evaluate(
            f"document.getElementById('token').value = '{token}';"
            "document.getElementById('client').value = '2'; document.getElementById('result').hidden"
        )
        after = fill(browser)
    assert before["status"] == "Send your token: Authorization: Bearer TOKEN."
    assert not before["hidden"]
    assert after["status"] == "Client 2 has answered."


def test_the_page_is_small_and_strict(bundle: Path) -> None:
    with Visited(bundle) as address:
        asked = http.client.HTTPConnection(address.removeprefix("http://").rstrip("/"))
        asked.request("GET", "/")
        answer = asked.getresponse()
        body = answer.read()
        asked.close()
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert len(body) < 10_000
