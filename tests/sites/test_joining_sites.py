"""Sites that come after the last round: as in simulation, and unknown to the run until then."""

import json
from pathlib import Path
from typing import Any

import pytest

from promptfed.core.errors import PromptFedError
from promptfed.sites import coordinator, wire
from promptfed.sites.admin_session import Presence
from promptfed.sites.settings import Federation
from promptfed.sites.supervisor import Supervisor
from promptfed.sites.wire import Message
from support.faults import Crash, ignore
from support.three_sites import Ask, begin, exchange, furthest, lines, server_tree, simulate

WORDS = ("rounds=2", "newcomers=1", "join_rounds=2")


@pytest.mark.parametrize("method", ["pfedpg", "pfedpt"])
def test_a_newcomer_joins_as_in_the_simulation(method: str, tmp_path: Path) -> None:
    simulated = simulate(tmp_path, method, *WORDS)
    out, federation = begin(tmp_path, method, *WORDS)
    asked: list[tuple[str, int]] = []

    def listening(site: str, ask: Ask) -> Ask:
        def answer(request: bytes) -> bytes:
            head = wire.unpack(request, 2**30).head
            asked.append((f"{site} {head['kind']}", head["round"]))
            return ask(request)

        return answer

    summary = coordinator.conduct(out, federation, exchange(tmp_path, listening), ignore)
    assert [line["clients"] for line in lines(out)] == [[0, 1], [0, 1], [2], [2]]
    first = asked.index(("west hello", 0))
    assert {number for _, number in asked[:first]} == {0, 1}  # nobody asks it anything before its time
    assert furthest(server_tree(simulated), server_tree(out)) <= 1e-6
    wanted = json.loads((simulated / "summary.json").read_text())
    for score in ("mean", "newcomers", "per_client"):
        assert summary["accuracy"][score] == wanted["accuracy"][score]
    assert summary["traffic"] == wanted["traffic"]
    assert list(json.loads((out / "newcomers.json").read_text())["sites"]) == ["west"]


@pytest.mark.parametrize("number", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_coordinator_that_dies_while_they_join_goes_on(number: int, tmp_path: Path) -> None:
    out, federation = begin(tmp_path, "pfedpg", *WORDS)
    post = exchange(tmp_path)
    ask, crashes = post.exchange, [number]

    def dying(round: int, requests: Any, timeout: float) -> Any:  # noqa: A002
        answers = ask(round, requests, timeout)
        if round in crashes:
            crashes.remove(round)
            raise Crash
        return answers

    post.exchange = dying  # type: ignore[method-assign]
    with pytest.raises(Crash):
        coordinator.conduct(out, federation, post, ignore)
    coordinator.conduct(out, federation, post, ignore)
    there = tmp_path / "straight"
    there.mkdir()
    straight, _ = begin(there, "pfedpg", *WORDS)
    coordinator.conduct(straight, federation, exchange(there), ignore)
    assert furthest(server_tree(out), server_tree(straight)) == 0


def test_a_newcomer_of_other_classes_ends_the_run_with_a_sentence(tmp_path: Path) -> None:
    def renamed(site: str, ask: Ask) -> Ask:
        def answer(request: bytes) -> bytes:
            message = wire.unpack(ask(request), 2**30)
            head = {"classes": ["dark", "blue"]} if site == "west" else {}
            return wire.pack(Message(message.head | head, message.tree))

        return answer

    out, federation = begin(tmp_path, "fedavg", *WORDS)
    with pytest.raises(PromptFedError, match=r"^west and north differ in their classes"):
        coordinator.conduct(out, federation, exchange(tmp_path, renamed), ignore)
    assert len(lines(out)) == 2


def test_a_newcomer_that_never_comes_ends_the_run_with_a_sentence(tmp_path: Path) -> None:
    def absent(site: str, ask: Ask) -> Ask:
        def answer(request: bytes) -> bytes:
            if site == "west":
                raise OSError("it is not connected")
            return ask(request)

        return answer

    federation = Federation(("north", "south", "west"), patience_seconds=0.1)
    out, _ = begin(tmp_path, "fedavg", *WORDS, federation=federation)
    with pytest.raises(PromptFedError, match=r"^The run cannot continue: west: it is not connected\."):
        coordinator.conduct(out, federation, exchange(tmp_path, absent), ignore)
    assert len(lines(out)) == 2


@pytest.mark.parametrize(
    ("begun", "there", "missing"),
    [
        (False, {"north", "south"}, set()),
        (False, {"north", "west"}, {"south"}),  # a newcomer stands in for nobody
        (True, {"north"}, {"south"}),
        (True, {"south", "west"}, set()),
        (True, {"north", "south", "west"}, set()),
    ],
)
def test_a_job_waits_for_all_but_newcomers(
    begun: bool, there: set[str], missing: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, _ = begin(tmp_path, "fedavg", *WORDS)
    (tmp_path / "fed.toml").write_text('sites = ["north", "south", "west"]\n')
    if begun:
        (out / "sites.json").write_text("{}")
    supervisor = Supervisor(tmp_path, out, ignore, ignore)
    monkeypatch.setattr(supervisor.session, "presence", lambda: Presence(frozenset(there), frozenset()))
    assert supervisor._missing() == missing
