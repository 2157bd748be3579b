"""The field's tables: every method at its best rate, by scenario."""

from typing import Any

from result_cells import best_rate, markdown, outcome, spread, two

FIELD = (
    *("field-s5-office", "field-s3-pets"),
    *("field-shops-personal", "field-shops-global", "field-shops-novel", "field-shops-unseen", "field-shops-newcomers"),
)
# what the first measure of a table of the field is of
FIRST = {"mean": "own images", "deployed": "everyone's images", "newcomers": "newcomers", "unseen": "the unseen shop"}
COST = ("sent", "seconds", "memory", "rounds95")
EXAMPLE = "example-"  # begins the columns in which an example is hidden, not a client


def field_table(folder: str, column: str) -> list[str]:
    """Return one column of a table of the field: every method at its best rate, and the measures beside its mean.

    What runs cost is in the leaderboard.
    """
    found = outcome(folder)
    title = next(one["title"] for one in found["columns"] if one["name"] == column)
    other = next((word for word in found.get("overrides", []) if word.startswith("data.name=")), "")
    rows = [one for one in found["rows"] if one["column"] == column and one["ours"]["mean"] is not None]
    best = [one["tuned"]["ours"] if one["tuned"] else one["ours"] for one in rows]
    paired = {
        one["row"]: f"{one['difference']:+.2f} ± {one['difference_error']:.2f}"
        for one in found.get("statistics", {}).get("cells", [])
        if one["column"] == column and one["difference_error"] is not None
    }
    parts = [
        ("method", [one["title"] for one in rows]),
        (f"{FIRST[found['measures'][0]]}, ± over seeds", [spread(ours) for ours in best]),
        *([("− PromptFL, ± s.e.", [paired.get(one["row"], "") for one in rows])] if paired else []),
        *((name, [two(ours["beside"][name]) for ours in best]) for name in found["measures"][1:] if name not in COST),
        ("its rate", [best_rate(one["tuned"]) for one in rows]),
        ("numbers sent a round", [f"{ours['traffic']['up_floats']:,}" for ours in best]),
    ]
    scenario = found["title"].removeprefix("The field, ").partition(" ")[0].rstrip(":")
    return markdown(f"{scenario}: {title}{f', with {other}' if other else ''}", parts)


def noise_table(folder: str) -> list[str]:
    """Return the accuracy of every method by the noise that hides a client, or, for DP-FPL, an example."""
    found = outcome(folder)
    columns = {one["name"]: one["title"].removesuffix(" for a client") for one in found["columns"]}
    rows, names = [], []
    for title, cells in best_cells(found).items():
        example = any(column.startswith(EXAMPLE) for column in cells)
        names.append(f"{title}, an example" if example else title)
        rows.append({column.removeprefix(EXAMPLE): ours for column, ours in cells.items()})
    parts = [("method", names)]
    for column in (name for name in columns if not name.startswith(EXAMPLE)):
        parts.append((columns[column], [spread(row[column]) for row in rows]))
    parts.append(("worst client, ε = 8", [two(row["eps8"]["beside"]["worst"]) for row in rows]))
    return markdown("S9: fashion-shops, Dir(0.3), 20 clients, by ε", parts)


def shots_table(folder: str) -> list[str]:
    """Return accuracy on own images, and the harmonic mean of everyone's classes and new ones, by shots."""
    found = outcome(folder)
    columns, rows = [one["name"] for one in found["columns"]], best_cells(found)
    parts = [("method", list(rows))]
    for kind in ("own", "hm"):
        for column in columns:
            cells = [row[column]["mean"] if kind == "own" else row[column]["beside"]["hm"] for row in rows.values()]
            parts.append((f"{kind}, {column.removeprefix('s')}", [two(cell) for cell in cells]))
    return markdown("S4: fashion-shops, own images and harmonic mean, by shots", parts)


def best_cells(found: dict[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return what every method has at its best rate, by its title and the column."""
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    for one in found["rows"]:
        if one["ours"]["mean"] is not None:
            rows.setdefault(one["title"], {})[one["column"]] = (one["tuned"] or one)["ours"]
    return rows


def field_page() -> list[list[str]]:
    """Return the field's tables."""
    tables = [field_table(folder, one["name"]) for folder in FIELD for one in outcome(folder)["columns"]]
    return [*tables, shots_table("field-shops-shots"), noise_table("field-shops-privacy")]
