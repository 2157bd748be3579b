"""How a run learns, whatever its method: the tables [schedule], [train] and [stop], from a recipe's keys to values."""

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from promptfed.core import options
from promptfed.core.errors import PromptFedError
from promptfed.core.options import Range
from promptfed.core.schedule import Schedule
from promptfed.federation.stopping import Stopping
from promptfed.runs.nested import NestedTable
from promptfed.runs.recipe import Recipe

if TYPE_CHECKING:
    from promptfed.core.method import Method
    from promptfed.data.dataset import Dataset
    from promptfed.data.partition import Partition
    from promptfed.data.training import Training


@dataclass(frozen=True)
class TrainOptions:
    """What is done to training images: nothing by default."""

    augment: str = "none"  # or flip, crop, resized-crop, color, joined by "+"
    class_weights: Literal["none", "balanced", "effective"] = "none"
    beta: Annotated[float, Range(above=0)] = 0.999  # of class_weights=effective


def fill_schedule(recipe: Recipe, *, kept: bool = False) -> NestedTable:
    """Fill in the schedule's keys; one that leaves the rates as they are is empty.

    It is `kept` where the method's recipes start from another one, which would come back when the recipe is read again.
    """
    schedule = _schedule(recipe)
    schedule.check()
    table = {key: value for key, value in asdict(schedule).items() if key not in ("rounds", "joining")}
    return table if kept or schedule.name != "constant" or schedule.warmup else {}


def check_train(recipe: Recipe) -> TrainOptions:
    """Return the training's keys, or refuse them for what they are, whatever the method."""
    found = options.make(TrainOptions, recipe.train, "train")
    if found.beta >= 1:
        raise PromptFedError(f"train.beta must be below 1, not {found.beta:g}; use train.class_weights=balanced.")
    return found


def fill_train(recipe: Recipe, method: "Method") -> NestedTable:
    """Fill in the training's keys, or refuse what the method cannot have; one that does nothing is empty."""
    from promptfed.data.augment import Augment

    found = check_train(recipe)
    name = recipe.method["name"]
    if Augment.parse(found.augment, "train.augment") and method.traits.reads != "pixels":
        raise PromptFedError(
            f"{name} reads features that are computed once, and train.augment changes images; leave train.augment out, "
            "or choose a method that reads images, such as fedvpt."
        )
    if found.class_weights != "none" and not (method.traits.learns and method.traits.weighs):
        why = "does not weigh images by their labels" if method.traits.learns else "learns nothing"
        raise PromptFedError(f"{name} {why}, so its classes have no weights; leave train.class_weights out.")
    return asdict(found) if (found.augment, found.class_weights) != ("none", "none") else {}


def fill_stop(recipe: Recipe) -> NestedTable:
    """Fill in the keys of early stopping, or refuse what cannot go with it; one without patience is empty."""
    found = options.make(Stopping, recipe.stop, "stop")
    if not found.patience:
        return {}
    if recipe.newcomers:
        raise PromptFedError("Newcomers join after the last round, so that must be known; leave stop.patience out.")
    if not recipe.evaluate["personal"]:
        raise PromptFedError("stop.patience needs every client's score in between; set evaluate.personal=true.")
    return asdict(found)


def stopping_of(recipe: Recipe) -> Stopping | None:
    """Return when the recipe's run ends early, if it may."""
    return options.make(Stopping, recipe.stop, "stop") if recipe.stop else None


def held_out(recipe: Recipe, dealt: "Partition", dataset: "Dataset") -> "tuple[Partition, Partition | None]":
    """Return the partition to train on, and the same with validation images to stop by in place of test images.

    A recipe that tests on validation images stops by these.
    """
    from promptfed.data.split import validated

    if not recipe.stop or recipe.evaluate.get("split") == "val":
        return dealt, None
    validation = validated(dealt, dataset, recipe.seed)
    return replace(dealt, train=validation.train), validation


def training_of(recipe: Recipe) -> "Training":
    """Return what sets a recipe's training batches apart."""
    from promptfed.data.augment import Augment
    from promptfed.data.training import ClassWeights, Training

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
