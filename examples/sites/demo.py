"""A coordinator and four sites on one machine, each in its own process, with mutual TLS: `make sites-demo`.

Each site has the photographs of one of the four shops of the embedded data set. docs/deploying.md does the same by
hand, on five machines.
"""

import argparse
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from PIL import Image

from promptfed.data import open_dataset

HERE = Path(__file__).parent
PROMPTFED = [sys.executable, "-m", "promptfed", "sites"]


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return int(one.getsockname()[1])


def write_data(folder: Path, limit: int) -> list[str]:
    """Write each shop's photographs to its own file, and one of its test photographs as a PNG."""
    data = open_dataset("fashion-shops", limit=limit)
    for number, shop in enumerate(data.domain_names):
        train, test = ((data.domains == number) & part for part in (~data.test, data.test))
        np.savez(
            folder / f"{shop}.npz",
            x_train=data.images[train],
            y_train=data.labels[train],
            x_test=data.images[test],
            y_test=data.labels[test],
            class_names=np.array(data.classes),
        )
        Image.fromarray(data.images[test][0]).save(folder / f"{shop}.png")
    return list(data.domain_names)


def main() -> None:
    """Make kits, start everything, run, stop everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/sites-demo"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit", type=int, default=20, help="training photographs per class and site")
    given = parser.parse_args()
    out: Path = given.out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    shops = write_data(out, given.limit)
    text = (HERE / "fed.toml").read_text(encoding="utf-8")
    for key in ("port", "admin_port"):
        text = re.sub(rf"(?m)^{key} = \d+", f"{key} = {free_port()}", text)
    (out / "fed.toml").write_text(text, encoding="utf-8")
    subprocess.run([*PROMPTFED, "init", "fed.toml"], cwd=out, check=True)
    started = [start(out, "server", "start")]
    try:
        for shop in shops:
            started.append(start(out, shop, "join", f"federation/kits/{shop}.zip", "--data", f"{shop}.npz"))
        words = ["pfedpg", f"rounds={given.rounds}", "method.epochs=1", "evaluate.after=false", "--out", "run"]
        subprocess.run([*PROMPTFED, "run", *words], cwd=out, check=True)
        (run,) = (out / "federation/kits/street/state/runs").iterdir()
        print("What the model of the site street predicts for a photograph of that shop:", flush=True)
        subprocess.run([*PROMPTFED[:-1], "predict", run.relative_to(out), "street.png"], cwd=out, check=True)
        print(f"What left a site: {out / 'federation/kits/street/state/audit.jsonl'}")
        print(f"The report: {out / 'run/report.html'}")
    finally:
        for process in reversed(started):
            process.send_signal(signal.SIGTERM)
        for process in started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)


def start(out: Path, name: str, *words: str) -> "subprocess.Popen[bytes]":
    """Start a command in the background."""
    with (out / f"{name}.out").open("wb") as log:
        # one thread each: five parties share this machine
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        return subprocess.Popen([*PROMPTFED, *words], cwd=out, env=environment, stdout=log, stderr=log)


if __name__ == "__main__":
    began = time.monotonic()
    main()
    print(f"The whole demo took {time.monotonic() - began:.0f} seconds.")
