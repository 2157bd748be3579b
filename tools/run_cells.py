"""Run many recipes side by side as processes; finished ones are skipped, stopped ones go on, a table comes last.

    python tools/run_cells.py --out runs/table1 --workers 6 CELL ...

A CELL is `NAME: RECIPE KEY=VALUE ...`; the run folder is OUT/NAME. One run leaves a large GPU mostly idle.
"""

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from promptfed.results.report import compare, read_run


def run_cell(out: Path, cell: str) -> str:
    """Run one cell and return a line about it."""
    name, _, words = cell.partition(":")
    folder = out / name.strip()
    if (folder / "summary.json").exists():
        return f"{name}: already finished"
    place = ["--resume", str(folder)] if (folder / "recipe.toml").exists() else ["--out", str(folder)]
    command = [sys.executable, "-m", "promptfed", "run", *([] if place[0] == "--resume" else words.split()), *place]
    began = time.monotonic()
    # one thread per process: the GPU does the work, and many processes share the cores
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False
    )
    last = (done.stderr or done.stdout).strip().splitlines()[-1:] if done.returncode else []
    return f"{name}: exit {done.returncode}, {time.monotonic() - began:.0f} s {' '.join(last)}"


def main() -> None:
    """Run the cells and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", nargs="+", metavar="CELL")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    with ThreadPoolExecutor(args.workers) as pool:
        for line in pool.map(lambda cell: run_cell(args.out, cell), args.cells):
            print(line, flush=True)
    folders = [args.out / cell.partition(":")[0].strip() for cell in args.cells]
    print(compare([read_run(folder) for folder in folders if (folder / "rounds.jsonl").exists()]).to_markdown())


if __name__ == "__main__":
    main()
