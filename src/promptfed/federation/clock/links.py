"""What the clients' links and devices are like: profiles by name, from a TOML file, and with single numbers changed."""

import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

from promptfed.core import options
from promptfed.core.errors import PromptFedError, choice
from promptfed.core.options import NonNegative, Positive, Range

Chance = Annotated[float, Range(least=0, most=0.95)]  # at 1 nobody would ever answer
Hours = Annotated[float, Range(above=0, most=24)]


@dataclass(frozen=True)
class Profile:
    """The links and devices of all clients. A client's own are drawn around these numbers, and keep to it."""

    down_mbit: Positive  # what a typical client receives in a second
    up_mbit: Positive  # what it sends
    latency_ms: NonNegative = 0.0  # of one way; an answer takes two of them
    slowness: Positive = 1.0  # how many times as long as on the run's own machine an image takes to train on
    spread: NonNegative = 0.0  # between clients: the standard deviation of the logarithms of speeds
    jitter: NonNegative = 0.0  # of a client's link, from round to round, likewise
    dropout: Chance = 0.0  # how often an attempt breaks off, at a random moment; then it is made again
    away_minutes: NonNegative = 5.0  # how long a client that broke off is away
    hours: Hours = 24.0  # of a day in which a client starts to work; they begin at a random time of day


PROFILES = {
    "data-centre": Profile(down_mbit=10_000, up_mbit=10_000, latency_ms=0.5),
    "clinic-dsl": Profile(
        down_mbit=50, up_mbit=10, latency_ms=20, slowness=2, spread=0.3, jitter=0.1, dropout=0.01, away_minutes=10
    ),
    "mobile": Profile(
        down_mbit=20,
        up_mbit=5,
        latency_ms=50,
        slowness=20,
        spread=0.7,
        jitter=0.4,
        dropout=0.1,
        away_minutes=30,
        hours=8,
    ),
}


Kind = TypeVar("Kind", bound=Profile)


def alone(profile: Kind) -> Kind:
    """Return the profile of clients that send nothing: nobody waits for them."""
    return replace(profile, latency_ms=0.0, dropout=0.0, hours=24.0)


def read_profile(name: str, changes: Sequence[str] = (), where: str = "--profile") -> Profile:
    """Return the profile of this name or in this TOML file, with `changes` of the form KEY=NUMBER."""
    given: dict[str, Any] = asdict(PROFILES[name]) if name in PROFILES else _read(name, where)
    for change in changes:
        key, _, value = change.partition("=")
        try:
            given[key] = float(value)
        except ValueError:
            raise PromptFedError(f'"{change}" is not of the form KEY=NUMBER, as in up_mbit=5.') from None
    for key in given:
        if key not in options.hints(Profile):
            raise choice("key", key, options.hints(Profile), f"profile {name}")
    return options.make(Profile, given, "profile")


def _read(name: str, where: str) -> dict[str, Any]:
    path = Path(name)
    if path.suffix != ".toml":
        raise choice("profile", name, PROFILES, f"{where}, which takes a name or a .toml file")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PromptFedError(f"The profile {path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise PromptFedError(f"The profile {path} is not valid TOML: {error}.") from error
