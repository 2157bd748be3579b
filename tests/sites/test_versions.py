"""Versions that may not work together are refused with a sentence, on both sides."""

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from promptfed.core.errors import PromptFedError
from promptfed.core.version import __version__
from promptfed.sites import coordinator, versions, wire
from promptfed.sites.settings import Federation
from promptfed.sites.versions import CoordinatorNotes, NoteTaker, find_mismatch, read_notes
from promptfed.sites.wire import Message, Refused
from support.three_sites import NAMES, Ask, begin, exchange

Blob = Callable[[bytes], bytes]


@pytest.mark.parametrize("other", ["1.2.0", "1.2.9", "1.2.0rc1", "1.2.1.dev3+g12"])
def test_the_same_series_works_together(other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "__version__", "1.2.4")
    assert find_mismatch(other, "north") == ""


@pytest.mark.parametrize("other", ["1.3.0", "2.2.4", "0.2.4", "1.20.4"])
def test_another_series_does_not(other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "__version__", "1.2.4")
    expected = f"north has PromptFed {other}, and this is 1.2.4; install the same version on both"
    assert find_mismatch(other, "north") == expected


@pytest.mark.parametrize("other", [None, 1, "", "new", "1", "1.2\x1b[2J", "1.2" * 99])
def test_what_is_no_version_is_not_shown(other: object) -> None:
    assert find_mismatch(other, "north").startswith("north does not say which version of PromptFed it has; install")


def reported_as(version: str) -> Blob:
    """Return how a message looks when another version packed it."""

    def change(data: bytes) -> bytes:
        message = wire.unpack(data, 2**30)
        return wire.pack(Message(message.head | {"promptfed": version}, message.tree))

    return change


def in_format(number: int) -> Blob:
    """Return how a message looks in another format."""

    def change(data: bytes) -> bytes:
        mark = rf"\"format\": {wire.FORMAT}".encode()
        assert data.count(mark) == 1
        return data.replace(mark, rf"\"format\": {number}".encode())

    return change


def run_with(folder: Path, request: Blob = bytes, answer: Blob = bytes) -> None:
    """Conduct a run in which what travels to and from west is changed."""

    def change(site: str, ask: Ask) -> Ask:
        return (lambda data: answer(ask(request(data)))) if site == "west" else ask

    out, _ = begin(folder, "fedavg", federation=(federation := Federation(NAMES, patience_seconds=0.01)))
    coordinator.conduct(out, federation, exchange(folder, change), lambda line: None)


def test_a_site_refuses_a_coordinator_of_another_version(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sentence = f"the coordinator has PromptFed 7.0.0, and this is {__version__}; install the same version on both"
    with caplog.at_level(logging.WARNING), pytest.raises(PromptFedError) as caught:
        run_with(tmp_path, request=reported_as("7.0.0"))
    assert str(caught.value) == f"The run cannot begin: west: it says: {sentence}."
    assert f"refused a request: {sentence}" in caplog.messages
    notes = read_notes(tmp_path / "home" / "west")
    assert notes is not None
    assert notes.version == "7.0.0"


def test_a_coordinator_refuses_a_site_of_another_version(tmp_path: Path) -> None:
    with pytest.raises(PromptFedError) as caught:
        run_with(tmp_path, answer=reported_as("7.0.0"))
    sentence = f"it has PromptFed 7.0.0, and this is {__version__}; install the same version on both"
    assert str(caught.value) == f"The run cannot begin: west: {sentence}."


def test_another_format_of_messages_is_said_on_both_sides(tmp_path: Path) -> None:
    sentence = (
        f"it has message format 9 of PromptFed {__version__}, and this is {__version__} with format {wire.FORMAT}; "
        "install the same version on both sides"
    )
    with pytest.raises(PromptFedError) as caught:
        run_with(tmp_path / "to", request=in_format(9))
    assert str(caught.value) == f"The run cannot begin: west: it says: {sentence}."
    with pytest.raises(PromptFedError) as caught:
        run_with(tmp_path / "from", answer=in_format(9))
    assert str(caught.value) == f"The run cannot begin: west: {sentence}."


def test_a_run_notes_the_versions_of_all_sites_and_a_site_its_coordinators(tmp_path: Path) -> None:
    out, federation = begin(tmp_path, "fedavg", "rounds=1")
    coordinator.conduct(out, federation, exchange(tmp_path), lambda line: None)
    known = json.loads((out / "sites.json").read_text())["sites"]
    assert {site: declared["promptfed"] for site, declared in known.items()} == dict.fromkeys(NAMES, __version__)
    notes = read_notes(tmp_path / "home" / "north")
    assert notes is not None
    assert notes.version == __version__
    assert 0 <= notes.lag < 60


# -- what a site notes --------------------------------------------------------------------------------------------


def test_the_closest_comparison_of_clocks_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("promptfed.sites.versions.time.time", lambda: 1000.0)
    taker = NoteTaker(tmp_path)
    for sent in (900.0, 950.0, 940.0, 949.9):  # a request that has waited says less
        taker.take({"promptfed": "1.0.0", "sent": sent})
    assert read_notes(tmp_path) == CoordinatorNotes("1.0.0", 50.0, 1000.0)
    taker.take({"promptfed": "1.1.0", "sent": 0.0})
    assert read_notes(tmp_path) == CoordinatorNotes("1.1.0", 1000.0, 1000.0)


@pytest.mark.parametrize("head", [{}, {"promptfed": 3, "sent": 0.0}, {"promptfed": "x\x1b", "sent": 0.0}])
def test_nonsense_is_not_noted(head: dict[str, object], tmp_path: Path) -> None:
    NoteTaker(tmp_path).take(head)
    assert read_notes(tmp_path) is None


def test_notes_that_are_damaged_are_a_sentence(tmp_path: Path) -> None:
    (tmp_path / versions.FILE).write_text('{"x": 1}')
    with pytest.raises(PromptFedError, match=re.escape("coordinator.json cannot be read; delete it")):
        read_notes(tmp_path)


def test_a_message_of_another_format_names_no_strange_version() -> None:
    data = wire.pack(Message({"promptfed": "\x1b[2J"}, {}))
    with pytest.raises(Refused, match=r"^it has another message format, and this is"):
        wire.unpack(in_format(9)(data), 2**20)
