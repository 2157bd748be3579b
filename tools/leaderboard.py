"""Write the leaderboard from the field's committed tables, docs/results/field-*, and nothing else.

    python tools/leaderboard.py

leaderboard.md and leaderboard.svg in docs/results; recipes.md beside each table, which every cell links to; and what
`promptfed compare --benchmark field` reads, src/promptfed/papers/benchmarks/field.json. The tests compare.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

from promptfed.papers.benchmark import BenchmarkColumn, BenchmarkRow, columns_of, recipe_of
from promptfed.papers.plan import overrides_of, words_for
from promptfed.papers.rendering import read_table
from promptfed.papers.reproduce import find_table
from promptfed.papers.statistics import ranks_in

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
SHIPPED = ROOT / "src" / "promptfed" / "papers" / "benchmarks" / "field.json"
COSTS = {"sent": "MB sent", "seconds": "seconds", "memory": "GPU, GB", "rounds95": "rounds to 95 %"}
NONE, UNASKED = "·", "—"  # without a result; not defined there

FENCE = 3 * "`"
OPENING = """# Leaderboard of the field

Every filled cell of the [field's tables](../reproducing.md#the-field-one-table-a-question), from the files committed
beside this page: each method at its grid's best rate, the mean ± its standard error over seeds, in percent. A cell
leads to its recipe. On the documentation's site a click on a heading sorts by it. `·` has no result yet, `—` is not
defined: the method has no answer to that question. Tables on different encoders stand apart, since their numbers cannot
be compared.

A first place is not a verdict: from base to novel classes (S3, S4) the number is accuracy on a client's own images, and
`hm` beside it is the harmonic mean of everyone's classes and of new ones. An average rank is over the columns in which
a method has a number: compare it between methods with the same columns. [What came out](field.md) says more.

Put runs of your own beside them: `promptfed compare runs/mine --benchmark field` ranks them, and says what was set
otherwise.
"""
CLOSING = """## Accuracy against what is sent

![Accuracy against the numbers that a client receives and sends in a round](leaderboard.svg)

A number is four bytes. Methods that send nothing stand at the left edge. One panel for each column above.
"""

Point = tuple[str, int, float]  # a method's title, the numbers it sends in a round, its accuracy
Board = dict[str, list[tuple[str, BenchmarkColumn]]]  # by encoder: columns with the folder they are kept in


def boards() -> Board:
    """Return the committed columns by encoder, in the order of the scenarios."""
    found = []
    for folder in sorted(path.parent.name for path in RESULTS.glob("field-*/table.json")):
        found += [(folder, column) for column in columns_of(read_table(RESULTS / folder))]
    grouped: Board = {}
    for folder, column in sorted(found, key=lambda one: (question(one[1]), one[0])):
        grouped.setdefault(encoder(column), []).append((folder, column))
    return grouped


def encoder(column: BenchmarkColumn) -> str:
    """Return the encoder that a column's baseline was run on."""
    row = next((row for row in column["rows"] if row["row"] == "promptfl"), column["rows"][0])
    weights = str(recipe_of(column, row, min(map(int, row["by_seed"]))).backbone["weights"])
    return "the package's CLIP" if weights == "embedded" else weights


def question(column: BenchmarkColumn) -> tuple[int, str]:
    """Return the number of a column's scenario, and its table."""
    number = re.search(r"\bS(\d+)\b", find_table(column["table"]).title)
    return (int(number[1]) if number else 99), column["table"]


# -- the page ---------------------------------------------------------------------------------------------------------


def page() -> str:
    """Return leaderboard.md."""
    lines = [OPENING]
    for name, columns in boards().items():
        lines += [f"## On {name}", "", *_table(columns), *_costs(columns)]
    return "\n".join([*lines, CLOSING])


def _table(columns: Sequence[tuple[str, BenchmarkColumn]]) -> list[str]:
    """Return methods down and columns across, the best average rank first, each cell linked to its recipe."""
    titles = {row["row"]: row["title"] for _, column in columns for row in column["rows"]}
    ranks = [ranks_in({row["row"]: row["mean"] for row in column["rows"]}) for _, column in columns]
    average = {name: mean(one[name] for one in ranks if name in one) for name in titles}
    heads, parts = ["method", "average rank"], []
    for folder, column in columns:
        heads += [_head(column), *(["hm"] if _harmonic(column) else [])]
        parts.append({row["row"]: _cells(folder, column, row) for row in column["rows"]})
    lines = ['<div class="sortable" markdown>', "", f"| {' | '.join(heads)} |", "|---|" + "--:|" * (len(heads) - 1)]
    for name in sorted(titles, key=lambda one: (average[one], titles[one])):
        cells = [
            cell
            for (_, column), known in zip(columns, parts, strict=True)
            for cell in known.get(name, _absent(column, name))
        ]
        lines.append(f"| {titles[name]} | {average[name]:.3g} | {' | '.join(cells)} |")
    return [*lines, "", "</div>", ""]


def _head(column: BenchmarkColumn) -> str:
    changed = [word for word in column["overrides"] if not re.match(r"([\w-]+:)?backbone\.", word)]
    if named := [word for word in changed if word.startswith("data.name=")]:  # the other keys are that data set's
        changed = [*named, *(word for word in changed if not word.startswith("data."))]
    otherwise = f" ({', '.join(changed)})" if changed else ""
    return f"S{question(column)[0]}: {column['title']}{otherwise}"


def _harmonic(column: BenchmarkColumn) -> bool:
    return any(row["beside"].get("hm") is not None for row in column["rows"])


def _cells(folder: str, column: BenchmarkColumn, row: BenchmarkRow) -> list[str]:
    error = "" if row["error"] is None else f" ± {row['error']:.2f}"
    shown = [f"[{row['mean']:.2f}{error}]({folder}/recipes.md#{_anchor(column, row)})"]
    found = row["beside"].get("hm")
    return shown + ([NONE if found is None else f"{found:.2f}"] if _harmonic(column) else [])


def _absent(column: BenchmarkColumn, row: str) -> list[str]:
    table = find_table(column["table"])
    there = table.cell_name(column["column"], row) in table.cells()
    return [NONE if there else UNASKED] * (2 if _harmonic(column) else 1)


def _costs(columns: Sequence[tuple[str, BenchmarkColumn]]) -> list[str]:
    """Return what the columns' runs cost; what no run has measured is left out."""
    names = [name for name in COSTS if any(name in row["beside"] for _, column in columns for row in column["rows"])]
    heads = ["method", "column", "numbers a round", *(COSTS[name] for name in names)]
    lines = [
        "What that costs: the numbers that a client receives and sends in a round"
        + (", and of a whole run what the headings say." if names else "."),
        "",
        '<div class="sortable" markdown>',
        "",
        f"| {' | '.join(heads)} |",
        "|---|---|" + "--:|" * (len(heads) - 2),
    ]
    for _, column in columns:
        for row in column["rows"]:
            floats = NONE if row["floats"] is None else f"{row['floats']:,}"
            cells = [NONE if (found := row["beside"].get(name)) is None else f"{found:.2f}" for name in names]
            lines.append(f"| {row['title']} | {_head(column)} | {' | '.join([floats, *cells])} |")
    return [*lines, "", "</div>", ""]


# -- its recipes ------------------------------------------------------------------------------------------------------


def recipes() -> dict[str, str]:
    """Return recipes.md of every folder; a result whose recipe is no longer in the tables is refused."""
    found: dict[str, list[str]] = {}
    for columns in boards().values():
        for folder, column in columns:
            title = find_table(column["table"]).title
            first = [
                f"# Recipes of {title}",
                "",
                "The commands that repeat each cell, and the fingerprints of what was run.",
            ]
            for row in column["rows"]:
                found.setdefault(folder, first).extend(_recipe(column, row))
    return {folder: "\n".join(lines) + "\n" for folder, lines in found.items()}


def _recipe(column: BenchmarkColumn, row: BenchmarkRow) -> list[str]:
    words = " ".join(["promptfed run", f"{column['table']}/{_cell(column, row)}", *_words(column, row)])
    lines = ["", f"## {_cell(column, row)}", "", f"{row['title']}, {column['title']}:", "", f"{FENCE}sh"]
    lines += [f"{words} seed={seed}" for seed in row["by_seed"]]
    found = [f"- seed {seed}: `{recipe_of(column, row, int(seed)).hash}`" for seed in row["by_seed"]]
    return [*lines, FENCE, "", *found]


def _words(column: BenchmarkColumn, row: BenchmarkRow) -> list[str]:
    cell = find_table(column["table"]).cells()[_cell(column, row)]
    return words_for(cell, [*column["overrides"], *overrides_of(row["setting"])])


def _cell(column: BenchmarkColumn, row: BenchmarkRow) -> str:
    return find_table(column["table"]).cell_name(column["column"], row["row"])


def _anchor(column: BenchmarkColumn, row: BenchmarkRow) -> str:
    return _cell(column, row).replace("/", "")


# -- its picture ------------------------------------------------------------------------------------------------------


def points() -> dict[str, list[Point]]:
    """Return what the picture shows, by panel."""
    return {
        f"{_head(column)} ({name})": [
            (row["title"], row["floats"], round(row["mean"], 2)) for row in column["rows"] if row["floats"] is not None
        ]
        for name, columns in boards().items()
        for _, column in columns
    }


def draw(shown: Mapping[str, Sequence[Point]], path: Path) -> None:
    """Draw accuracy against the numbers sent; the file tells its own points in its description."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    matplotlib.rcParams |= {"svg.hashsalt": "promptfed", "svg.fonttype": "none", "font.size": 8}
    wide = min(2, len(shown))
    deep = -(-len(shown) // wide)
    figure, axes = plt.subplots(deep, wide, figsize=(6.4 * wide, 4.2 * deep), squeeze=False, layout="constrained")
    for axis in axes.flat[len(shown) :]:
        axis.set_visible(False)
    for axis, (title, each) in zip(axes.flat, shown.items(), strict=False):
        least = min((floats for _, floats, _ in each if floats), default=1)
        axis.set_xscale("log")
        axis.set_xlabel("numbers that a client receives and sends in a round (at the left edge: none)")
        axis.set_ylabel("accuracy in percent")
        axis.set_title(title, fontsize=9)
        for (name, floats, accuracy), height in zip(each, _heights(each), strict=True):
            axis.plot(floats or least / 4, accuracy, "o", color="#3f51b5" if floats else "#9e9e9e")
            axis.annotate(name, (floats or least / 4, height), (6, -3), textcoords="offset points")
        axis.margins(x=0.25, y=0.1)
        axis.grid(alpha=0.3)
    about = {"Date": None, "Creator": "tools/leaderboard.py", "Description": json.dumps(shown, ensure_ascii=False)}
    figure.savefig(path, metadata=about)
    plt.close(figure)


def _heights(each: Sequence[Point]) -> list[float]:
    """Return the heights of the points' names: those of methods that send as much must not lie on each other."""
    values = [accuracy for _, _, accuracy in each]
    gap, found = 0.04 * (max(values) - min(values)), dict[int, float]()
    for number in sorted(range(len(each)), key=values.__getitem__):
        below = [found[other] for other in found if each[other][1] == each[number][1]]
        found[number] = max([values[number], *(height + gap for height in below)])
    return [found[number] for number in range(len(each))]


def shipped() -> str:
    """Return the columns as the package has them."""
    columns = [column for found in boards().values() for _, column in found]
    return json.dumps(columns, ensure_ascii=False, indent=1) + "\n"


if __name__ == "__main__":
    (RESULTS / "leaderboard.md").write_text(page(), encoding="utf-8")
    for kept, text in recipes().items():
        (RESULTS / kept / "recipes.md").write_text(text, encoding="utf-8")
    SHIPPED.write_text(shipped(), encoding="utf-8")
    draw(points(), RESULTS / "leaderboard.svg")
