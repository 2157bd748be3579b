"""Print the tables of docs/results.md from the run summaries committed beside it.

    python tools/results.py

Each summary is the summary.json of one finished run folder: the demo's are named METHOD-seedN.json, those on CIFAR-10
COLUMN-ROW.json. The paper's figures are those of pFedPT's Table 1.
"""

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "docs" / "results"
SEEDS = range(5)
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
    """Return the demo's mean accuracy over clients for every seed."""
    lines = [f"| seed | {' | '.join(map(str, SEEDS))} |", "|---|" + "--:|" * len(SEEDS)]
    means: dict[str, list[float]] = {}
    for method, title in (("local", "Local"), ("fedavg", "FedAvg"), ("pfedpt", "pFedPT")):
        found = [summary("demo", f"{method}-seed{seed}") for seed in SEEDS]
        means[method] = [100 * one["accuracy"]["mean"] for one in found if one]
        lines.append(f"| {title} | {' | '.join(f'{mean:.2f}' for mean in means[method])} |")
    gains = [ours - theirs for ours, theirs in zip(means["pfedpt"], means["fedavg"], strict=True)]
    return [*lines, f"| pFedPT above FedAvg | {' | '.join(f'{gain:+.2f}' for gain in gains)} |", ""]


def main() -> None:
    """Print all tables."""
    print("\n".join(demo_table()))
    for column in COLUMNS:
        print("\n".join(table(column)))


if __name__ == "__main__":
    main()
