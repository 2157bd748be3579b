"""How much of a client's privacy its rounds have cost: (ε, δ) by Rényi differential privacy.

What is protected is a client's whole answer. Two worlds are neighbours if one client's answer is replaced by any
other of length `clip`, so the sum moves by at most 2 × `clip`, and noise of deviation `noise` × `clip` is a Gaussian
mechanism with multiplier `noise` / 2. The arithmetic is that of Google's dp-accounting.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import Literal

from promptfed.core.errors import PromptFedError

# orders of Rényi's divergence for sampled clients: a choice that loses little and takes a tenth of a second
ORDERS = (*(1 + tenth / 10 for tenth in range(1, 50)), *range(6, 21), 24, 28, 32, 40, 48, 64, 512, 1024)
LONGEST = 2**20  # rounds; no run is longer


def require_accountant() -> None:
    """Refuse noise without an accountant."""
    if find_spec("dp_accounting") is None:
        raise PromptFedError('guards.noise needs an accountant of ε: pip install "promptfed[dp]".')


@lru_cache(maxsize=4096)
def epsilon(noise: float, delta: float, times: int, sample: tuple[int, int] | None = None) -> float:
    """Return ε after `times` releases; with `sample` (of n, m take part) only the draw decides who was in each."""
    if not times:
        return 0.0
    require_accountant()
    import dp_accounting
    from dp_accounting import rdp

    def spent(event: dp_accounting.DpEvent, orders: Sequence[float] | None) -> float:
        accountant = rdp.RdpAccountant(orders, dp_accounting.NeighboringRelation.REPLACE_ONE)
        accountant.compose(event, times)
        return float(accountant.get_epsilon(delta))

    release = dp_accounting.GaussianDpEvent(noise / 2)
    plain = spent(release, None)
    if sample is None or sample[0] == sample[1]:
        return plain
    # the bound for sampled clients is loose where nearly all take part; being drawn never costs more than being there
    return min(plain, spent(dp_accounting.SampledWithoutReplacementDpEvent(*sample, release), ORDERS))


@lru_cache(maxsize=4096)
def composed_epsilon(times: tuple[tuple[float, int], ...], delta: float) -> float:
    """Return ε after releases with different noise: `times` says how many there were with each."""
    if not times:
        return 0.0
    require_accountant()
    import dp_accounting
    from dp_accounting import rdp

    accountant = rdp.RdpAccountant(None, dp_accounting.NeighboringRelation.REPLACE_ONE)
    for noise, count in times:
        accountant.compose(dp_accounting.GaussianDpEvent(noise / 2), count)
    return float(accountant.get_epsilon(delta))


@dataclass(frozen=True)
class Accountant:
    """Counts what each client has spent, from who took part in which round."""

    noise: float
    delta: float
    budget: float  # of ε; 0: none
    place: Literal["local", "central"]
    founders: int  # clients with a lower number are drawn every round; the others come later, and all of them
    per_round: int
    secret_draw: bool = True  # those who read the result cannot compute who was drawn

    def spent(self, rounds: Sequence[Sequence[int]], clients: Sequence[int]) -> list[float]:
        """Return the ε of each of `clients` after `rounds`, each a list of who took part."""
        taken = Counter(client for one in rounds for client in one)
        drawn = sum(one[0] < self.founders for one in rounds)
        return [self._cost(drawn if self._sampled(client) else taken[client], client) for client in clients]

    def _sampled(self, client: int) -> bool:
        """Say whether the draw hides a client; it hides no local answer, and no newcomer, since all of them come."""
        return self.secret_draw and self.place == "central" and client < self.founders

    def _cost(self, times: int, client: int) -> float:
        sample = (self.founders, self.per_round) if self._sampled(client) else None
        return epsilon(self.noise, self.delta, times, sample)

    def affordable(self, rounds: Iterable[Sequence[int]]) -> int:
        """Return how many of these rounds, from the first, leave everyone within the budget."""
        taken: dict[int, int] = {}
        most: dict[bool, int] = {}
        count = 0
        for one in rounds:
            for client in one:
                sampled = self._sampled(client)
                taken[client] = count + 1 if sampled else taken.get(client, 0) + 1
                if sampled not in most:
                    most[sampled] = self.most(client)
                if taken[client] > most[sampled]:
                    return count
            count += 1
        return count

    def most(self, client: int) -> int:
        """Return how many releases of this client the budget allows."""
        high = 1
        while self._cost(high, client) <= self.budget:
            high *= 2
            if high > LONGEST:
                return LONGEST
        low = high // 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._cost(middle, client) <= self.budget else (low, middle)
        return low
