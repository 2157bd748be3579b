"""What is said when memory runs out: how much was wanted, and which keys of the recipe to lower."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from promptfed.core.errors import PromptFedError
from promptfed.core.options import defaults
from promptfed.runs import catalogue
from promptfed.runs.recipe import Recipe

SIGNS = ("can't allocate memory", "not enough memory", "out of memory", "Maximum allowed dimension")
# what memory grows with, where no key of the model is larger than usual
OFTEN = ("fleet.width", "method.batch", "backbone.size")


def ran_out(error: BaseException) -> bool:
    """Say whether an exception of Python, numpy or torch means that memory ran out."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError | ValueError) and any(sign in str(error) for sign in SIGNS)


def sentence(keys: tuple[str, ...] = OFTEN) -> str:
    """Return what to tell a user whose memory ran out."""
    first, *others = keys
    rest = f", or else {' or '.join(others)}" if others else ""
    return f"There is not enough memory for this; lower {first}{rest}."


@contextmanager
def enough(recipe: Recipe) -> Iterator[None]:
    """Turn running out of memory into a sentence that names the recipe's keys to lower, largest first."""
    try:
        yield
    except (MemoryError, RuntimeError, ValueError) as error:
        if not ran_out(error):
            raise
        raise PromptFedError(sentence(to_lower(recipe))) from error


def to_lower(recipe: Recipe) -> tuple[str, ...]:
    """Return the keys that are far above their defaults, or those that most often help."""
    known = catalogue.backbones().get(str(recipe.backbone.get("name")))
    usual = {"method": {"batch": 64}, "backbone": defaults(known) if known else {}}
    grown = {
        f"{table}.{key}": _size(value) / max(1.0, _size(usual[table].get(key)))
        for table, values in (("method", recipe.method), ("backbone", recipe.backbone))
        for key, value in values.items()
        if _size(value) > 8 * max(1.0, _size(usual[table].get(key))) and _size(value) > 64
    }
    chosen = sorted(grown, key=lambda key: -grown[key])
    return tuple(chosen or (key for key in OFTEN if _has(recipe, key)))


def _has(recipe: Recipe, key: str) -> bool:
    table, _, name = key.partition(".")
    values: Mapping[str, object] = getattr(recipe, table)
    return name in values


def _size(value: object) -> float:
    """Return the largest whole number of an option, or zero."""
    numbers = value if isinstance(value, list | tuple) else [value]
    return float(max((number for number in numbers if type(number) is int), default=0))
