"""FedAPT's tables: every domain beside the mean, and which domain's key the images of each domain get."""

from statistics import mean
from typing import Any

from result_cells import bold, is_kept, markdown, outcome, spread, stored

SHOPS = tuple(f"fedapt-shops-{name}" for name in ("t1", "t2", "t3", "t3-stages", "t4", "t5", "t6", "fig2"))
OFFICE = tuple(f"fedapt-office-{name}" for name in ("t2", "t3-stages", "t4", "t5", "t6"))
KEYS = {"fedapt-office-t4": ("eq5",), "fedapt-office-t6": ("tau001",)}  # rows whose keys are shown


def domain_table(folder: str, column: str, *, tuned: bool = False) -> list[str]:
    """Return one column of a table by domain, best in bold: as the recipe has it, or at each row's best of the grid."""
    found = outcome(folder)
    (about,) = (one for one in found["columns"] if one["name"] == column)
    rows = [one for one in found["rows"] if one["column"] == column and one["ours"]["mean"] is not None]
    shown = [best(one) if tuned else one["ours"] for one in rows]
    parts = [("method", [one["title"] for one in rows])]
    for number, domain in enumerate(about["clients"]):
        parts.append((domain, bold([ours["per_client"][number] for ours in shown])))
    whose = "unseen" if found["measures"][0] == "unseen" else "mean"
    several = any(len(ours["by_seed"]) > 1 for ours in shown)
    parts.append((f"{whose}, ± over seeds" if several else whose, [spread(ours) for ours in shown]))
    if tuned and any(one["tuned"] for one in rows):
        parts.append(("chosen", [setting(one["tuned"]) for one in rows]))
        parts.append(("as in the recipe", [spread(one["ours"]) for one in rows]))
    title = found["title"] if len(found["columns"]) == 1 else f"{found['title']}, {about['title']}"
    return markdown(title, parts)


def best(entry: dict[str, Any]) -> dict[str, Any]:
    """Return a row's runs at the best of its grid, or those of the recipe if it has none."""
    ours: dict[str, Any] = entry["tuned"]["ours"] if entry["tuned"] else entry["ours"]
    return ours


def setting(tuned: dict[str, Any] | None) -> str:
    """Return what a row's grid chose."""
    chosen = tuned["setting"].items() if tuned else ()
    return ", ".join(f"{key.removeprefix('method.')}={value}" for key, value in chosen)


def keys_tables(folder: str, column: str, row: str) -> list[list[str]]:
    """Return how often every key is chosen in every domain and how right it is there, in percent, over seeds."""
    found = outcome(folder)
    (entry,) = (one for one in found["rows"] if (one["column"], one["row"]) == (column, row))
    wanted = {(recipe, int(seed)) for seed, recipe in best(entry)["recipe_hashes"].items()}
    runs, sorted_by = stored(folder, "runs.json"), stored(folder, "domains.json")
    names = [name for name, one in runs.items() if (one["recipe_hash"], one["seed"]) in wanted and name in sorted_by]
    each = [sorted_by[name] for name in names]
    title = next(one["title"] for one in found["columns"] if one["name"] == column)
    where = f"{found['title']}, {f'{title}, ' if len(found['columns']) > 1 else ''}{entry['title']}"
    chosen = [[f"{share:.2f}" for share in line] for line in _percent(each, "chosen")]
    right = [bold(line) for line in _percent(each, "right")]
    return [
        _by_key(f"{where}: the key that the images get, in percent", each[0], chosen),
        _by_key(f"{where}: accuracy under each key alone", each[0], right),
    ]


def _percent(each: list[dict[str, Any]], kind: str) -> list[list[float]]:
    """Return a count by domain and key in percent of the domain's images, the mean over seeds."""
    domains, keys = range(len(each[0]["domains"])), range(len(each[0]["keys"]))
    return [[mean(100 * one[kind][d][k] / one["count"][d] for one in each) for k in keys] for d in domains]


def _by_key(title: str, one: dict[str, Any], cells: list[list[str]]) -> list[str]:
    """Lay out a cell for every domain, down, and key, across."""
    across = zip(one["keys"], zip(*cells, strict=True), strict=True)
    return markdown(title, [("images of", one["domains"]), *((f"key of {key}", list(cell)) for key, cell in across)])


def fedapt_tables() -> list[list[str]]:
    """Return the tables by domain: the cameras' that have been kept, then the shops'."""
    tables = []
    for folder in filter(is_kept, OFFICE):
        for column in (one["name"] for one in outcome(folder)["columns"]):
            # one model under every key: the rates that single keys choose would make it several
            tables.append(domain_table(folder, column, tuned=folder != "fedapt-office-t4"))
            for row in KEYS.get(folder, ()):
                tables += keys_tables(folder, column, row)
    return tables + [domain_table(folder, one["name"]) for folder in SHOPS for one in outcome(folder)["columns"]]
