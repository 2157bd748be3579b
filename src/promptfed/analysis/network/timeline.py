"""When each round of a finished run would have ended on given links and devices.

A round ends when the last of its clients has answered, so the results are the run's own and only the clock differs.
How long a client trains is its share of the round's recorded seconds, by images, so the tests between rounds count as
work too; or what the recipe's `clock.image_ms` says. A run whose server did not wait for all has its times on record:
on other links it would have been another run.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from promptfed.core.errors import PromptFedError
from promptfed.core.options import hints
from promptfed.federation.clock.attempts import HOUR, Demand, Devices, Numbers, Part
from promptfed.federation.clock.links import Profile, alone
from promptfed.results.folder.reader import RunFolder
from promptfed.results.folder.values import Round


@dataclass(frozen=True)
class Timeline:
    """A run on the clock: how long it took, its accuracy over the hours, and what it waited for."""

    hours: float  # of all rounds
    points: tuple[tuple[float, float], ...]  # hours and mean accuracy as received, of the tested rounds
    part: Part | None = None  # of the clients that rounds waited for; None where the server did not wait for all

    def reached(self, accuracy: float) -> float | None:
        """Return the hours after which the accuracy was first as high as this; None if it never was."""
        return next((hours for hours, mean in self.points if mean >= accuracy), None)


def simulate(run: RunFolder, profile: Profile, seed: int = 0) -> Timeline:
    """Put a run on the clock."""
    if not run.rounds:
        raise PromptFedError(f'Run folder "{run.path}" has no finished round, so there is nothing to put on a clock.')
    if run.recipe.get("clock", {}).get("mode", "sync") != "sync":
        return _recorded(run, profile)
    if not run.traffic.down_bytes + run.traffic.up_bytes:  # everyone alone: nobody is waited for
        profile = alone(profile)
    sizes = None if run.partition is None else [sum(client.counts) for client in run.partition.clients]
    devices, total, ends = Devices(profile, seed), Part(), []
    for one in run.rounds:
        count, ones = max(len(one.clients), 1), np.ones(len(one.clients))
        down, up = (size / count * ones for size in (one.traffic.down_bytes, one.traffic.up_bytes))
        demand = Demand(down, up, _work(run, one, sizes))
        parts = devices.attempts(one.number, one.clients, total.total, demand)
        total += max(parts, key=lambda part: part.total)
        ends.append(total.total)
    return Timeline(total.total / HOUR, _points(run.rounds, ends), total)


def _work(run: RunFolder, one: Round, sizes: Sequence[int] | None) -> Numbers:
    """Return the seconds that each client of a round trains on a typical device."""
    held = np.array([1.0 if sizes is None else sizes[client] for client in one.clients])
    stated = run.recipe.get("clock", {}).get("image_ms")
    shares: Numbers = held * (one.seconds / max(held.sum(), 1.0) if stated is None else 1e-3 * stated)
    return shares


def _recorded(run: RunFolder, profile: Profile) -> Timeline:
    """Return the times that a run has on record, if it was made on these links."""
    known = run.recipe["clock"]
    other = [key for key in hints(Profile) if known.get(key) != getattr(profile, key)]
    if other:
        raise PromptFedError(
            f'"{run.path}" did not wait for all clients, so on other links it would have been another run: give '
            f"--profile {known.get('profile')} with {other[0]}={known.get(other[0])}, or run it anew."
        )
    ends = [one.clock or 0.0 for one in run.rounds]
    return Timeline(ends[-1] / HOUR, _points(run.rounds, ends))


def _points(rounds: Sequence[Round], ends: Sequence[float]) -> tuple[tuple[float, float], ...]:
    return tuple(
        (end / HOUR, one.received.mean) for one, end in zip(rounds, ends, strict=True) if one.received is not None
    )
