"""Learning rates over a run: what every client's learning rates are multiplied by, as a function of the round alone."""

import math
from dataclasses import dataclass
from typing import Literal

from promptfed.core.errors import PromptFedError
from promptfed.core.options import Share, Whole

PACED = ("cosine", "linear")  # these reach their floor at the end, so they depend on how many rounds there are


@dataclass(frozen=True)
class Schedule:
    """A factor for each round: a warm-up, then a constant, a cosine, a straight line, or steps."""

    rounds: int
    joining: int  # rounds of newcomers, who go through the schedule on their own; 0: there are none
    name: Literal["constant", "cosine", "linear", "step"] = "constant"
    warmup: Whole = 0  # first rounds, in which the rates rise to their full height
    floor: Share = 0.0  # never less than this share of the full rates, once warm
    every: Whole = 0  # step: rounds between two drops
    gamma: Share = 0.1  # step: each drop multiplies the rates by this

    def check(self) -> None:
        """Refuse keys that do not go together."""
        shortest = min(self.rounds, self.joining or self.rounds)
        if self.warmup >= shortest:
            key = "rounds" if shortest == self.rounds else "join_rounds"
            raise PromptFedError(f"schedule.warmup={self.warmup} must be less than {key}={shortest}.")
        if self.name == "step" and not self.every:
            raise PromptFedError("schedule.name=step drops the rates every so many rounds; set schedule.every.")
        if self.name != "step" and self.every:
            raise PromptFedError(f"schedule.every is of schedule.name=step, not of {self.name}; leave it out.")

    def factor(self, t: int) -> float:
        """Return the factor of round `t`, counted from 0; whatever comes after the last round has that one's."""
        rounds = self.rounds
        if self.joining and t >= rounds:
            t, rounds = t - rounds, self.joining
        t = min(t, rounds - 1)
        if t < self.warmup:
            return (t + 1) / (self.warmup + 1)
        done = (t - self.warmup) / (rounds - self.warmup)
        if self.name == "step":
            return max(self.floor, self.gamma ** (t // self.every))
        falling = {"constant": 1.0, "cosine": (1 + math.cos(math.pi * done)) / 2, "linear": 1 - done}[self.name]
        return self.floor + (1 - self.floor) * falling
