"""What is said when memory runs out: how much was wanted, who else holds it, and which keys of the recipe to lower."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from promptfed.core.errors import PromptFedError
from promptfed.core.memory import ShortOfMemoryError
from promptfed.core.options import defaults
from promptfed.runs import catalogue
from promptfed.runs.recipe import Recipe

SIGNS = (
    *("can't allocate memory", "not enough memory", "out of memory"),
    *("Maximum allowed dimension", "Storage size calculation overflowed"),
)
CONTEXT = 2e9  # bytes of a GPU that the driver and this process's own kernels may hold
# what memory grows with, where no key of the model is larger than usual
OFTEN = ("fleet.width", "method.batch", "backbone.size")
# what is usual of keys that have no default, or none that says so
USUAL: dict[str, Any] = {"method.batch": 64, "data.size": 32, "clients": 20, "per_round": 20, "fleet.width": 20}


def ran_out(error: BaseException) -> bool:
    """Say whether an exception of Python, numpy or torch means that memory ran out."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError | ValueError) and any(sign in str(error) for sign in SIGNS)


class NoRoomError(PromptFedError):
    """Memory ran out in a run; the keys of its recipe that are to be lowered."""

    def __init__(self, error: BaseException, keys: tuple[str, ...]) -> None:
        super().__init__(error, keys)  # as they are, so that another process can be given it
        self.error, self.keys = error, keys

    def __str__(self) -> str:
        """Return its sentence."""
        return sentence(self.error, self.keys)

    def among(self, workers: int) -> str:
        """Return its sentence where so many workers run side by side."""
        return sentence(self.error, self.keys, workers)


def sentence(error: BaseException, keys: tuple[str, ...] = OFTEN, workers: int = 1) -> str:
    """Return what to tell a user whose memory ran out; `workers` share it."""
    why, before = "", ""
    if isinstance(error, ShortOfMemoryError):  # more than all there is, so it does not matter who else has some
        why = f": {error}"
    elif workers > 1:
        why, keys = f": {workers} workers share it", ("--workers", *keys)
    elif type(error).__name__ == "OutOfMemoryError" and (held := held_by_others()):
        why = f": other processes hold {held[0] / 1e9:,.1f} of the GPU's {held[1] / 1e9:,.1f} GB"
        before = "run fewer at a time, or "
    first, *others = keys
    rest = f", or else {' or '.join(others)}" if others else ""
    return f"There is not enough memory for this{why}; {before}lower {first}{rest}."


def held_by_others() -> tuple[float, float] | None:
    """Return how many bytes of the GPU other processes hold, and how many it has; None if they hold next to nothing."""
    import torch

    if not torch.cuda.is_initialized():
        return None
    free, total = torch.cuda.mem_get_info()
    others = total - free - torch.cuda.memory_reserved()
    return (others, total) if others > CONTEXT else None


@contextmanager
def enough(recipe: Recipe) -> Iterator[None]:
    """Turn running out of memory into a sentence that names the recipe's keys to lower, largest first."""
    try:
        yield
    except (MemoryError, RuntimeError, ValueError) as error:
        if not ran_out(error):
            raise
        raise NoRoomError(error, to_lower(recipe, getattr(error, "keys", ()))) from error


def to_lower(recipe: Recipe, blamed: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return those of the keys to blame that are far above their defaults, or else all of them.

    Where none is to blame it is those far above their defaults, or else those that most often help.
    """
    large = grown(recipe)
    if blamed:
        return tuple(key for key in large if key in blamed) or tuple(key for key in blamed if _has(recipe, key))
    return large or tuple(key for key in OFTEN if _has(recipe, key))


def grown(recipe: Recipe) -> tuple[str, ...]:
    """Return the keys that are far above their defaults, largest first."""
    known = catalogue.backbones().get(str(recipe.backbone.get("name")))
    usual = USUAL | {f"backbone.{key}": value for key, value in (defaults(known) if known else {}).items()}
    times = {
        key: _size(value) / max(1.0, _size(usual.get(key)))
        for key, value in recipe.flatten().items()
        if (key in USUAL or key.startswith(("method.", "backbone."))) and _size(value) > 64
    }
    return tuple(sorted((key for key in times if times[key] > 8), key=lambda key: -times[key]))


def _has(recipe: Recipe, key: str) -> bool:
    return key in recipe.flatten()


def _size(value: object) -> float:
    """Return the largest whole number of an option, or zero."""
    numbers = value if isinstance(value, list | tuple) else [value]
    return float(max((number for number in numbers if type(number) is int), default=0))
