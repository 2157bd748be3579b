"""The one exception a user should ever see, and how its sentence names the nearest valid choice."""

from collections.abc import Iterable
from difflib import get_close_matches


class PromptFedError(Exception):
    """A mistake the user can fix. The command line prints its one sentence and exits with code 2."""


def choice(what: str, given: str, valid: Iterable[str], where: str = "") -> PromptFedError:
    """Return the error for a name that is not in `valid`: what, where, and the nearest valid choice."""
    options = sorted(valid)
    # a shared prefix, up to the last dot or slash, would make all candidates look alike
    start = given[: max(given.rfind("."), given.rfind("/")) + 1]
    known = [option for option in options if option.startswith(start)]
    start = start if known else ""
    near = {option.removeprefix(start): option for option in known or options}
    close = get_close_matches(given.removeprefix(start), near, n=1, cutoff=0.5)
    hint = f'did you mean "{near[close[0]]}"?' if close else f"valid: {', '.join(near.values()) or 'none'}."
    place = f" in {where}" if where else ""
    return PromptFedError(f'Unknown {what} "{given}"{place}; {hint}')
