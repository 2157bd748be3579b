"""`promptfed.run(...)`: run a recipe, a method by name, or a method of one's own."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from promptfed.core import options
from promptfed.core.errors import PromptFedError
from promptfed.core.method import Method
from promptfed.runs import config, execution, nested, resuming
from promptfed.runs.execution import Result as Result
from promptfed.runs.folders import default_folder
from promptfed.runs.recipe import Recipe


def run(
    source: str | Recipe | Method,
    *,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    overrides: tuple[str, ...] = (),
    track: str | tuple[str, ...] = (),
    **changes: Any,
) -> Result:
    """Run a recipe, a method by name or a method of your own, and return what came out.

    Changes are recipe keys: `run("pfedpt", rounds=8, clients=6, method={"lr": 0.01})`. Without `out` the run folder is
    `runs/METHOD-DATASET-N`. With `resume` the run in that folder is continued from where it stopped.
    `track` names trackers that follow it, such as "tensorboard".
    """
    if isinstance(source, type):
        raise PromptFedError(f"Run a method's object, not its class: give {source.__name__}().")
    own = source if isinstance(source, Method) else None
    if isinstance(source, Recipe):
        if overrides or changes:
            raise PromptFedError("A Recipe runs as it is; change it with dataclasses.replace, not with keywords.")
        recipe = config.resolve(asdict(source))
    else:
        words = [*overrides, *_words(changes)]
        name = source if isinstance(source, str) else f"{type(source).__module__}:{type(source).__qualname__}"
        recipe = config.load_one(name, words if own is None else [*_fields(own), *words])
    trackers = (track,) if isinstance(track, str) else tuple(track)
    if resume is not None:
        return resuming.resume(Path(resume), recipe, own, trackers)
    return execution.start(recipe, Path(out) if out is not None else default_folder(recipe), own, trackers)


def _words(changes: Mapping[str, Any]) -> list[str]:
    """Return nested changes as `table.key=value` words."""
    words = []
    for key, value in changes.items():
        inner = value.items() if isinstance(value, Mapping) else [(None, value)]
        words += [f"{key if name is None else f'{key}.{name}'}={nested.literal(item)}" for name, item in inner]
    return words


def _fields(method: Method) -> list[str]:
    """Return the fields of a method object as words of the [method] table."""
    return [f"method.{key}={nested.literal(getattr(method, key))}" for key in options.hints(type(method))]


def demo(seed: int, out: Path) -> list[Path]:
    """Run the three demo recipes on the same partition; a finished one is not run again, a stopped one is resumed."""
    folders = []
    for name in ("alone", "fedavg", "prompts"):
        folder = out / f"{name}-seed{seed}"
        recipe = config.load_one(f"demo/{name}", [f"seed={seed}"])
        resuming.start_or_resume(recipe, folder)
        folders.append(folder)
    return folders
