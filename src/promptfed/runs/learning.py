"""How a run learns, whatever its method: the tables [schedule] and [train], from a recipe's keys to values."""

from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from promptfed.core import options
from promptfed.core.errors import PromptFedError
from promptfed.core.method import Method
from promptfed.core.options import Range
from promptfed.core.schedule import Schedule
from promptfed.data.augment import Augment
from promptfed.data.training import ClassWeights, Training
from promptfed.runs.nested import NestedTable
from promptfed.runs.recipe import Recipe


@dataclass(frozen=True)
class TrainOptions:
    """What is done to training images: nothing by default."""

    augment: str = "none"  # or flip, crop, resized-crop, color, joined by "+"
    class_weights: Literal["none", "balanced", "effective"] = "none"
    beta: Annotated[float, Range(above=0)] = 0.999  # of class_weights=effective


def fill_schedule(recipe: Recipe) -> NestedTable:
    """Fill in the schedule's keys; one that leaves the rates as they are is empty."""
    schedule = _schedule(recipe)
    schedule.check()
    table = {key: value for key, value in asdict(schedule).items() if key not in ("rounds", "joining")}
    return table if schedule.name != "constant" or schedule.warmup else {}


def fill_train(recipe: Recipe, method: Method) -> NestedTable:
    """Fill in the training's keys, or refuse what the method cannot have; one that does nothing is empty."""
    found = options.make(TrainOptions, recipe.train, "train")
    name = recipe.method["name"]
    if found.beta >= 1:
        raise PromptFedError(f"train.beta must be below 1, not {found.beta:g}; use train.class_weights=balanced.")
    if Augment.parse(found.augment, "train.augment") and method.traits.reads == "features":
        raise PromptFedError(
            f"{name} reads features that are computed once, and train.augment changes images; leave train.augment out, "
            "or choose a method that reads images, such as fedvpt."
        )
    if found.class_weights != "none" and not (method.traits.learns and method.traits.weighs):
        why = "does not learn from labels" if method.traits.learns else "learns nothing"
        raise PromptFedError(f"{name} {why}, so its classes have no weights; leave train.class_weights out.")
    return asdict(found) if (found.augment, found.class_weights) != ("none", "none") else {}


def training_of(recipe: Recipe) -> Training:
    """Return what sets a recipe's training batches apart."""
    found = options.make(TrainOptions, recipe.train, "train")
    kind = found.class_weights
    return Training(
        schedule=_schedule(recipe) if recipe.schedule else None,
        augment=Augment.parse(found.augment, "train.augment"),
        weights=None if kind == "none" else ClassWeights(kind, found.beta),
    )


def _schedule(recipe: Recipe) -> Schedule:
    fixed: dict[str, Any] = {"rounds": recipe.rounds, "joining": recipe.join_rounds if recipe.newcomers else 0}
    return options.make(Schedule, recipe.schedule, "schedule", fixed)
