"""Is an answer's length plausible? Without a robust rule, one absurd answer would decide the mean.

A site's change is compared with the median of the others' in the same round; with fewer than two others, who could not
outvote a false one, with the median of its own last ones; before there are any, with the model that it received.

Honest lengths differ with the number of local steps, so by up to `max_ratio`, and by a small factor in the gradients.
`max_change` is ten times `max_ratio` by default: it refuses only what no training explains. Robust rules do the rest.
"""

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

import torch

from promptfed.core.tree import Tree
from promptfed.federation.guards.guard import changes

REMEMBERED = 5  # of a site's own lengths
SUSPECT = 10.0  # times the median: whom a sentence names first if the server's model breaks


def length(content: Tree) -> float:
    """Return the length of a tree as one vector, in numbers that do not overflow."""
    return float(torch.stack([value.double().norm() for value in content.values()]).norm()) if content else 0.0


@dataclass
class Plausibility:
    """Remembers how far each client has moved, and says who has moved implausibly far."""

    most: float  # times the reference
    last: dict[int, float] = field(default_factory=dict)  # of the round that was checked last
    _before: dict[int, deque[float]] = field(default_factory=lambda: defaultdict(lambda: deque(maxlen=REMEMBERED)))

    def refused(self, down: Mapping[int, Tree], up: Mapping[int, Tree]) -> dict[int, str]:
        """Return why the change of some clients is refused, and remember those of the others."""
        found = {client: length(changes(down[client], up[client])) for client in up}
        reasons = {client: self._reason(client, found, down[client]) for client in found}
        self.last = {client: value for client, value in found.items() if not reasons[client]}
        for client, value in self.last.items():
            self._before[client].append(value)
        return {client: reason for client, reason in reasons.items() if reason}

    def suspects(self) -> list[int]:
        """Return the clients of the last round that moved furthest; all of them if none stands out."""
        usual = median(self.last.values()) if self.last else 0.0
        return [client for client, value in self.last.items() if value > SUSPECT * usual] or list(self.last)

    def _reason(self, client: int, found: Mapping[int, float], down: Tree) -> str:
        others = [value for other, value in found.items() if other != client]
        if len(others) > 1 and median(others) > 0:
            usual, whose = median(others), "the other sites' median"
        elif self._before[client] and median(self._before[client]) > 0:
            usual, whose = median(self._before[client]), "its own before"
        else:
            usual, whose = max(1.0, length(down)), "the model that it received"
        if found[client] <= self.most * usual:
            return ""
        return f"its change has length {found[client]:.3g}, more than {self.most:g} times {whose}, {usual:.3g}"
