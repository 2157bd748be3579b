"""Who starts from which model, and whose answers make the next one: a function of the clock alone.

Model v is the server's tree after v rounds. In round t clients start from model t, and the answers that the server does
not wait for stay on their way. Nothing here depends on what is learned, so a resumed run computes it again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from promptfed.federation.clock.attempts import Demand, Devices
from promptfed.federation.clock.options import ClockOptions
from promptfed.federation.sampling import choose, in_order


@dataclass(frozen=True, order=True)
class Flight:
    """A client at work: when its answer arrives, from which model it started, and who it is."""

    arrives: float
    version: int
    client: int


@dataclass(frozen=True)
class Moment:
    """The end of a round: when it is, whose answers count, and who is still at work."""

    ends: float = 0.0  # seconds since the run began
    heard: tuple[Flight, ...] = ()  # in the order of clients
    left: tuple[Flight, ...] = ()


@dataclass(frozen=True)
class Sizes:
    """What everyone's rounds are made of."""

    images: Sequence[int]  # training images of each client
    down: int  # bytes that a client receives in every round
    once: int  # bytes that it receives in its first round besides
    up: int


class Arrivals:
    """The moments of a run, one round after the other."""

    def __init__(
        self, clock: ClockOptions, sizes: Sizes, seed: int, per_round: int, groups: Sequence[int] = ()
    ) -> None:
        self.clock, self.sizes, self.seed = clock, sizes, seed
        self.per_round, self.groups = per_round, groups
        self._devices = Devices(clock, seed)
        self._moments: list[Moment] = []
        self._met: set[int] = set()

    def moment(self, t: int) -> Moment:
        """Return the end of round `t`."""
        while len(self._moments) <= t:
            self._moments.append(self._next(len(self._moments), self._moments[-1] if self._moments else Moment()))
        return self._moments[t]

    def _next(self, t: int, before: Moment) -> Moment:
        starting = self._starting(t, {flight.client for flight in before.left})
        flights = sorted([*before.left, *self._started(t, starting, before.ends)])
        ends = self._ends(before.ends, [flight.arrives for flight in flights])
        count = sum(flight.arrives <= ends for flight in flights)
        if self.clock.mode == "fedbuff":  # of several that arrive together, no more than the buffer takes
            count = min(count, self.clock.buffered(len(flights)))
        heard = sorted(flights[:count], key=lambda flight: flight.client)
        return Moment(ends, tuple(heard), tuple(flights[count:]))

    def _starting(self, t: int, busy: set[int]) -> list[int]:
        """Return who starts: in fedbuff so many that `per_round` are at work, else the round's clients who are not."""
        everyone = len(self.sizes.images)
        if self.clock.mode == "fedbuff" and busy:
            idle = [client for client in in_order(self.seed, t, everyone).tolist() if client not in busy]
            return sorted(idle[: (self.per_round or everyone) - len(busy)])
        drawn = choose(self.seed, t, everyone, self.per_round, self.groups).tolist()
        return [client for client in drawn if client not in busy]

    def _started(self, t: int, clients: list[int], now: float) -> list[Flight]:
        if not clients:
            return []
        new = np.array([client not in self._met for client in clients], float)
        self._met.update(clients)
        images, ones = np.array([self.sizes.images[client] for client in clients], float), np.ones(len(clients))
        down, up = self.sizes.down + self.sizes.once * new, self.sizes.up * ones
        demand = Demand(down, up, 1e-3 * self.clock.image_ms * images)
        parts = self._devices.attempts(t + 1, clients, now, demand)
        return [Flight(now + part.total, t, client) for client, part in zip(clients, parts, strict=True)]

    def _ends(self, now: float, arrivals: Sequence[float]) -> float:
        """Return when the round ends; the arrivals are in order."""
        if self.clock.mode == "fedbuff":
            return arrivals[self.clock.buffered(len(arrivals)) - 1]
        if self.clock.mode == "sync":
            return arrivals[-1]
        deadline = now + 60 * self.clock.deadline_minutes
        return max(arrivals[0], min(arrivals[-1], deadline))  # without any answer there is nothing to go on with
