"""How long clients take: each waits until its hours begin, receives, trains, and sends.

An attempt that breaks off is made again from the start. All is drawn by keys: the same seed gives a client the same
link, device and hours in every run, and whoever starts with it, the same luck in the round of the same number.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from promptfed.federation.clock.links import Profile

DAY, HOUR = 86_400.0, 3600.0
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Part:
    """What a client spent its time on, in seconds; of all rounds, their sums."""

    waiting: float = 0.0  # for its hours to begin
    transfer: float = 0.0
    training: float = 0.0
    repeated: float = 0.0  # attempts that broke off, and being away after them

    @property
    def total(self) -> float:
        """Return all of it."""
        return self.waiting + self.transfer + self.training + self.repeated

    def __add__(self, other: "Part") -> "Part":
        """Return both together."""
        return Part(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class Demand:
    """What each of some clients has to do: bytes to receive and to send, and seconds of work on a typical device."""

    down: Numbers
    up: Numbers
    work: Numbers


class Devices:
    """All clients' links and devices under one profile."""

    def __init__(self, profile: Profile, seed: int) -> None:
        self.profile, self.seed = profile, seed
        self._known: dict[int, Numbers] = {}

    def attempts(self, round: int, clients: Sequence[int], now: float, demand: Demand) -> list[Part]:  # noqa: A002
        """Return what each of the clients spends its time on that start at `now` in a round, which counts from 1."""
        profile, drawn = self.profile, np.stack([self._own(client) for client in clients])
        most = max(clients) + 1  # each draws in its own place, whoever else is there
        moods, breaks = (np.random.default_rng([self.seed, 1, round, what]) for what in range(2))
        link = drawn[:, 0] * np.exp(profile.jitter * moods.standard_normal(most)[list(clients)])
        seconds = 8e-6 * (demand.down / profile.down_mbit + demand.up / profile.up_mbit)
        transfer = seconds / link + 2e-3 * profile.latency_ms
        training = profile.slowness * demand.work * drawn[:, 1]
        broken = breaks.geometric(1 - profile.dropout, most)[list(clients)] - 1
        lost = np.array([self._lost(round, *pair) for pair in zip(clients, broken.tolist(), strict=True)])
        repeated = lost * (transfer + training) + broken * 60 * profile.away_minutes
        clock = (now - drawn[:, 2]) % DAY  # seconds since its hours last began
        waiting = np.where(clock < HOUR * profile.hours, 0.0, DAY - clock)
        return [Part(*one) for one in np.stack([waiting, transfer, training, repeated], 1).tolist()]

    def _own(self, client: int) -> Numbers:
        """Return how fast a client's link is and how slow its device beside a typical one, and when its day begins."""
        if client not in self._known:
            draw = np.random.default_rng([self.seed, 0, client])
            link, device = np.exp(self.profile.spread * draw.standard_normal(2))
            self._known[client] = np.array([link, device, DAY * draw.random()])
        return self._known[client]

    def _lost(self, round: int, client: int, times: int) -> float:  # noqa: A002
        """Return what broken attempts come to: each got as far as a random moment."""
        return float(np.random.default_rng([self.seed, 2, round, client]).random(times).sum()) if times else 0.0
