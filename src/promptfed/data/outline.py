"""What a data set is like, in the few numbers that a decision depends on."""

from collections import Counter
from dataclasses import dataclass
from statistics import median

from promptfed.core import options
from promptfed.core.errors import PromptFedError
from promptfed.data.datasets import DATASETS
from promptfed.data.inspecting import DatasetInspection


@dataclass(frozen=True)
class DataFacts:
    """What a data set is like, as far as a decision depends on it."""

    name: str  # as a recipe has it
    sites: tuple[str, ...]
    classes: int
    training: tuple[int, ...]  # images of each site
    testing: tuple[int, ...]
    held: tuple[int, ...]  # classes that each site has training images of
    shared: float  # the share of classes that several sites hold, of those that anyone holds
    skew: float  # 0: every site has the classes in equal proportions; towards 1: each has its own
    unequal: float  # how many times as many training images the largest class has as the smallest
    side: int  # pixels of the shorter side of the median image
    broken: int
    resizes: bool  # the data set has the option `size`

    @classmethod
    def of(cls, name: str, found: DatasetInspection) -> "DataFacts":
        """Return the facts about what was inspected under that name; validation images count as training images."""
        train = Counter((one.site, one.label) for one in found.images if one.split != "test")
        test = Counter(one.site for one in found.images if one.split == "test")
        rows = [[train[site, label] for label in found.classes] for site in found.sites]
        pooled = [sum(column) for column in zip(*rows, strict=True)]
        if not sum(pooled):
            raise PromptFedError(f"{found.name} has no training images, so there is nothing to advise on.")
        present, holders = [n for n in pooled if n], [sum(map(bool, column)) for column in zip(*rows, strict=True)]
        return cls(
            name,
            found.sites,
            len(found.classes),
            tuple(map(sum, rows)),
            tuple(test[site] for site in found.sites),
            tuple(sum(map(bool, row)) for row in rows),
            sum(count > 1 for count in holders) / len(present),
            _skew(rows, pooled),
            max(present) / min(present),
            round(median(min(one.sides) for one in found.images)),
            len(found.broken),
            "size" in options.hints(DATASETS[name.partition(":")[0]]),
        )


def _skew(rows: list[list[int]], pooled: list[int]) -> float:
    """Return the mean distance, in total variation, of a site's class shares to those of all sites together."""
    everywhere = [count / sum(pooled) for count in pooled]
    apart = [
        sum(abs(count / sum(row) - share) for count, share in zip(row, everywhere, strict=True)) / 2
        for row in rows
        if sum(row)
    ]
    return sum(apart) / len(apart)


def describe(facts: DataFacts) -> tuple[str, ...]:
    """Return what there is, in sentences."""
    sites, every = len(facts.sites), f"{facts.classes:,} class{'es' if facts.classes != 1 else ''}"
    images = f"{sum(facts.training):,} training and {sum(facts.testing):,} test images"
    if sites == 1:
        return (f"{images} of {every}, from one site or an unknown number of them.", f"{_side(facts)}")
    low, high = min(facts.training), max(facts.training)
    each = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    held = f"{min(facts.held)}" if min(facts.held) == max(facts.held) else f"{min(facts.held)} to {max(facts.held)}"
    return (
        f"{images} of {every} at {sites:,} sites.",
        f"A site has {each} training images of {held} classes.",
        f"{100 * facts.shared:.0f} % of the classes are at several sites; label skew is {facts.skew:.2f}, where 0 is "
        "the same proportions everywhere and 1 is nothing in common.",
        _side(facts),
    )


def _side(facts: DataFacts) -> str:
    return f"The median image is {facts.side} pixels on its shorter side."
