"""Slow sites, sites that die, a coordinator that dies: the run goes on, and comes to the same numbers."""

import os
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from promptfed.sites import coordinator, wire
from promptfed.sites.child_process import Child
from promptfed.sites.settings import Federation
from promptfed.sites.worker_command import worker_command
from support.faults import Crash, away, ignore
from support.sites_in_threads import Threads
from support.three_sites import NAMES, Ask, begin, exchange, furthest, lines, server_tree, workers

TWO = Federation(NAMES, min_sites=2)


def test_a_straggler_misses_its_rounds_and_its_late_answer_is_dropped(tmp_path: Path) -> None:
    released = threading.Event()

    def slow(site: str, ask: Ask) -> Ask:
        def answer(request: bytes) -> bytes:
            head = wire.unpack(request, 2**30).head
            data = ask(request)
            if (site, head["kind"], head["round"]) == ("south", "fit", 1):
                assert released.wait(60)
            return data

        return answer

    post = exchange(tmp_path, slow)

    def release(line: dict[str, Any]) -> None:
        if line["round"] == 3:
            released.set()
            while not post.late["south"]:
                time.sleep(0.01)

    out, _ = begin(tmp_path, "pfedpt", "rounds=5", federation=TWO)
    summary = coordinator.conduct(out, Federation(NAMES, min_sites=2, round_seconds=3.0), post, release)
    assert [line["clients"] for line in lines(out)] == [[0, 1, 2], [0, 2], [0, 2], [0, 1, 2], [0, 1, 2]]
    assert [line["sites"] for line in lines(out)][1:4] == [
        {"silent": {"south": "it is still working on round 2"}, "refused": {}, "late": {}},
        {"silent": {"south": "it is still working on round 2"}, "refused": {}, "late": {}},
        {"silent": {}, "refused": {}, "late": {"south": 1}},
    ]
    assert summary["sites"] == {"silent": {"south": 2}, "refused": {}, "late": {"south": 1}}

    there = tmp_path / "reference"
    there.mkdir()
    reference, _ = begin(there, "pfedpt", "rounds=5", federation=TWO)
    coordinator.conduct(reference, TWO, exchange(there, away({"south": {1, 2}})), ignore)
    assert furthest(server_tree(out), server_tree(reference)) == 0


def test_an_answer_that_comes_twice_is_refused_by_name_and_never_stands_in_for_another(tmp_path: Path) -> None:
    class Twice(Threads):
        """Delivers every answer of "south" twice, the second time in the middle of the next exchange."""

        again: list[Any] = []  # noqa: RUF012

        def _ask(self, site: str, request: bytes, deliver: Any) -> None:
            if site == "south":
                while self.again:
                    self.again.pop()()
            answer = self.sites[site](request)
            deliver(answer)
            if site == "south":
                self.again.append(partial(deliver, answer))

    out, federation = begin(tmp_path, "fedavg")
    summary = coordinator.conduct(out, federation, Twice(exchange(tmp_path).sites), ignore)
    assert [line["clients"] for line in lines(out)] == [[0, 1, 2]] * 3
    told: Any = lines(out)[1]["sites"]
    assert told["refused"] == {"south": ["it answered a request that was not pending"] * 2}  # to train, to test
    assert summary["sites"]["late"] == {}

    there = tmp_path / "reference"
    there.mkdir()
    reference, _ = begin(there, "fedavg")
    coordinator.conduct(reference, federation, exchange(there), ignore)
    assert furthest(server_tree(out), server_tree(reference)) == 0


def test_an_answer_the_engine_knows_no_request_of_is_counted() -> None:
    from nvflare.apis.client import Client
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import Shareable
    from nvflare.apis.signal import Signal

    from promptfed.sites.flare_controller import Conductor, FlareExchange

    conductor = Conductor("run", "fed.toml")
    conductor._exchange = FlareExchange(conductor, FLContext(), Signal(), Federation(("a", "b")))
    conductor.process_result_of_unknown_task(Client("west", "token"), "work", "1", Shareable(), FLContext())
    assert conductor._exchange.repeated == {"west": 1}


@pytest.mark.parametrize("moment", ["fit", "evaluate", "saved"])
def test_a_coordinator_that_dies_goes_on_from_its_last_finished_round(moment: str, tmp_path: Path) -> None:
    out, federation = begin(tmp_path, "pfedpt", "rounds=4")
    sites = {name: worker.answer for name, worker in workers(tmp_path).items()}

    class Dying(Threads):
        def exchange(self, round: int, requests: Any, timeout: float) -> Any:  # noqa: A002
            answers = super().exchange(round, requests, timeout)
            if round == 2 and wire.unpack(requests["west"], 2**30).head["kind"] == moment:
                raise Crash  # the sites have done their work, the coordinator has not
            return answers

    def die(line: dict[str, Any]) -> None:
        if moment == "saved" and line["round"] == 2:
            raise Crash

    with pytest.raises(Crash):
        coordinator.conduct(out, federation, Dying(sites), die)
    assert len(lines(out)) == 2
    coordinator.conduct(out, federation, Threads(sites), ignore)

    there = tmp_path / "straight"
    there.mkdir()
    straight, _ = begin(there, "pfedpt", "rounds=4")
    coordinator.conduct(straight, federation, exchange(there), ignore)
    assert furthest(server_tree(out), server_tree(straight)) == 0
    assert [line["received"] for line in lines(out)] == [line["received"] for line in lines(straight)]


def test_a_site_that_starts_anew_has_its_personal_state(tmp_path: Path) -> None:
    answering = dict(workers(tmp_path))

    def newest(name: str, request: bytes) -> bytes:
        return answering[name].answer(request)

    post = Threads({name: partial(newest, name) for name in NAMES})

    def restart(line: dict[str, Any]) -> None:
        answering.update(workers(tmp_path))

    out, federation = begin(tmp_path, "pfedpt")
    coordinator.conduct(out, federation, post, restart)

    there = tmp_path / "straight"
    there.mkdir()
    straight, _ = begin(there, "pfedpt")
    coordinator.conduct(straight, federation, exchange(there), ignore)
    assert furthest(server_tree(out), server_tree(straight)) == 0


def test_a_site_that_has_lost_its_personal_state_says_so(tmp_path: Path) -> None:
    def lose(line: dict[str, Any]) -> None:
        for path in (tmp_path / "home" / "south").rglob("versions/*"):
            path.unlink()

    out, federation = begin(tmp_path, "pfedpt", federation=TWO)
    coordinator.conduct(out, federation, exchange(tmp_path), lose)
    assert [line["clients"] for line in lines(out)] == [[0, 1, 2], [0, 2], [0, 2]]
    told: Any = lines(out)[1]["sites"]
    assert told["refused"]["south"][0].startswith("it says: it does not have version 000001-")


@pytest.mark.slow
def test_a_site_whose_process_is_killed_comes_back_with_its_personal_state(tmp_path: Path) -> None:
    objects = workers(tmp_path)
    home = tmp_path / "home" / "south"
    child = Child(worker_command("south", home, objects["south"].data, "cpu"), home / "worker.log")

    def kill(line: dict[str, Any]) -> None:
        if line["round"] == 2:
            assert child.process is not None
            os.kill(child.process.pid, signal.SIGKILL)

    out, federation = begin(tmp_path, "pfedpt", "rounds=4")
    asks: dict[str, Ask] = {name: worker.answer for name, worker in objects.items()}
    try:
        coordinator.conduct(out, federation, Threads(asks | {"south": child.ask}), kill)
    finally:
        child.close()
    assert child.starts == 2

    there = tmp_path / "straight"
    there.mkdir()
    straight, _ = begin(there, "pfedpt", "rounds=4")
    coordinator.conduct(straight, federation, exchange(there), ignore)
    assert furthest(server_tree(out), server_tree(straight)) <= 1e-6
