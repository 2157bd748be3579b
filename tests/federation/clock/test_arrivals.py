"""Who starts from which model and whose answers count: every moment by hand, on links that take no time."""

import numpy as np
import pytest

from promptfed.federation.clock.arrivals import Arrivals, Moment, Sizes
from promptfed.federation.clock.attempts import Demand, Devices, Part
from promptfed.federation.clock.links import PROFILES
from promptfed.federation.clock.options import ClockOptions, filled
from promptfed.federation.sampling import choose

INSTANT = 1e30  # Mbit/s


def clock(mode: str, **keys: object) -> ClockOptions:
    return ClockOptions(**{"down_mbit": INSTANT, "up_mbit": INSTANT, "image_ms": 1000.0, "mode": mode} | keys)  # type: ignore[arg-type]


def moments(rounds: int, options: ClockOptions, images: tuple[int, ...], per_round: int = 0) -> list[Moment]:
    arrivals = Arrivals(options, Sizes(images, down=8, once=0, up=8), 0, per_round)
    return [arrivals.moment(t) for t in range(rounds)]


def told(some: list[Moment]) -> list[tuple[float, list[tuple[int, int]]]]:
    """Return when each round ends, and for each answer its client and the model that it started from."""
    return [(one.ends, [(flight.client, flight.version) for flight in one.heard]) for one in some]


def test_a_synchronous_round_waits_for_the_last() -> None:
    assert told(moments(2, clock("sync"), (1, 2, 5))) == [
        (5.0, [(0, 0), (1, 0), (2, 0)]),
        (10.0, [(0, 1), (1, 1), (2, 1)]),
    ]


def test_fedbuff_waits_for_two_of_three() -> None:
    # clients take 1, 2 and 5 seconds. At 2 s: 0 and 1. They start again: 0 is back at 3, 1 at 4. Then 0 and 2 are back
    # at 5, 1 at 6; the older model comes first. 2 then starts from model 3, and 0 is back at 6 with 1
    found = moments(4, clock("fedbuff", buffer=2), (1, 2, 5))
    assert told(found) == [
        (2.0, [(0, 0), (1, 0)]),
        (4.0, [(0, 1), (1, 1)]),
        (5.0, [(0, 2), (2, 0)]),
        (6.0, [(0, 3), (1, 2)]),
    ]
    assert [(flight.client, flight.version) for flight in found[3].left] == [(2, 3)]


def test_of_those_who_arrive_together_the_buffer_takes_no_more_than_it_holds() -> None:
    found = moments(3, clock("fedbuff", buffer=2), (1, 1, 1))
    assert told(found) == [(1.0, [(0, 0), (1, 0)]), (2.0, [(0, 1), (2, 0)]), (3.0, [(0, 2), (1, 1)])]
    assert found[1].heard[1].arrives == 1.0  # the third was there, and waited for another one


def test_semi_waits_until_its_deadline_or_for_the_last() -> None:
    # a deadline of 3 s: client 2 is late by a round; when it is back at 5 s, all are
    found = moments(4, clock("semi", deadline_minutes=3 / 60), (1, 2, 5))
    assert told(found) == [
        (3.0, [(0, 0), (1, 0)]),
        (5.0, [(0, 1), (1, 1), (2, 0)]),
        (8.0, [(0, 2), (1, 2)]),
        (10.0, [(0, 3), (1, 3), (2, 2)]),
    ]


def test_semi_waits_for_the_first_where_nobody_is_in_time() -> None:
    assert told(moments(2, clock("semi", deadline_minutes=1 / 60), (2, 3))) == [
        (2.0, [(0, 0)]),
        (3.0, [(1, 0)]),
    ]


def test_as_many_are_at_work_as_take_part_in_a_round() -> None:
    found = moments(30, clock("fedbuff", buffer=2), (1, 2, 3, 4, 5, 6, 7), per_round=4)
    assert {len(one.heard) for one in found} == {2}
    assert {len(one.left) for one in found} == {2}
    assert {flight.client for one in found for flight in one.heard} == set(range(7))
    for one in found:
        clients = [flight.client for flight in (*one.heard, *one.left)]
        assert len(set(clients)) == len(clients)


@pytest.mark.parametrize("mode", ["sync", "fedbuff"])
def test_who_waits_for_all_draws_as_any_run_does(mode: str) -> None:
    found = moments(5, clock(mode, buffer=3), (1, 2, 3, 4, 5, 6), per_round=3)
    assert [[flight.client for flight in one.heard] for one in found] == [choose(0, t, 6, 3).tolist() for t in range(5)]
    assert all(flight.version == t for t, one in enumerate(found) for flight in one.heard)


def test_what_is_sent_once_is_received_with_the_first_model_only() -> None:
    # 8 Mbit/s: a million bytes in a second
    options = clock("sync", down_mbit=8.0, image_ms=0.0)
    arrivals = Arrivals(options, Sizes((1, 1), down=1_000_000, once=2_000_000, up=0), 0, 0)
    assert [arrivals.moment(t).ends for t in range(2)] == pytest.approx([3.0, 4.0])


def test_a_clients_luck_does_not_depend_on_the_others() -> None:
    def parts(clients: list[int]) -> list[Part]:
        demand = Demand(np.full(len(clients), 1e6), np.full(len(clients), 1e6), np.full(len(clients), 9.0))
        return Devices(PROFILES["mobile"], 3).attempts(2, clients, 1000.0, demand)

    assert parts([1, 4, 7])[1] == parts([4])[0]
    assert parts([1, 4, 7])[2] == parts([7, 9])[0]


def test_an_empty_table_stays_empty_and_a_profile_is_spelled_out() -> None:
    assert filled({}) == {}
    table = filled({"mode": "semi", "profile": "mobile", "hours": 24})
    assert (table["hours"], table["down_mbit"], table["deadline_minutes"]) == (24.0, 20, 60.0)
    gone = {**table, "profile": "gone.toml"}  # all numbers are there, so the file is not read again
    assert filled(gone) == gone


def test_weights_by_staleness() -> None:
    assert [clock("semi").weight(old) for old in (0, 3, 8)] == [1.0, 0.5, pytest.approx(1 / 3)]
    assert clock("semi", damping=0.0).weight(5) == 1.0
