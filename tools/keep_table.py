"""Keep the results of a table small enough to commit: table.json, table.md, and runs.json with one line per run.

What `promptfed quality` and `promptfed audit` measured is kept in measured.json, and how a method sorts test images by
domain in domains.json.

    python tools/keep_table.py runs/pfedpg-t1-office docs/results/pfedpg-office

`tools/results.py` prints the tables of the pages in docs/results from these files.
"""

import json
import shutil
import sys
from pathlib import Path

from promptfed.core.files import unsealed
from promptfed.papers.comparison import headline, with_quality

COUNTS = ("domains", "keys", "count", "chosen", "right", "correct")  # of domains.json


def keep(table: Path, out: Path) -> int:
    """Copy a finished table's files from the folder of its runs; return how many runs it has."""
    out.mkdir(parents=True, exist_ok=True)
    for name in ("table.json", "table.md"):
        shutil.copy(table / name, out / name)
    measure = json.loads((table / "table.json").read_text(encoding="utf-8"))["measures"][0]
    lines, measured, domains = [], {}, []
    for path in sorted(table.rglob("summary.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        shown = headline(with_quality(found, path.parent), measure)
        line = {key: found[key] for key in ("seed", "rounds", "recipe_hash")}
        line |= {"mean": _short(shown["mean"]), "per_client": [_short(value) for value in shown["per_client"]]}
        name = path.parent.relative_to(table).as_posix()
        lines.append(f"{json.dumps(name)}: {json.dumps(line | {'seconds': found['seconds']})}")
        files = {kind: path.parent / f"{kind}.json" for kind in ("quality", "audit")}
        measured[name] = {kind: json.loads(file.read_text("utf-8")) for kind, file in files.items() if file.exists()}
        if (file := path.parent / "domains.json").exists() and not name.startswith("tune/"):
            counts = unsealed(file.read_text(encoding="utf-8"))
            domains.append(f"{json.dumps(name)}: {json.dumps({key: counts[key] for key in COUNTS})}")
    _write(out / "runs.json", lines)
    if domains:
        _write(out / "domains.json", domains)
    if any(measured.values()):
        (out / "measured.json").write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    return len(lines)


def _write(path: Path, lines: list[str]) -> None:
    """Write one object, a line per run."""
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


if __name__ == "__main__":
    print(f"{keep(Path(sys.argv[1]), Path(sys.argv[2]))} runs")
