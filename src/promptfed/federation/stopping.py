"""Early stopping: whether the clients' validation images still gain from more rounds, as the record of rounds tells."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from promptfed.core.options import NonNegative, Whole

if TYPE_CHECKING:  # recipes are checked without numpy, which the record needs
    from promptfed.results.folder.record import Line


@dataclass(frozen=True)
class Stopping:
    """When a run ends before its last round; there is no state besides the lines of the rounds."""

    patience: Whole = 0  # rounds without a better one after which it ends; 0: never
    min_delta: NonNegative = 0.0  # what is better by no more than this is not better
    monitor: Literal["accuracy", "loss"] = "accuracy"  # the mean over clients, or the mean loss over all images

    def best(self, rounds: "Sequence[Line]") -> "Line | None":
        """Return the line of the last round that was better than all before it."""
        best: Line | None = None
        for line in rounds:
            value = self.value(line)
            if value is not None and (best is None or self._better(value, best)):
                best = line
        return best

    def exhausted(self, rounds: "Sequence[Line]") -> bool:
        """Say whether the run ends after these rounds; it does so only after one that was validated."""
        best = self.best(rounds)
        if best is None or self.value(rounds[-1]) is None:
            return False
        return bool(rounds[-1]["round"] - best["round"] >= self.patience)

    def value(self, line: "Line") -> float | None:
        """Return what is monitored of a round, if it was validated."""
        found: Line = line.get("validation") or {}
        value: float | None = found.get("loss" if self.monitor == "loss" else "mean")
        return value

    def _better(self, value: float, best: "Line") -> bool:
        before = self.value(best)
        assert before is not None
        return (before - value if self.monitor == "loss" else value - before) > self.min_delta
