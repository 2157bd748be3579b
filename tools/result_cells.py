"""The committed results, and the words and tables that they are printed in."""

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "docs" / "results"


def outcome(folder: str) -> dict[str, Any]:
    """Return what `promptfed reproduce` wrote about one table."""
    return stored(folder, "table.json")


def stored(folder: str, name: str) -> dict[str, Any]:
    """Return a file of one table's results."""
    found: dict[str, Any] = json.loads((RESULTS / folder / name).read_text(encoding="utf-8"))
    return found


def is_kept(folder: str) -> bool:
    """Return whether a table's results are there."""
    return (RESULTS / folder / "table.json").exists()


def bold(values: list[float]) -> list[str]:
    """Return values in words, the largest in bold."""
    best = f"{max(values):.2f}"
    return [f"**{best}**" if f"{value:.2f}" == best else f"{value:.2f}" for value in values]


def markdown(title: str, parts: list[tuple[str, list[str]]]) -> list[str]:
    """Lay out columns of words; all but the first are numbers."""
    names, cells = zip(*parts, strict=True)
    lines = [f"**{title}**", "", f"| {' | '.join(names)} |", "|---|" + "--:|" * (len(names) - 1)]
    return [*lines, *(f"| {' | '.join(row)} |" for row in zip(*cells, strict=True)), ""]


def two(value: float | None) -> str:
    """Return a number with two decimals, or nothing."""
    return "" if value is None else f"{value:.2f}"


def signed(value: float | None) -> str:
    """Return a difference with its sign, or nothing."""
    return "" if value is None else f"{value:+.2f}"


def seeds(ours: dict[str, Any]) -> str:
    """Return how many seeds were run."""
    return str(len(ours["by_seed"]) + len(ours["problems"]))


def spread(ours: dict[str, Any] | None) -> str:
    """Write mean ± std over seeds, and how many runs gave no result."""
    if ours is None:
        return ""
    words = ["diverged" if "diverged" in sentence else "failed" for sentence in ours["problems"].values()]
    if ours["mean"] is None:
        return " ".join(sorted(set(words)))
    around = "" if ours["std"] is None else f" ± {ours['std']:.2f}"
    lost = ", ".join(f"{words.count(word)} {word}" for word in sorted(set(words)))
    return f"{ours['mean']:.2f}{around}" + (f" ({lost})" if lost else "")


def best_rate(tuned: dict[str, Any] | None) -> str:
    """Return the best rate of a row's grid, if it gave a result."""
    return str(tuned["setting"]["method.lr"]) if tuned and tuned["ours"]["mean"] is not None else ""
