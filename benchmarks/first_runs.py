"""How long `promptfed run METHOD` takes with no other word: all methods, or those named, one after another.

Each run is a process of its own with an empty run folder, as a person would start it. Beside the seconds that pass it
prints those of all cores together: on a machine that does other things too, these over the number of cores are the
better guide.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from promptfed.runs import catalogue


def timed(method: str, folder: Path) -> tuple[float, float]:
    """Return the seconds that a bare run of a method takes, and those of all cores together."""
    before, start = os.times(), time.perf_counter()
    command = [sys.executable, "-m", "promptfed", "run", method, "--out", str(folder / method)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    passed, after = time.perf_counter() - start, os.times()
    if done.returncode:
        sys.exit(f"promptfed run {method} ended with {done.returncode}: {done.stderr.strip()}")
    worked = after.children_user + after.children_system - before.children_user - before.children_system
    return passed, worked


def main() -> None:
    """Print one row per method as it is measured, and the slowest last."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("methods", nargs="*", help="methods to run; all if none is named")
    named = parser.parse_args().methods or catalogue.method_names()
    print("| method | seconds | core seconds |\n|---|--:|--:|")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for method in named:
            rows.append((*timed(method, Path(folder)), method))
            print(f"| {method} | {rows[-1][0]:.0f} | {rows[-1][1]:.0f} |", flush=True)
    print(f"\nslowest of {len(rows)}: {max(rows)[2]}, {max(rows)[0]:.0f} s")


if __name__ == "__main__":
    main()
