"""Print the tables of the pages in docs/results from the files committed beside them.

    python tools/results.py            # of all pages
    python tools/results.py pfedpg     # of one

A summary is the summary.json of one finished run folder: those of the demo and of frames are named METHOD-seedN.json,
pFedPT's on CIFAR-10 COLUMN-ROW.json; the paper's figures are those of its Table 1. Of everything else there is the
table.json of each table, as `promptfed reproduce` writes it, with the paper's figures, and for RELIC measured.json
beside it with what `promptfed quality` and `promptfed audit` found.
"""

import json
import re
import sys
from collections.abc import Collection
from statistics import mean
from typing import Any

from fedapt_results import fedapt_tables
from field_results import field_page
from relic_results import RELIC, audit_table, rates_table, relic_table, words_table
from result_cells import RESULTS, best_rate, markdown, outcome, seeds, signed, spread, two

from promptfed.papers.statistics import standard_error

SEEDS = range(5)
DEMO_SEEDS = range(3)
ROWS = {"local": "Local", "fedavg": "FedAvg", "pfedpt": "pFedPT, 2-pixel frame", "pfedpt4": "pFedPT, 4-pixel frame"}
COLUMNS = {
    "dirichlet": "Dirichlet 0.3, split as the authors' code does",
    "dirichlet-balanced": "Dirichlet 0.3, each class divided by one draw, train and test alike",
    "pathological": "Pathological 5, split as the authors' code does (two blocks of classes, two giant clients)",
    "pathological-balanced": "Pathological 5, random classes and equal clients, as the paper's text says",
    "iid-balanced": "IID, equal clients, as the paper's text says",
}
PAPER = {
    "dirichlet": {"local": 73.98, "fedavg": 61.92, "pfedpt": 80.83},
    "pathological": {"local": 70.76, "fedavg": 63.62, "pfedpt": 81.16},
    "iid": {"local": 39.04, "fedavg": 67.13, "pfedpt": 66.09},
}
# pFedPG's tables by their folder; CIFAR has one per rate
PFEDPG = ("pfedpg-office", "pfedpg-server", "pfedpg-generator", "pfedpg-k", "pfedpg-dermoscopic")
GRIDS = ("pfedpg-office", "pfedpg-dermoscopic")
CIFAR = {
    "c10-disjoint": ("pfedpg-cifar10", "pfedpg-cifar10-0.01"),
    "c10-dirichlet": ("pfedpg-cifar10", "pfedpg-cifar10-0.01"),
    "c100-disjoint": ("pfedpg-cifar100-0.01",),
    "c100-dirichlet": ("pfedpg-cifar100-0.01",),
}

PFEDPT = (
    "pfedpt-t1-cifar10",
    "pfedpt-t1-cifar100",
    "pfedpt-t1-cifar10-vit",
    "pfedpt-t7-cifar10",
    "pfedpt-t8-cifar10",
)
# Table 1 again, on the authors' own clients and measured as they measure
AUTHORS = ("pfedpt-t1-authors-dirichlet", "pfedpt-t1-authors-iid", "pfedpt-t1-authors-pathological")
NEAR = 2  # points
VARIANTS = "pfedpt-t1-variants"
# those of our own comparison that pFedPG's page shows as well
PROMPTED = ("head-probe", "singleset-vpt", "fedavg", "fedrep", "fedvpt", "pfedpg")
PERSONAL, PRINTED = ("pfedvpt-personal", "pfedvpt-dermoscopic"), "office-prompts"
# Table 2 with the prompt; without it, its cells are those of Table 1
PLUGIN, ALONE = "pfedpt-t2-cifar10", "pfedpt-t1-cifar10"
FEDAPT = "fedapt-office"


def summary(folder: str, name: str) -> dict[str, Any] | None:
    """Return a run's summary, if it was run."""
    path = RESULTS / folder / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def table(column: str) -> list[str]:
    """Return one column of Table 1 as a Markdown table."""
    lines = [
        f"**{COLUMNS[column]}**",
        "",
        "| method | paper | ours, mean of clients | sample-weighted | worst client | best round | after training |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for row, title in ROWS.items():
        found = summary("pfedpt-cifar10", f"{column}-{row}")
        if found is None:
            continue
        accuracy = found["accuracy"]
        paper = PAPER[column.removesuffix("-balanced")].get(row.removesuffix("4"), "") if row != "pfedpt4" else ""
        shown = [accuracy["mean"], accuracy["weighted"], accuracy["worst"]]
        best = f"{100 * accuracy['best_mean']:.2f} @ {accuracy['best_round']}"
        cells = [f"{100 * value:.2f}" for value in shown] + [best, f"{100 * accuracy['after']['mean']:.2f}"]
        lines.append(f"| {title} | {paper} | {' | '.join(cells)} |")
    return [*lines, ""]


def demo_table() -> list[str]:
    """Return the demo's mean accuracy over clients, and the worst client's, for every seed."""
    lines = [f"| mean / worst client, seed | {' | '.join(map(str, DEMO_SEEDS))} |", "|---|" + "--:|" * len(DEMO_SEEDS)]
    for method, title in (("alone", "alone, own head"), ("fedavg", "FedAvg"), ("prompts", "pFedVPT")):
        found = [(summary("demo", f"{method}-seed{seed}") or {})["accuracy"] for seed in DEMO_SEEDS]
        cells = [f"{100 * one['mean']:.2f} / {100 * one['worst']:.2f}" for one in found]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return [*lines, ""]


def frames_table() -> list[str]:
    """Return the mean accuracy over clients of the comparison of frames for every seed."""
    lines = [f"| seed | {' | '.join(map(str, SEEDS))} |", "|---|" + "--:|" * len(SEEDS)]
    means: dict[str, list[float]] = {}
    for method, title in (("local", "Local"), ("fedavg", "FedAvg"), ("pfedpt", "pFedPT")):
        found = [summary("frames", f"{method}-seed{seed}") for seed in SEEDS]
        means[method] = [100 * one["accuracy"]["mean"] for one in found if one]
        lines.append(f"| {title} | {' | '.join(f'{mean:.2f}' for mean in means[method])} |")
    gains = [ours - theirs for ours, theirs in zip(means["pfedpt"], means["fedavg"], strict=True)]
    return [*lines, f"| pFedPT above FedAvg | {' | '.join(f'{gain:+.2f}' for gain in gains)} |", ""]


def paper_table(folder: str) -> list[str]:
    """Return a table of one column: ours beside the paper's and, where a grid was tried, its best."""
    found = outcome(folder)
    rows, printed = found["rows"] + probe(folder), any(entry["paper"] for entry in found["rows"])
    parts = [("method", [entry["title"] for entry in rows]), ("seeds", [seeds(entry["ours"]) for entry in rows])]
    if printed:
        parts.append(("paper", [two(entry["paper"] and entry["paper"]["mean"]) for entry in rows]))
    parts.append(("ours", [spread(entry["ours"]) for entry in rows]))
    if printed:
        parts.append(("difference", [signed(entry["difference"]) for entry in rows]))
    if any(entry["tuned"] for entry in rows):
        parts.append(("best of grid", [spread(entry["tuned"] and entry["tuned"]["ours"]) for entry in rows]))
        parts.append(("difference", [signed(entry["tuned"] and entry["tuned"]["difference"]) for entry in rows]))
        parts.append(("its rate", [best_rate(entry["tuned"]) for entry in rows]))
    parts.append(("as received", [two(entry["ours"]["before"]) for entry in rows]))
    return markdown(found["title"], parts)


def pfedpt_table(folder: str, column: str) -> list[str]:
    """Return one column of a table of pFedPT's, counted both ways: as its authors do, and every client once."""
    found = outcome(folder)
    title = next(one["title"] for one in found["columns"] if one["name"] == column)
    rows = [one for one in found["rows"] if one["column"] == column]
    weighted = [one["ours"]["weighted"] for one in rows]
    parts = [
        ("method", [one["title"] for one in rows]),
        ("paper", [two(one["paper"]["mean"]) for one in rows]),
        ("ours, sample-weighted", [two(value) for value in weighted]),
        ("difference", [signed(value - one["paper"]["mean"]) for value, one in zip(weighted, rows, strict=True)]),
        ("ours, mean of clients", [spread(one["ours"]) for one in rows]),
        ("difference", [signed(one["difference"]) for one in rows]),
        ("best round, as received", [two(one["ours"]["best_weighted"]) for one in rows]),
    ]
    return markdown(f"{found['title']}, {title}", parts)


def authors_table(folder: str) -> list[str]:
    """Return a column on the authors' own clients: the number measured as theirs, then our own ways of measuring."""
    found = outcome(folder)
    rows = found["rows"]
    ours = [one["ours"] for one in rows]
    alike = [one["weighted"] if one["adapted"] else one["best_weighted"] for one in ours]
    parts = [
        ("method", [one["title"] for one in rows]),
        ("paper", [two(one["paper"]["mean"]) for one in rows]),
        ("ours, measured alike", [two(value) for value in alike]),
        ("difference", [signed(value - one["paper"]["mean"]) for value, one in zip(alike, rows, strict=True)]),
        ("that is", ["last round, tuned" if one["adapted"] else "best round" for one in ours]),
        ("best local", [two(one["best_local"]) for one in ours]),
        ("last round, sample-weighted", [two(one["weighted"]) for one in ours]),
        ("last round, mean of clients", [two(one["mean"]) for one in ours]),
    ]
    return markdown(f"{found['title']}, {found['columns'][0]['title']}, the authors' own clients", parts)


def near_table() -> list[str]:
    """Return how many cells on the authors' own clients are within two points of the print, by when they are tested."""
    columns: list[str] = []
    found: dict[str, list[tuple[int, int]]] = {"as received, the best round": [], "adapted, after the last round": []}
    for folder in AUTHORS:
        columns.append(outcome(folder)["columns"][0]["title"].removesuffix(", CNN"))
        rows = outcome(folder)["rows"]
        for adapted, cells in zip((False, True), found.values(), strict=True):
            ours = [(one["ours"], one["paper"]["mean"]) for one in rows if one["ours"]["adapted"] is adapted]
            gaps = [one["weighted" if adapted else "best_weighted"] - paper for one, paper in ours]
            cells.append((sum(abs(gap) < NEAR for gap in gaps), len(gaps)))
    parts = [("tested", list(found))]
    for number, column in enumerate(columns):
        parts.append((column, [f"{cells[number][0]} of {cells[number][1]}" for cells in found.values()]))
    parts.append(("all", ["{} of {}".format(*map(sum, zip(*cells, strict=True))) for cells in found.values()]))
    return markdown("Cells within two points of the print, on the authors' own clients", parts)


def variants_table() -> list[str]:
    """Return what fine-tuning FedAvg in several ways gives, column by column, beside what is printed."""
    found = outcome(VARIANTS)
    titles = {one["row"]: one["title"] for one in found["rows"]}
    parts = [("method", list(titles.values()))]
    for column in found["columns"]:
        rows = {one["row"]: one for one in found["rows"] if one["column"] == column["name"]}
        title = column["title"].removesuffix(", CNN")
        parts.append((f"{title}, paper", [two(rows[name]["paper"]["mean"]) for name in titles]))
        parts.append((title, [two(rows[name]["ours"]["weighted"]) for name in titles]))
    return markdown("FedAvg, fine-tuned after the last round, on the authors' own clients", parts)


def personal_table(folder: str, column: str, only: Collection[str] = ()) -> list[str]:
    """Return what is built from a frozen backbone's parts: each at its best rate, its worst client, its bytes."""
    found = outcome(folder)
    title = next(one["title"] for one in found["columns"] if one["name"] == column)
    runs = json.loads((RESULTS / folder / "runs.json").read_text(encoding="utf-8")).values()
    rows = [one for one in found["rows"] if one["column"] == column and one["tuned"]["ours"]["mean"] is not None]
    rows = [one for one in rows if not only or one["row"] in only]
    tuned = [one["tuned"]["ours"] for one in rows]
    worst = []
    for ours in tuned:
        hashes = {(recipe, int(seed)) for seed, recipe in ours["recipe_hashes"].items()}
        each = [min(run["per_client"]) for run in runs if (run["recipe_hash"], run["seed"]) in hashes]
        worst.append(100 * mean(each))
    alone = next(ours for one, ours in zip(rows, tuned, strict=True) if one["row"] == "head-probe")
    parts = [
        ("method", [one["title"] for one in rows]),
        ("mean, ± over seeds", [spread(ours) for ours in tuned]),
        ("− own head, ± s.e.", ["" if ours is alone else paired(ours, alone) for ours in tuned]),
        ("worst client", [two(value) for value in worst]),
        ("its rate", [best_rate(one["tuned"]) for one in rows]),
        ("at rate 0.1", [two(one["ours"]["mean"]) if one["row"] not in ("fedavg", "fedrep") else "" for one in rows]),
        ("numbers sent a round", [f"{ours['traffic']['up_floats']:,}" for ours in tuned]),
    ]
    return markdown(title, parts)


def paired(ours: dict[str, Any], other: dict[str, Any]) -> str:
    """Return how far one row is above another, seed by seed, with the standard error of that mean."""
    gaps = [value - other["by_seed"][seed] for seed, value in ours["by_seed"].items()]
    return f"{mean(gaps):+.2f} ± {standard_error(gaps):.2f}"


def further_rows() -> list[str]:
    """Return the rows of Office-Caltech10 whose runs were not kept: what `promptfed reproduce` printed of them."""
    rows = []
    for path in sorted((RESULTS / PRINTED).glob("*.txt")):
        printed = [line.strip("| ").split(" | ") for line in path.read_text("utf-8").splitlines() if line[:2] == "| "]
        head, *found = printed
        mine = next(name for name in ("best of grid", "ours") if name in head)
        deviation = re.search(r"`method.lr`: \S+ → (\S+)\.$", path.read_text("utf-8"), re.MULTILINE)
        for row in found:
            cells = dict(zip(head, (cell.replace("**", "") for cell in row), strict=True))
            rate = deviation[1] if deviation else cells["chosen"].removeprefix("lr=")
            rows.append((cells["method"], cells[mine], rate, cells["down + up"].split(" + ")[0]))
    names = ("method", "mean, ± over seeds", "its rate", "numbers sent a round")
    title = "Office-Caltech10 at 224 pixels, further rows"
    return markdown(title, list(zip(names, map(list, zip(*rows, strict=True)), strict=True)))


def plugin_table(column: str) -> list[str]:
    """Return one column of pFedPT's Table 2: every method without and with the prompt, and what the prompt adds."""
    found, plain = outcome(PLUGIN), outcome(ALONE)
    title = next(one["title"] for one in found["columns"] if one["name"] == column)
    same = {one["row"]: one for one in plain["rows"] if one["column"] == f"{column.removeprefix('c10-')}-cnn"}
    pairs = [
        (same[one["row"].removesuffix("-pt")], one)
        for one in found["rows"]
        if one["column"] == column and one["ours"]["mean"] is not None
    ]
    parts = [("method", [without["title"] for without, _ in pairs])]
    kinds = (("paper", "paper", "mean"), ("sample-weighted", "ours", "weighted"), ("mean of clients", "ours", "mean"))
    for name, whose, kind in kinds:
        both = [[one[whose][kind] for one in pair] for pair in pairs]
        parts += [(name, [two(without) for without, _ in both]), ("+PT", [two(its) for _, its in both])]
        parts.append(("adds", [signed(its - without) for without, its in both]))
    return markdown(f"{found['title']}, {title}", parts)


def order_table(folder: str) -> list[str]:
    """Return how well the order of the methods agrees with the paper's, by column."""
    found = outcome(folder)
    titles = {one["name"]: one["title"] for one in found["columns"]}
    parts = [("clients", [titles[one["column"]] for one in found["agreement"]])]
    for kind, title in (("weighted", "sample-weighted"), ("mean", "mean of clients")):
        parts.append((title, [two(one["rank_correlation"][kind]) for one in found["agreement"]]))
    methods = max(one["methods"] for one in found["agreement"])
    return markdown(f"{found['title']}: rank correlation with the paper's order of the {methods} methods", parts)


def probe(folder: str) -> list[dict[str, Any]]:
    """Return the head probe of Table 1 for a table of the same setting that lacks one, at the rate of its clients."""
    if folder not in ("pfedpg-server", "pfedpg-generator", "pfedpg-k"):
        return []
    (found,) = (entry for entry in outcome("pfedpg-office")["rows"] if entry["row"] == "head-probe")
    ours = found["tuned"]["ours"] if folder == "pfedpg-server" else found["ours"]
    return [found | {"title": "head probe, from Table 1", "ours": ours, "tuned": None}]


def grid_table(folder: str) -> list[str]:
    """Return the validation accuracy of every rate that was tried, seed 0; a row's best is bold."""
    found = outcome(folder)
    grids = {entry["title"]: entry["tuned"]["grid"] for entry in found["rows"] if entry["tuned"]}
    grids = {title: grid for title, grid in grids.items() if any(one["validation"] is not None for one in grid)}
    rates = sorted({rate for grid in grids.values() for one in grid for rate in one["setting"].values()})
    parts: list[tuple[str, list[str]]] = [("method", list(grids))]
    for rate in rates:
        parts.append((f"{rate:g}", [_validated(grid, rate) for grid in grids.values()]))
    return markdown(f"{found['title']}: validation images, by rate", parts)


def _validated(grid: list[dict[str, Any]], rate: float) -> str:
    """Write the accuracy of one rate of a grid, bold if it is the best; nothing if it was not tried."""
    tried = {one["setting"]["method.lr"]: one for one in grid}
    if rate not in tried:
        return ""
    if (score := tried[rate]["validation"]) is None:
        return "diverged" if "diverged" in tried[rate]["problem"] else "failed"
    best = max(one["validation"] for one in grid if one["validation"] is not None)
    return f"**{score:.2f}**" if score == best else f"{score:.2f}"


def cifar_table(column: str) -> list[str]:
    """Return one column of Table 2: the paper's, then ours under each rate that was run."""
    found = [outcome(folder) for folder in CIFAR[column]]
    entries = [{one["row"]: one for one in each["rows"] if one["column"] == column} for each in found]
    rows = list(entries[0].values())
    title = next(one["title"] for one in found[0]["columns"] if one["name"] == column)
    parts = [
        ("method", [one["title"] for one in rows]),
        ("paper", [two(one["paper"] and one["paper"]["mean"]) for one in rows]),
    ]
    for number, folder in enumerate(CIFAR[column]):
        rate = "rate 0.01" if folder.endswith("0.01") else "the paper's rate"
        ours = [entries[number].get(one["row"], {}).get("ours") for one in rows]
        parts.append((f"ours, {rate}", [spread(one) for one in ours]))
        parts.append(("as received", [two(one and one["before"]) for one in ours]))
    return markdown(title, parts)


def demo_page() -> list[list[str]]:
    """Return the tables of the overview."""
    return [demo_table(), frames_table()]


def pfedvpt_page() -> list[list[str]]:
    """Return our own comparison, column by column."""
    tables = [personal_table(folder, one["name"]) for folder in PERSONAL for one in outcome(folder)["columns"]]
    return [*tables, further_rows()]


def pfedpt_page() -> list[list[str]]:
    """Return pFedPT's tables: three methods on five splits, then the paper's own tables."""
    tables = [*map(authors_table, AUTHORS), near_table(), variants_table(), *map(table, COLUMNS)]
    tables += [pfedpt_table(folder, one["name"]) for folder in PFEDPT for one in outcome(folder)["columns"]]
    tables += [plugin_table(one["name"]) for one in outcome(PLUGIN)["columns"]]
    return tables + [order_table(folder) for folder in PFEDPT if "-t8-" not in folder]  # which has two methods


def pfedpg_page() -> list[list[str]]:
    """Return pFedPG's tables."""
    tables = [paper_table(folder) for folder in PFEDPG] + [grid_table(folder) for folder in GRIDS]
    shown = (("pfedvpt-personal", "office"), ("pfedvpt-dermoscopic", "dermoscopic"))
    tables += [personal_table(folder, column, PROMPTED) for folder, column in shown]
    return tables + [cifar_table(column) for column in CIFAR]


def fedapt_page() -> list[list[str]]:
    """Return FedAPT's tables: Office-Caltech10, then the embedded images."""
    return [paper_table(FEDAPT), grid_table(FEDAPT), *fedapt_tables()]


def relic_page() -> list[list[str]]:
    """Return RELIC's tables."""
    columns = [one["name"] for one in outcome(RELIC)["columns"]]
    quality = [*map(relic_table, columns), rates_table(), *map(words_table, columns)]
    return [*quality, audit_table()]


PAGES = {
    "index": demo_page,
    "pfedpt": pfedpt_page,
    "pfedpg": pfedpg_page,
    "fedapt": fedapt_page,
    "relic": relic_page,
    "pfedvpt": pfedvpt_page,
    "field": field_page,
}


def main(names: list[str]) -> None:
    """Print the tables of the named pages, or of all."""
    for name in names or PAGES:
        for lines in PAGES[name]():
            print("\n".join(lines))


if __name__ == "__main__":
    main(sys.argv[1:])
