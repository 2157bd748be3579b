"""The keys of a recipe's [clock] table, apart from the clock: reading a recipe should not wait for numpy or torch."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from promptfed.core import options
from promptfed.core.options import NonNegative, Positive, Whole
from promptfed.federation.clock.links import PROFILES, Profile, read_profile

DEFAULT = "clinic-dsl"


@dataclass(frozen=True)
class ClockOptions(Profile):
    """The keys of [clock]: those of a profile, and how the server waits; without them there is no clock."""

    mode: Literal["sync", "fedbuff", "semi"] = "sync"
    profile: str = DEFAULT  # by name, or a TOML file; single numbers may be changed beside it
    buffer: Whole = 0  # fedbuff: answers that make the next model; 0: half of those at work
    deadline_minutes: Positive = 60.0  # semi: how long the server waits in a round
    damping: NonNegative = 0.5  # an answer to a model s rounds old counts (1 + s)^-damping
    image_ms: NonNegative = 10.0  # of training in a round for each image a client holds, on the run's own machine

    @property
    def waits(self) -> bool:
        """Say whether a round waits for all of its clients."""
        return self.mode == "sync"

    def buffered(self, working: int) -> int:
        """Return how many answers fedbuff waits for, with so many clients at work."""
        return self.buffer or -(-working // 2)

    def weight(self, staleness: int) -> float:
        """Return what an answer counts to a model that is so many rounds old."""
        return float((1 + staleness) ** -self.damping)


def filled(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe's table with every key spelled out; an empty one stays empty."""
    if not table:
        return {}
    name = options.typed("clock.profile", table.get("profile", DEFAULT), str)
    read_before = name not in PROFILES and options.hints(Profile).keys() <= table.keys()
    links = {} if read_before else asdict(read_profile(name, where="clock.profile"))
    return asdict(options.make(ClockOptions, links | dict(table), "clock"))
