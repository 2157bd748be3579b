"""When each round of a finished run would have ended on given links and devices.

A round ends when the last of its clients has answered, so the results are the run's own and only the clock differs.
A client waits until its hours begin, receives, trains, and sends. An attempt that breaks off is made again from the
start. The same seed gives a client the same link, device and hours in every run, so runs can be compared.
How long a client trains is its share of the round's recorded seconds, by images; so the tests between rounds count as
work too.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptfed.analysis.network.links import Profile
from promptfed.core.errors import PromptFedError
from promptfed.results.folder.reader import RunFolder
from promptfed.results.folder.values import Round

DAY, HOUR = 86_400.0, 3600.0
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Part:
    """What the client that a round waited for spent its time on, in seconds; of all rounds, their sums."""

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
class Timeline:
    """A run on the clock: how long it took, what it waited for, and its accuracy over the hours."""

    part: Part
    points: tuple[tuple[float, float], ...]  # hours and mean accuracy as received, of the tested rounds

    @property
    def hours(self) -> float:
        """Return how long all rounds took."""
        return self.part.total / HOUR

    def reached(self, accuracy: float) -> float | None:
        """Return the hours after which the accuracy was first as high as this; None if it never was."""
        return next((hours for hours, mean in self.points if mean >= accuracy), None)


def simulate(run: RunFolder, profile: Profile, seed: int = 0) -> Timeline:
    """Put a run on the clock."""
    if not run.rounds:
        raise PromptFedError(f'Run folder "{run.path}" has no finished round, so there is nothing to put on a clock.')
    if not run.traffic.down_bytes + run.traffic.up_bytes:  # everyone alone: nobody is waited for
        profile = replace(profile, latency_ms=0.0, dropout=0.0, hours=24.0)
    sizes = None if run.partition is None else [sum(client.counts) for client in run.partition.clients]
    clients: dict[int, Numbers] = {}
    total, points = Part(), []
    for one in run.rounds:
        for client in one.clients:
            if client not in clients:
                clients[client] = _drawn(client, profile, seed)
        drawn = np.stack([clients[client] for client in one.clients])
        shares = np.array([1.0 if sizes is None else sizes[client] for client in one.clients])
        work = profile.slowness * one.seconds * shares / max(shares.sum(), 1.0)
        total += _round(one, drawn, work, profile, total.total, np.random.default_rng([seed, 1, one.number]))
        if one.received is not None:
            points.append((total.total / HOUR, one.received.mean))
    return Timeline(total, tuple(points))


def _drawn(client: int, profile: Profile, seed: int) -> Numbers:
    """Return how fast a client's link is and how slow its device, beside a typical one's, and when its hours begin."""
    draw = np.random.default_rng([seed, 0, client])
    link, device = np.exp(profile.spread * draw.standard_normal(2))
    return np.array([link, device, DAY * draw.random()])


def _round(one: Round, drawn: Numbers, work: Numbers, profile: Profile, now: float, draw: np.random.Generator) -> Part:
    """Return what the last client of a round spent its time on; `work` is each one's training on a typical device."""
    count = len(work)
    link = drawn[:, 0] * np.exp(profile.jitter * draw.standard_normal(count))
    seconds = 8e-6 / count * (one.traffic.down_bytes / profile.down_mbit + one.traffic.up_bytes / profile.up_mbit)
    transfer = seconds / link + 2e-3 * profile.latency_ms
    training = work * drawn[:, 1]
    broken = draw.geometric(1 - profile.dropout, count) - 1
    # each broken attempt got as far as a random moment
    lost = np.array([draw.random(times).sum() for times in broken.tolist()])
    repeated = lost * (transfer + training) + broken * 60 * profile.away_minutes
    clock = (now - drawn[:, 2]) % DAY  # seconds since its hours last began
    waiting = np.where(clock < HOUR * profile.hours, 0.0, DAY - clock)
    parts: Any = np.stack([waiting, transfer, training, repeated])
    last = int(parts.sum(0).argmax())
    return Part(*parts[:, last].tolist())
