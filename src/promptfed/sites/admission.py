"""Whether a site takes part in a run: its recipe is PromptFed's own, within the owner's terms, and never changes."""

import tomllib
from pathlib import Path

from promptfed.core.files import make_private, write_text
from promptfed.federation.examples_privacy import hides_examples
from promptfed.runs.config import build_method
from promptfed.runs.recipe import Recipe
from promptfed.sites.client_run import read_recipe
from promptfed.sites.terms import Terms
from promptfed.sites.wire import Refused

ASKED = "asked.toml"
MOST_SITES = 10_000


def admit(text: str, folder: Path, terms: Terms, *, foreign_methods: bool) -> Recipe:
    """Return the recipe of a run whose state is in `folder`, or refuse it before anything is read or trained."""
    if not foreign_methods:
        _refuse_foreign(text)
    recipe = read_recipe(text, "the coordinator")
    if recipe.clients > MOST_SITES:  # lists of them all would fill the memory
        raise Refused(
            f"the recipe has {recipe.clients:,} clients, and no federation has more than {MOST_SITES:,} sites"
        )
    terms.check(recipe)
    if recipe.guards.get("noise") and recipe.guards["entropy"] != "system":
        raise Refused("noise that the coordinator can compute hides nothing; set guards.entropy=system")
    if hides_examples(build_method(recipe)):
        raise Refused(
            f"the noise of {recipe.method['name']} follows from the seed, which the coordinator has, so it hides "
            "nothing; set method.noise=0, and guards.noise with guards.entropy=system"
        )
    _pin(folder, text, terms.max_runs)
    return recipe


def _refuse_foreign(text: str) -> None:
    """Refuse a recipe that names a method by a dotted path, before anything of that path is imported."""
    try:
        method = tomllib.loads(text).get("method", {})
    except tomllib.TOMLDecodeError as error:
        raise Refused("the recipe is not valid TOML") from error
    name = method.get("name", "") if isinstance(method, dict) else method
    if ":" in str(name):
        raise Refused(f"method {name} is not PromptFed's own; this site runs no other code")


def _pin(folder: Path, text: str, most: int) -> None:
    """Refuse a recipe other than the one the run began with, and a new run beyond those the owner allows."""
    path = folder / ASKED
    if path.exists():
        if path.read_text(encoding="utf-8") != text:
            raise Refused("this run began with another recipe, which cannot change")
        return
    if most and len(list(folder.parent.glob(f"*/{ASKED}"))) >= most:
        raise Refused(f"its owner's terms allow {most} runs, and this would be another one")
    make_private(folder.parent)
    make_private(folder)
    write_text(path, text)
