"""Render a table from the numbers in table.json: as table.md, LaTeX, CSV, and for the terminal.

Nothing here runs anything or imports torch.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from promptfed.core.errors import PromptFedError
from promptfed.core.files import write_json, write_text
from promptfed.papers.comparison import (
    CellResult,
    ClientTraffic,
    Comparison,
    Heading,
    Ours,
    difference,
    paper_measure,
)
from promptfed.papers.remarks import DIVERGED, NONE, compares_best, remarks, setting_text, signed, two_decimals
from promptfed.papers.standings import ranks_of, statistics_of
from promptfed.results.report.table import Cell, Column, Table, human_bytes

JSON_FILE, MARKDOWN_FILE = "table.json", "table.md"
BESIDE = {
    "worst": "the worst client",
    "p10": "the client at the 10th percentile",
    "own-names": "on the own images, only the classes that a client trains on being named",
    "neighbour": "on the other clients' images",
    "base": "on all clients' images",
    "novel": "on images of classes that training never named",
    "hm": "harmonic mean of base and novel",
    "cm": "mean of ours and hm",
    "epsilon": "the largest ε of any client",
    "sent": "megabytes both ways, of all clients in all rounds",
    "seconds": "of all rounds, tests included",
    "memory": "the GPU's peak in gigabytes",
    "rounds95": "the first tested round with 95 % of the best one's accuracy",
}
LEGENDS = {
    "mean": "mean accuracy of the clients in percent, ± std over seeds",
    "deployed": "accuracy of the server's own model in percent, the mean over domains, ± std over seeds",
    "unseen": "accuracy of the server's own model in percent on the domain that no client has, ± std over seeds",
    "elsewhere": "accuracy of the server's own model in percent, the mean over other data sets, ± std over seeds",
    "newcomers": "mean accuracy of the clients that came last in percent, ± std over seeds",
    "trained": "mean accuracy of the clients' models before the last aggregation in percent, ± std over seeds",
    "fid": "FID of the server's word, the lower the better, ± std over seeds; – until promptfed quality measures it",
}


# -- files ----------------------------------------------------------------------------------------------------------


def write_table(folder: Path, outcome: Comparison) -> None:
    """Write table.json and table.md."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / JSON_FILE, outcome)
    write_text(folder / MARKDOWN_FILE, to_markdown(outcome))


def read_table(folder: Path) -> Comparison:
    """Return the content of table.json in `folder`."""
    path = folder / JSON_FILE
    try:
        content: Comparison = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PromptFedError(f"Folder {folder} holds no table: {path.name}: {error.strerror}.") from error
    except ValueError as error:
        raise PromptFedError(f"{path} is not valid JSON: {error}.") from error
    if not isinstance(content, dict) or not Comparison.__required_keys__ <= set(content):
        raise PromptFedError(f"{path} was not written by promptfed reproduce; give the folder of a table.")
    return content


# -- showing --------------------------------------------------------------------------------------------------------


def to_markdown(outcome: Comparison) -> str:
    """Write the tables, failures, deviations and notes as Markdown."""
    seeds = f"Seed{'s' if len(outcome['seeds']) > 1 else ''} {', '.join(map(str, outcome['seeds']))}."
    blocks = [f"# {outcome['title']}", " ".join(filter(None, [outcome["paper"], seeds]))]
    several = len(outcome["columns"]) > 1
    for title, table in views(outcome):
        blocks += [f"## {title}"] if several else []
        blocks.append(table.to_markdown().rstrip())
    for title, sentences in remarks(outcome).items():
        blocks += [f"## {title}", "\n".join(f"- {sentence}" for sentence in sentences)]
    return "\n\n".join(blocks) + "\n"


def to_latex(outcome: Comparison) -> str:
    """Write only the tables for LaTeX, one below the other, each after a comment with its title."""
    several = len(outcome["columns"]) > 1
    blocks = []
    for title, table in views(outcome):
        comment = f"% {outcome['title']}{f' – {title}' if several else ''}"
        blocks.append(f"{comment}\n{table.to_latex()}")
    return "\n".join(blocks).replace("−", "$-$")  # LaTeX does not know this sign


def to_csv(outcome: Comparison) -> str:
    """Write all tables as one CSV file of plain numbers; the first field names the paper's column a line is from.

    Fields that a column lacks, such as another column's clients, are empty.
    """
    sheets = views(outcome)
    columns = {column.title: column for _, table in sheets for column in table.columns}
    rows = []
    for title, table in sheets:
        for row in table.rows:
            cells = {column.title: cell for column, cell in zip(table.columns, row, strict=True)}
            empty = {name: Cell("", ("",) * len(column.fields)) for name, column in columns.items()}
            rows.append((_text(title), *(empty | cells).values()))
    return Table((Column("column", "", ("column",), False), *columns.values()), tuple(rows)).to_csv()


def views(outcome: Comparison) -> list[tuple[str, Table]]:
    """Return one table per column that has rows, with its title."""
    found = []
    for heading in outcome["columns"]:
        entries = [entry for entry in outcome["rows"] if entry["column"] == heading["name"]]
        if entries:
            found.append((heading["title"], _view(outcome, heading, entries)))
    return found + ranks_of(outcome)


def _view(outcome: Comparison, heading: Heading, entries: Sequence[CellResult]) -> Table:
    """Lay out one column of the paper's table: method, clients, ours, the paper's, difference, traffic."""
    measures = outcome.get("measures", ["mean"])
    parts: list[tuple[Column, list[Cell]]] = [
        (Column("method", "", ("method",), False), [_text(entry["title"]) for entry in entries])
    ]
    for number, title in enumerate(heading["clients"]):
        shown = [_client(entry, number) for entry in entries]
        parts.append((Column(title, "ours (paper's)" if number == 0 else "", (title, f"{title}_paper")), shown))
    ours = Column("ours", LEGENDS[measures[0]], ("ours", "ours_std", "ours_lost"))
    parts.append((ours, _best([entry["ours"] for entry in entries], lowest=measures[0] == "fid")))
    printed = [_text(two_decimals(entry["paper"] and entry["paper"]["mean"])) for entry in entries]
    parts.append((Column("paper", "", ("paper",)), printed))
    shown = [_text(signed(entry["difference"])) for entry in entries]
    parts.append((Column("ours − paper", "", ("ours_difference",)), shown))
    if "weighted" in measures:
        parts += _weighted(entries)
    if any("best_weighted" in entry["ours"] for entry in entries) and "weighted" in measures:
        parts += _best_rounds(entries, paper_measure(measures))
    parts += _beside([entry["ours"] for entry in entries], measures)
    if any(entry["tuned"] for entry in entries):
        parts += _tuned(entries, paper_measure(measures))
        parts += _beside([entry["tuned"]["ours"] if entry["tuned"] else None for entry in entries], measures, "tuned")
    parts += statistics_of(outcome, heading, entries)
    if measures[0] == "fid":
        shown = [_text(entry["ours"].get("measured") or NONE) for entry in entries]
        parts.append((Column("measured", "features, pictures drawn, real images", ("measured",), False), shown))
    accuracies = (("before", "as received, untrained"), ("after", "after one more local training"))
    for key, legend in () if measures[0] == "fid" else accuracies:
        shown = [_text(two_decimals(entry["ours"]["before" if key == "before" else "after"])) for entry in entries]
        parts.append((Column(key, legend, (key,)), shown))
    shown = [_sent(entry["ours"]["traffic"]) for entry in entries]
    fields = ("down_floats", "up_floats", "down_and_up_bytes")
    parts.append((Column("down + up", "numbers per client and round", fields), shown))
    if any(entry["paper"] and entry["paper"]["traffic"] for entry in entries):
        shown = [_count(entry["paper"] and entry["paper"]["traffic"]) for entry in entries]
        parts.append((Column("paper's cost", "numbers, as printed", ("paper_floats",)), shown))
    columns, cells = zip(*parts, strict=True)
    return Table(tuple(columns), tuple(zip(*cells, strict=True)))


def _weighted(entries: Sequence[CellResult]) -> list[tuple[Column, list[Cell]]]:
    """Lay out the means over test images in the last round."""
    shown = [_text(two_decimals(entry["ours"].get("weighted"))) for entry in entries]
    apart = [_text(signed(difference(entry["ours"], entry["paper"], "weighted"))) for entry in entries]
    return [
        (Column("weighted", "every test image counts once, not every client", ("weighted",)), shown),
        (Column("weighted − paper", "", ("weighted_difference",)), apart),
    ]


def _beside(
    found: Sequence[Ours | None], measures: Sequence[str], whose: str = "ours"
) -> list[tuple[Column, list[Cell]]]:
    """Lay out further measures of the models whose mean is shown, of the table's setting or of the grid's best."""
    parts = []
    for name in (name for name in measures if name in BESIDE):
        shown = [_text(two_decimals(one.get("beside", {}).get(name) if one else None)) for one in found]
        title, legend = (name, BESIDE[name]) if whose == "ours" else (f"best of grid, {name}", "")
        parts.append((Column(title, legend, (f"{whose}_{name}",)), shown))
    return parts


def _best_rounds(entries: Sequence[CellResult], measure: str) -> list[tuple[Column, list[Cell]]]:
    """Lay out the best rounds; where the paper prints those, also their differences, and which of ours is meant."""
    legend = "the highest weighted of any tested round, as received"
    shown = [_text(two_decimals(entry["ours"].get("best_weighted"))) for entry in entries]
    best = Column("best round", legend, ("best_weighted",)), shown
    if measure != "best-round":
        return [best]
    local = [_text(two_decimals(entry["ours"].get("best_local"))) for entry in entries]
    received, trained = (
        [_text(signed(difference(entry["ours"], entry["paper"], name))) for entry in entries]
        for name in ("best-round", "best-local")
    )
    meant = [_text("best round" if compares_best(entry, measure) else "weighted") for entry in entries]
    legend = "the same right after local training: the round's participants as trained, all others as received"
    why = (
        "which of our numbers is measured as the paper's is: the best round, or weighted where the method adapts at "
        "the end, since only the last round is tested as adapted"
    )
    return [
        best,
        (Column("best local", legend, ("best_local",)), local),
        (Column("best local − paper", "", ("best_local_difference",)), trained),
        (Column("beside the paper's", why, ("beside",), False), meant),
        (Column("that − paper", "", ("beside_difference",)), received),
    ]


def _tuned(entries: Sequence[CellResult], measure: str) -> list[tuple[Column, list[Cell]]]:
    """Lay out what `--tune` found, and its difference from the paper by this measure."""
    tuned = [entry["tuned"] for entry in entries]
    chosen = [_text(setting_text(one["setting"]) if one and one["setting"] else NONE) for one in tuned]
    apart = [
        _text(signed(difference(one["ours"], entry["paper"], measure) if one else None))
        for entry, one in zip(entries, tuned, strict=True)
    ]
    legend = "the same with the setting that did best on validation images"
    grid = Column("best of grid", legend, ("tuned", "tuned_std", "tuned_lost"))
    parts = [(grid, _best([one["ours"] if one else None for one in tuned]))]
    if measure in ("weighted", "best-round"):
        shown = [_text(two_decimals(one["ours"].get("weighted") if one else None)) for one in tuned]
        parts.append((Column("best of grid, weighted", "", ("tuned_weighted",)), shown))
    title = {"weighted": "best, weighted − paper", "best-round": "best, best round − paper"}.get(
        measure, "best − paper"
    )
    parts.append((Column(title, "", ("tuned_difference",)), apart))
    return [*parts, (Column("chosen", "", ("chosen",), False), chosen)]


def _text(text: str) -> Cell:
    return Cell(text, ("" if text == NONE else text,))


def _best(found: Sequence[Ours | None], lowest: bool = False) -> list[Cell]:
    """Write every mean ± std, the best in bold if they differ; `lowest` says that lower is better."""
    means = [round(ours["mean"], 2) if ours and ours["mean"] is not None else None for ours in found]
    known, best = {value for value in means if value is not None}, min if lowest else max
    cells = []
    for ours, value in zip(found, means, strict=True):
        text, fields = (_ours(ours), _fields(ours)) if ours else (NONE, ("", "", ""))
        cells.append(Cell(text, fields, best=len(known) > 1 and value == best(known)))
    return cells


def _ours(ours: Ours) -> str:
    """Write mean ± std, and why seeds without a result have none."""
    mean, spread, lost = _fields(ours)
    if not mean:
        return " and ".join(sorted(set(_lost(ours)))) or NONE
    return mean + (f" ± {spread}" if spread else "") + (f" ({lost})" if lost else "")


def _fields(ours: Ours) -> tuple[str, str, str]:
    """Return mean, std and why other seeds have no result; what is missing is an empty text."""
    words = _lost(ours)
    lost = ", ".join(f"{words.count(word)} {word}" for word in sorted(set(words)))
    mean, spread = ("" if value is None else f"{value:.2f}" for value in (ours["mean"], ours["std"]))
    return mean, spread, lost


def _lost(ours: Ours) -> list[str]:
    return [DIVERGED if DIVERGED in sentence else "failed" for sentence in ours["problems"].values()]


def _client(entry: CellResult, number: int) -> Cell:
    ours, paper = entry["ours"]["per_client"], entry["paper"]
    value = ours[number] if number < len(ours) else None
    mine = "" if value is None else f"{value:.2f}"
    printed = paper["per_client"] if paper else []
    theirs = f"{printed[number]:.2f}" if number < len(printed) else ""
    return Cell((mine or NONE) + (f" ({theirs})" if theirs else ""), (mine, theirs))


def _count(value: float | None) -> Cell:
    return _text(NONE) if value is None else Cell(f"{value:,.0f}", (f"{value:.0f}",))


def _sent(traffic: ClientTraffic | None) -> Cell:
    if traffic is None:
        return Cell(NONE, ("", "", ""))
    down, up, size = traffic["down_floats"], traffic["up_floats"], traffic["down_bytes"] + traffic["up_bytes"]
    return Cell(f"{down:,} + {up:,} ({human_bytes(size)})", (str(down), str(up), f"{size:.0f}"))
