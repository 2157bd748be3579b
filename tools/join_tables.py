"""Join the kept parts of one table: rows or columns that were run by separate commands.

    python tools/join_tables.py PART PART … OUT

Each part is a folder as `tools/keep_table.py` writes it. A cell that several parts have is the last one's. All of them
must have been run alike: the same seeds, the same changed keys, the same deviations from the paper.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from promptfed.core.errors import PromptFedError
from promptfed.papers.comparison import CellResult, Comparison, agreement
from promptfed.papers.rendering import read_table, write_table
from promptfed.papers.reproduce import find_table
from promptfed.papers.statistics import table_statistics

ALIKE = ("table", "seeds", "deviations", "measures", "overrides")


def joined(parts: Sequence[Comparison]) -> Comparison:
    """Return one table of all parts' cells, in the table's own order."""
    first = parts[0]
    for other in parts[1:]:
        for key in ALIKE:
            if first.get(key) != other.get(key):
                raise PromptFedError(f"These parts differ in {key}: {first.get(key)} and {other.get(key)}.")
    table = find_table(first["table"])
    found = {(one["column"], one["row"]): one for part in parts for one in part["rows"]}
    order = [(column.name, row.name) for column in table.columns for row in table.rows]
    rows: list[CellResult] = [found[place] for place in order if place in found]
    headings = {one["name"]: one for part in parts for one in part["columns"]}
    outcome: Comparison = {
        **first,
        "columns": [headings[column.name] for column in table.columns if column.name in headings],
        "rows": rows,
        "agreement": agreement(rows, table.measures, ranked=table.ranked),
        "sittings": sorted((one for part in parts for one in part.get("sittings", [])), key=lambda one: one["began"]),
    }
    if table.statistics:
        outcome["statistics"] = table_statistics(rows, table.statistics)
    return outcome


def main(folders: Sequence[Path], out: Path) -> None:
    """Write the joined table and one list of runs."""
    write_table(out, joined([read_table(folder) for folder in folders]))
    runs: dict[str, Any] = {}
    for folder in folders:
        runs |= json.loads((folder / "runs.json").read_text(encoding="utf-8"))
    lines = [f"{json.dumps(name)}: {json.dumps(runs[name])}" for name in sorted(runs)]
    (out / "runs.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    *parts, target = map(Path, sys.argv[1:])
    main(parts, target)
