"""Search spaces: which recipe keys are tried, which values each may have, and the settings drawn from them."""

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from promptfed.core.errors import PromptFedError
from promptfed.runs import nested

Setting = dict[str, Any]
RANGE = re.compile(r"(?P<kind>[a-z]+)\((?P<inside>[^()]*)\)")
MOST = 10_000  # settings of a finite space that are shuffled; of a larger one settings are drawn
TRIES = 1000  # draws in a row that repeat a setting, after which there is none left


class Values(Protocol):
    """The values a key may have."""

    @property
    def all(self) -> tuple[Any, ...]:
        """Return them all; none if they are too many to list."""
        ...

    def at(self, share: float) -> Any:
        """Return the value at a share 0 … 1 of the way."""
        ...


@dataclass(frozen=True)
class Choices:
    """Some values, each as likely as the others."""

    all: tuple[Any, ...]

    def at(self, share: float) -> Any:
        """Return the value at a share of the list."""
        return self.all[min(int(share * len(self.all)), len(self.all) - 1)]


@dataclass(frozen=True)
class Span:
    """Numbers between two, on a straight or a logarithmic scale; whole ones if `whole`."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    @property
    def all(self) -> tuple[Any, ...]:
        """Return the whole numbers, or none."""
        return tuple(range(int(self.low), int(self.high) + 1)) if self.whole else ()

    def at(self, share: float) -> Any:
        """Return a number with three digits, so that a person can repeat it."""
        if self.whole:
            return min(int(self.low + share * (self.high - self.low + 1)), int(self.high))
        if self.log:
            value = math.exp(math.log(self.low) + share * (math.log(self.high) - math.log(self.low)))
        else:
            value = self.low + share * (self.high - self.low)
        return float(f"{value:.3g}")


Space = Mapping[str, Values]


def split_words(words: Sequence[str]) -> tuple[dict[str, Values], list[str]]:
    """Return the keys to try with their values, and the words that fix a key: KEY=[…] or KEY=log(LOW,HIGH) is tried."""
    space: dict[str, Values] = {}
    fixed = []
    for word in words:
        key, equals, text = word.partition("=")
        values = _values(key.strip(), text.strip()) if equals else None
        if values is None:
            fixed.append(word)
        elif key.strip() in space:
            raise PromptFedError(f"{key.strip()} is given twice; give all its values at once.")
        else:
            space[key.strip()] = values
    return space, fixed


def _values(key: str, text: str) -> Values | None:
    """Return the values that a text stands for; None if it is a single one."""
    match = RANGE.fullmatch(text)
    if match:
        return _span(key, text, match["kind"], match["inside"])
    value = nested.read_value(text)
    if not isinstance(value, list):
        return None
    if not value:
        raise PromptFedError(f"{key}=[] leaves nothing to try; give at least one value.")
    if len({repr(one) for one in value}) < len(value):
        raise PromptFedError(f"{key}={text} has a value twice; give every value once.")
    return Choices(tuple(value))


def _span(key: str, text: str, kind: str, inside: str) -> Span:
    """Return the numbers between two: log(1e-4,1), uniform(0,1) or int(1,8)."""
    try:
        low, high = (float(part) for part in inside.split(","))
    except ValueError:
        low, high = math.nan, math.nan
    if kind not in ("log", "uniform", "int") or not low < high < math.inf or not math.isfinite(low):
        raise PromptFedError(f"{key}={text} is no range; write log(1e-4,1), uniform(0,1) or int(1,8), the lower first.")
    if kind == "log" and low <= 0:
        raise PromptFedError(f"{key}={text} starts at {low:g}, and a logarithmic range must start above 0.")
    if kind == "int" and not (low.is_integer() and high.is_integer()):
        raise PromptFedError(f"{key}={text} must be between whole numbers.")
    return Span(low, high, log=kind == "log", whole=kind == "int")


def settings(space: Space, seed: int) -> Iterator[Setting]:
    """Yield different settings in an order that only the seed decides, until there are no more."""
    import torch  # not before a key that is wrong has been refused

    from promptfed.core import keys

    lists = [values.all for values in space.values()]
    if all(lists) and math.prod(map(len, lists)) <= MOST:
        every = list(itertools.product(*lists))
        order = torch.randperm(len(every), generator=keys.generator(seed, "tune", "order")).tolist()
        yield from (dict(zip(space, every[place], strict=True)) for place in order)
        return
    seen: set[str] = set()
    number = repeated = 0
    while repeated < TRIES:
        found = {key: values.at(_share(seed, key, number)) for key, values in space.items()}
        number, repeated = number + 1, repeated + 1
        if repr(found) not in seen:
            seen.add(repr(found))
            repeated = 0
            yield found


def _share(seed: int, key: str, number: int) -> float:
    import torch

    from promptfed.core import keys

    return float(torch.rand((), generator=keys.generator(seed, "tune", key, number)))
