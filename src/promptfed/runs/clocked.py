"""A run by a simulated clock, the table [clock]: what does not go with it, and the loop that keeps it."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from promptfed.core import options
from promptfed.core.errors import PromptFedError
from promptfed.federation.clock.options import ClockOptions
from promptfed.runs.recipe import Recipe

if TYPE_CHECKING:
    from promptfed.core.method import Method
    from promptfed.core.ranks import Ranks
    from promptfed.federation.loop import Loop


def clock_of(recipe: Recipe) -> ClockOptions | None:
    """Return the recipe's clock, if it has one."""
    return options.make(ClockOptions, recipe.clock, "clock") if recipe.clock else None


def answers_in(recipe: Recipe) -> int:
    """Return how many answers a round has at least."""
    founders = recipe.per_round or recipe.clients - recipe.newcomers
    least, clock = min(founders, recipe.newcomers or founders), clock_of(recipe)
    return clock.buffered(least) if clock and clock.mode == "fedbuff" else least


def check_clock(recipe: Recipe, method: "Method") -> None:
    """Refuse a clock that does not go with the rest of the recipe."""
    clock = clock_of(recipe)
    if clock is None:
        return
    if recipe.newcomers:
        raise PromptFedError("Newcomers join after the last round, which a [clock] does not know; leave one out.")
    if clock.waits:
        return
    _check_method(clock, str(recipe.method["name"]), method)
    _check_guards(clock, recipe)
    working = recipe.per_round or recipe.clients
    if clock.mode == "fedbuff" and clock.buffer > working:
        raise PromptFedError(f"clock.buffer={clock.buffer} is more than the {working} clients at work; lower it.")
    if clock.mode == "fedbuff" and recipe.sampling != "uniform":
        raise PromptFedError(
            f"With clock.mode=fedbuff a client starts when another is done, whatever its domain; set sampling=uniform, "
            f"not {recipe.sampling}."
        )


def _check_method(clock: ClockOptions, name: str, method: "Method") -> None:
    """Refuse a method whose server needs all answers to one model."""
    from promptfed.core.method import averages

    if not averages(method):
        raise PromptFedError(
            f"clock.mode={clock.mode} adds answers to older models to the present one, and method {name} makes "
            "something else of them than their mean; set clock.mode=sync, or choose a method that averages, such as "
            "fedavg."
        )


def _check_guards(clock: ClockOptions, recipe: Recipe) -> None:
    """Refuse guards that need to know beforehand who answers in a round."""
    switches = {
        "guards.secure": recipe.guards.get("secure"),
        "guards.noise": recipe.guards.get("noise"),
        f"guards.robust={recipe.guards.get('robust')}": clock.mode == "semi"
        and recipe.guards.get("robust", "mean") != "mean",
    }
    for switch, on in switches.items():
        if on:
            raise PromptFedError(
                f"{switch} needs to know beforehand whose answers a round has, and with clock.mode={clock.mode} the "
                "links decide; set clock.mode=sync."
            )


def loop_by(recipe: Recipe, ranks: "Ranks") -> "Callable[..., Loop]":
    """Return what makes the recipe's round loop."""
    from promptfed.federation.clock.loop import ClockedLoop
    from promptfed.federation.loop import Loop

    clock = clock_of(recipe)
    if clock is None:
        return Loop
    if ranks.size > 1:
        raise PromptFedError("A run by a [clock] is one process's; start it without others, or leave [clock] out.")
    return partial(ClockedLoop, clock)
