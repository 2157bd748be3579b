"""Figure 8 of pFedPT: how good runs are whose prompts differ in kind and size, from their records alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from promptfed.analysis.figures import plotting
from promptfed.analysis.figures.drawing import Drawing
from promptfed.core.errors import PromptFedError
from promptfed.results.folder.reader import RunFolder, read_run
from promptfed.results.folder.values import Scores
from promptfed.results.recipe_keys import EVALUATION
from promptfed.results.report.groups import flat

# Where recipes have the size of a visual prompt and its kind: pFedPT itself, and the prompt around another method.
PLACES = {"method.size": "method.prompt", "prompt.size": "prompt.kind"}
# The tables whose keys depend on the method.
OWN = ("method.", "prompt.")


@dataclass(frozen=True)
class Sized:
    """A finished run: the kind and size of its prompt, its accuracy, and all else that its recipe says."""

    run: RunFolder
    kind: str
    size: int
    scores: Scores
    rest: Mapping[str, str]


def sizes(folders: Sequence[Path], clients: Sequence[int]) -> Drawing:
    """Draw the mean accuracy over the prompt's size, a line per kind of prompt, mean ± std over seeds."""
    if clients:
        raise PromptFedError("Figure sizes shows the mean over all clients of a run; leave out --client.")
    runs = [sized(read_run(path)) for path in {folder.resolve(): folder for folder in folders}.values()]
    found = {name: points(members) for name, members in lines(runs).items()}
    best = {name: max(line, key=lambda point: float(point["mean"])) for name, line in found.items()}
    told = "; ".join(f"{name}: {point['mean']:.2f} % at {point['size']}" for name, point in best.items())
    caption = (
        f"{_told(runs)}: the mean accuracy of clients at the end of a run, over the size of the prompt. Bars are the "
        f"standard deviation over seeds, where there are several. The best of each line: {told}."
    )
    curves = {name: [(one["size"], one["mean"], one["std"] or 0.0) for one in line] for name, line in found.items()}
    return Drawing(
        "Accuracy over the size of the prompt",
        caption,
        {"lines": found},
        plotting.spreads(curves, _across(runs), "mean accuracy of clients, %"),
    )


def sized(run: RunFolder) -> Sized:
    """Return a run with its prompt's kind and size, or say that it has none, is not finished, or has no accuracy."""
    if not run.finished:
        raise PromptFedError(f'Run folder "{run.path}" is not finished; resume the run, or leave it out.')
    keys = flat(run.recipe)
    for size, kind in PLACES.items():
        if size in keys and kind in keys:
            if run.scores is None:
                raise PromptFedError(f'Run folder "{run.path}" has no accuracy of its clients.')
            rest = {key: value for key, value in keys.items() if key not in {size, kind, *EVALUATION}}
            return Sized(run, keys[kind], int(keys[size]), run.scores, rest)
    raise PromptFedError(
        f'Run folder "{run.path}" has no prompt with a size; pfedpt has method.size, and other methods prompt.size.'
    )


def lines(runs: Sequence[Sized]) -> dict[str, list[Sized]]:
    """Return runs that differ in size and seed alone, by the kind of their prompt and whatever sets them apart."""
    sorts: dict[tuple[str, str, tuple[tuple[str, str], ...]], list[Sized]] = {}
    for one in runs:
        sorts.setdefault((one.run.method, one.kind, tuple(sorted(one.rest.items()))), []).append(one)
    several = len({method for method, _, _ in sorts}) > 1
    every = [members[0].rest for members in sorts.values()]
    found = {}
    for (method, kind, _), members in sorts.items():
        rest = members[0].rest
        namesakes = [other[0].rest for (name, also, _), other in sorts.items() if (name, also) == (method, kind)]
        # another method has other keys of its own, but another data set must be told whatever the method
        odd = [key for key in sorted(rest) if _differs(key, namesakes if key.startswith(OWN) else every)]
        name = f"{method}, {kind}" if several else kind
        found[f"{name} ({', '.join(f'{key}={rest[key]}' for key in odd)})" if odd else name] = members
    return found


def _differs(key: str, recipes: Sequence[Mapping[str, str]]) -> bool:
    return len({recipe.get(key) for recipe in recipes}) > 1


def points(members: Sequence[Sized]) -> list[dict[str, Any]]:
    """Return a line's points by size: percents over its seeds, and the mean of each seed."""
    by_size: dict[int, dict[int, Sized]] = {}
    for one in members:
        same = by_size.setdefault(one.size, {}).setdefault(one.run.seed, one)
        if same is not one:
            raise PromptFedError(f'"{same.run.path}" and "{one.run.path}" are the same run twice; leave one out.')
    found = []
    for size, seeds in sorted(by_size.items()):
        each = {str(seed): 100 * seeds[seed].scores.mean for seed in sorted(seeds)}
        found.append(
            {
                "size": size,
                "mean": round(mean(each.values()), 4),
                "std": round(stdev(each.values()), 4) if len(each) > 1 else None,
                "weighted": round(mean(100 * one.scores.weighted for one in seeds.values()), 4),
                "by_seed": {seed: round(value, 4) for seed, value in each.items()},
            }
        )
    return found


def _told(runs: Sequence[Sized]) -> str:
    """Return which runs these are, for a caption."""
    facts = zip(
        *((one.run.method, one.run.dataset, one.run.partition_name, one.run.backbone) for one in runs), strict=True
    )
    method, dataset, partition, backbone = (" and ".join(dict.fromkeys(values)) for values in facts)
    return f"{method} on {dataset}, {partition}, {backbone}"


def _across(runs: Sequence[Sized]) -> str:
    units = {"tokens" if one.kind == "tokens" else "pixels" for one in runs}
    return f"size p of the prompt, {' or '.join(sorted(units))}"
