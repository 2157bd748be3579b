"""The keys of a recipe's [guards] table, apart from the guards: reading a recipe should not wait for torch."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from promptfed.core import options
from promptfed.core.options import Count, NonNegative, Range, Whole


@dataclass(frozen=True)
class GuardOptions:
    """The keys of [guards]; with none of them nothing stands between the clients and the server."""

    clip: NonNegative = 0.0  # the most a client's whole answer may move; 0: no limit
    noise: NonNegative = 0.0  # its deviation, in units of clip; 0: none
    place: Literal["local", "central"] = "local"  # of the noise: on every answer, or on the mean of all
    delta: Annotated[float, Range(above=0, most=1)] = 1e-5
    budget: NonNegative = 0.0  # the run ends before any client's ε goes beyond; 0: no limit
    entropy: Literal["keyed", "system"] = "keyed"  # of the noise; keyed: exact to repeat, and no secret
    secure: bool = False  # the server learns the weighted mean alone
    threshold: Annotated[float, Range(least=0.5, most=1)] = 0.5  # more than this share of clients must stay
    robust: Literal["mean", "trimmed-mean", "median", "krum", "norm-bound"] = "mean"
    trim: Annotated[float, Range(above=0, most=0.5)] = 0.2  # share left out at either end
    byzantine: Whole = 2  # poisoned clients that Krum must withstand
    keep: Count = 1  # answers Krum keeps
    bound: NonNegative = 0.0  # of norm-bound; 0: the median length of the round


def filled(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe's table with every key spelled out; an empty one stays empty."""
    return asdict(options.make(GuardOptions, table, "guards")) if table else {}


def deciding(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of the table decides a run's numbers: not the budget, and nothing where no guard is on."""
    on = any(table.get(key) for key in ("clip", "noise", "secure")) or table.get("robust", "mean") != "mean"
    return {key: value for key, value in table.items() if key != "budget"} if on else {}
