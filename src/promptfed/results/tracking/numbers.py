"""What a tracker gets to see: numbers of the rounds and of the end, and the recipe. Nothing else leaves the machine.

The names of a user's own domains and the places of a user's own files stay here.
"""

import math
from collections.abc import Mapping
from typing import Any

Numbers = dict[str, float]

# What of a round's line is made of plain numbers; the names of sites and the lists of clients are elsewhere in it.
TABLES = ("received", "trained", "deployed", "measures", "traffic")
LONE = ("loss", "images", "seconds")
ENDS = ("mean", "weighted", "worst", "p10", "newcomers")


def own_images(recipe: Mapping[str, Any]) -> bool:
    """Return whether a run is on a user's own images, whose folders have names that may be private."""
    data = recipe.get("data")
    return isinstance(data, Mapping) and ":" in str(data.get("name", ""))


def of_round(line: Mapping[str, Any], own: bool) -> Numbers:
    """Return the finite numbers of a round's line, named TABLE/NUMBER."""
    found: Numbers = {"participants": float(len(line["clients"]))}
    found |= {name: line[name] for name in LONE if _finite(line.get(name))}
    found |= {
        f"beyond/{name}": part["mean"] for name, part in (line.get("sets") or {}).items() if _finite(part["mean"])
    }
    found |= {f"beyond/{name}": line[name] for name in ("hm", "cm") if name in line}
    for table in TABLES:
        inner = line.get(table) or {}
        if table == "deployed" and own:
            inner = _numbered(inner)
        found |= {f"{table}/{name}": value for name, value in inner.items() if _finite(value)}
    return {name: float(value) for name, value in found.items()}


def of_summary(summary: Mapping[str, Any]) -> Numbers:
    """Return the final accuracies, named final/NUMBER: of the models as they are used, and after one more training."""
    accuracy = summary["accuracy"]
    after = (accuracy.get("after") or {}).get("mean")
    found = {name: accuracy.get(name) for name in ENDS} | {"after": after}
    return {f"final/{name}": float(value) for name, value in found.items() if _finite(value)}


def of_recipe(recipe: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the recipe under dotted keys, without the places of files."""
    found: dict[str, Any] = {}
    for key, value in recipe.items():
        if isinstance(value, Mapping):
            found |= of_recipe(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = _placeless(prefix + key, value)
    return found


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _numbered(deployed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the accuracies with the domains numbered in their order."""
    domains = [name for name in deployed if name != "all"]
    return {name if name == "all" else f"domain-{domains.index(name)}": value for name, value in deployed.items()}


def _placeless(key: str, value: Any) -> Any:
    """Return a value of the recipe; of folder:PATH only what stands before the colon, of another path nothing."""
    if not isinstance(value, str):
        return value
    kind, colon, _ = value.partition(":")
    if colon and key in ("data.name", "partition.name"):
        return f"{kind}:…"
    return "…" if value.startswith(("/", "~", "./", "../")) or "\\" in value else value
