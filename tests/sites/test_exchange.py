"""An exchange closes at its deadline, and an answer never reaches another round."""

import threading
import time
from collections.abc import Callable

from promptfed.sites.exchange import PendingRequests, Silence
from support.sites_in_threads import Threads


def test_everyone_gets_a_request_and_gives_an_answer_of_its_own() -> None:
    threads = Threads({"a": lambda request: request + b"!", "b": lambda request: request + b"?"})
    assert threads.exchange(0, {"a": b"1", "b": b"2"}, 10) == {"a": b"1!", "b": b"2?"}


def test_a_slow_site_is_left_behind_and_asked_again_once_it_has_answered() -> None:
    go = threading.Event()

    def slow(request: bytes) -> bytes:
        if request == b"1":
            go.wait(240)
        return request

    threads = Threads({"slow": slow, "fast": lambda request: request})
    assert threads.exchange(0, {"slow": b"1", "fast": b"1"}, 2) == {
        "fast": b"1",
        "slow": Silence("it gave no answer within 2 seconds"),
    }
    assert threads.exchange(1, {"slow": b"2", "fast": b"2"}, 10) == {
        "fast": b"2",
        "slow": Silence("it is still working on round 1"),
    }
    assert threads.late == {}
    go.set()
    while not threads.late:
        time.sleep(0.01)
    assert threads.late == {"slow": 1}
    assert threads.exchange(2, {"slow": b"3", "fast": b"3"}, 10) == {"fast": b"3", "slow": b"3"}


def test_a_dead_site_is_silent_at_once() -> None:
    def dead(request: bytes) -> bytes:
        raise OSError("its worker ended with code -9")

    began = time.monotonic()
    assert Threads({"a": dead}).exchange(0, {"a": b""}, 60) == {"a": Silence("its worker ended with code -9")}
    assert time.monotonic() - began < 30


def test_an_answer_that_comes_twice_counts_once_and_does_not_stand_in_for_the_next() -> None:
    deliveries: list[Callable[[bytes | Silence], None]] = []

    def send(site: str, request: bytes, deliver: Callable[[bytes | Silence], None]) -> None:
        deliveries.append(deliver)
        deliver(request)
        deliver(b"again")

    pending = PendingRequests()
    assert pending.exchange(0, {"a": b"1"}, 10, send) == {"a": b"1"}
    assert (pending.repeated, pending.late) == ({"a": 1}, {})

    def after_a_replay(site: str, request: bytes, deliver: Callable[[bytes | Silence], None]) -> None:
        deliveries[0](b"of the first request")
        deliver(request)

    assert pending.exchange(1, {"a": b"2"}, 10, after_a_replay) == {"a": b"2"}
    assert (pending.repeated, pending.late) == ({"a": 2}, {})
