"""terms.toml in a site's folder: what its owner agrees to. The coordinator writes the recipe; the site may refuse it.

A file with all keys; what is left out is left to the recipe::

    methods = ["pfedpg", "fedvpt"]    # no others
    backbones = ["vit", "vit:facebook/dinov2-small"]    # no others; weights that a name brings along, or these
    split = "test"            # which images are tested on
    evaluation = "coarse"     # test results: "exact", "coarse" or "none"
    min_test = 10             # test images at least, or no result leaves
    max_evaluations = 1000    # results, in all runs together
    max_rounds = 100          # of a run
    max_runs = 20             # in the life of this site
    rounds_for_life = 500     # in all runs together
    min_members = 3           # sites at least, among which masks hide an answer
    min_change = 2            # sites that differ from every earlier run under masks, if any do

    [members]         # no others, under masks; `sites join` shows a site's key
    south = "5f1c..."

    [guards]
    clip = 1.0        # at most so far may an answer move
    noise = 4.0       # at least so much, added here, before anything leaves
    delta = 1e-5      # at most
    budget = 8.0      # at most, in one run
    epsilon_for_life = 20.0    # at most, in all runs of this site together
    secure = true     # nothing leaves without masks
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Literal

from promptfed.backbones import BACKBONES
from promptfed.core import options
from promptfed.core.errors import PromptFedError, choice
from promptfed.core.options import NonNegative, Range, Whole
from promptfed.federation.guard_options import GuardOptions
from promptfed.runs import registry
from promptfed.runs.recipe import PROMPTED, Recipe
from promptfed.sites.disclosure import Detail
from promptfed.sites.wire import Refused

FILE = "terms.toml"
PUBLIC = re.compile(r"[0-9a-f]{64}")  # a site's public signing key
LOADED = ("weights", "vision")  # the options of a backbone that name files or models of the hub


@dataclass(frozen=True)
class Limits:
    """The keys of [guards] that an owner may insist on; 0 insists on nothing."""

    clip: NonNegative = 0.0
    noise: NonNegative = 0.0
    delta: Annotated[float, Range(above=0, most=1)] = 1.0
    budget: NonNegative = 0.0
    epsilon_for_life: NonNegative = 0.0
    secure: bool = False


@dataclass(frozen=True)
class Terms:
    """What a site's owner agrees to."""

    methods: tuple[str, ...] = ()  # none: all
    backbones: tuple[str, ...] = ()  # none: all; NAME, or NAME:WEIGHTS for other weights than its own
    split: Literal["any", "test", "val"] = "any"
    evaluation: Literal["auto", "exact", "coarse", "none"] = "auto"  # auto: none with noise at the site, else coarse
    min_test: Whole = 10
    max_evaluations: Whole = 1000  # 0: any number, as below
    max_rounds: Whole = 0
    max_runs: Whole = 0
    rounds_for_life: Whole = 0
    min_members: Annotated[int, Range(least=2)] = 3
    min_change: Whole = 0
    guards: Limits = Limits()
    members: Mapping[str, str] = field(default_factory=dict)  # public keys by site; none: any of the federation

    def detail(self, noisy: bool, images: int) -> Detail:
        """Return how test results leave the site: the noise of its answers does not cover them."""
        if images < self.min_test:
            return "none"
        return ("none" if noisy else "coarse") if self.evaluation == "auto" else self.evaluation

    def check(self, recipe: Recipe) -> None:
        """Refuse a recipe that these terms do not allow, and say why."""
        name, asked, own = str(recipe.method["name"]), options.make(GuardOptions, recipe.guards, "guards"), self.guards
        if self.methods and name not in self.methods:
            raise Refused(f"its owner's terms allow {', '.join(self.methods)}, not {name}")
        if self.backbones and (found := _backbone(recipe)) not in self.backbones:
            raise Refused(f"its owner's terms allow {', '.join(self.backbones)}, not {found}")
        if self.split not in ("any", split := recipe.evaluate["split"]):
            raise Refused(f"its owner's terms ask for evaluate.split={self.split}, not {split}")
        if self.max_rounds and total_rounds(recipe) > self.max_rounds:
            raise Refused(f"its owner's terms allow {self.max_rounds} rounds, not {total_rounds(recipe)}")
        if own.secure and not asked.secure:
            raise Refused("its owner's terms ask for guards.secure=true")
        if own.epsilon_for_life and not (asked.noise and asked.place == "local"):
            raise Refused("its owner's terms limit ε for life, so they ask for guards.noise, added at the site")
        if own.noise and asked.place != "local":
            raise Refused(f"its owner's terms ask for noise at the site, not guards.place={asked.place}")
        if asked.noise < own.noise:
            raise Refused(f"its owner's terms ask for guards.noise={own.noise:g} at least, not {asked.noise:g}")
        if asked.noise and asked.delta > own.delta:
            raise Refused(f"its owner's terms ask for guards.delta={own.delta:g} at most, not {asked.delta:g}")
        for key in ("clip", "budget"):
            most, found = getattr(own, key), getattr(asked, key)
            if most and not 0 < found <= most:  # 0 is no limit at all
                raise Refused(f"its owner's terms ask for guards.{key}={most:g} at most, not {found:g}")


def total_rounds(recipe: Recipe) -> int:
    """Return the rounds of a recipe, those of its newcomers included."""
    return recipe.rounds + (recipe.join_rounds if recipe.newcomers else 0)


def _backbone(recipe: Recipe) -> str:
    """Return a recipe's backbone as terms name it."""
    name, table = str(recipe.backbone["name"]), recipe.backbone
    usual = options.defaults(BACKBONES[name])
    loaded = [str(table[key]) for key in LOADED if table.get(key, "") != usual.get(key, "")]
    return ":".join([name, *loaded])


def read_terms(path: Path) -> Terms:
    """Read an owner's terms and refuse unknown keys: a misspelt term would not protect anyone."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PromptFedError(f"The terms {path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PromptFedError(f"The terms {path} are not valid TOML: {error}.") from error
    limits, members = content.pop("guards", {}), content.pop("members", {})
    for name, table in (("guards", limits), ("members", members)):
        if not isinstance(table, dict):
            raise PromptFedError(f"{name} in {path} is not a table; write [{name}] and a line for each key.")
    for site, key in members.items():
        if not isinstance(key, str) or not PUBLIC.fullmatch(key):
            raise PromptFedError(f"members.{site} in {path} is not a key of 64 hexadecimal digits.")
    for kind, given in ((Terms, content), (Limits, limits)):
        known = [one.name for one in fields(kind)]
        for key in given:
            if key not in known:
                raise choice("key", key, known, str(path))
    made = options.make(Terms, content, "terms")
    for name in made.methods:
        if name.removesuffix(PROMPTED) not in registry.methods():
            raise choice("method", name, registry.methods(), str(path))
    for name in made.backbones:
        if name.partition(":")[0] not in BACKBONES:
            raise choice("backbone", name, BACKBONES, str(path))
    return replace(made, guards=options.make(Limits, limits, "guards"), members=members)


def of_site(home: Path) -> Terms:
    """Return the terms in a site's folder; without a file, those that need no owner to insist on them."""
    return read_terms(home / FILE) if (home / FILE).exists() else Terms()
