"""Seconds a round on pfl-research's own Table 1 benchmark (FedAvg, 1,000 users × 50 images, 50 a round, batch 10).

    python benchmarks/pfl_table1.py [--rounds 100] [--device cuda]

Runs our recipe benchmark/pfl-cifar10 on made-up images, its evaluation every ten rounds counted in. Where pfl-research
is installed the same training runs on it too, in the same process.
"""

import argparse
import importlib.util
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from round_speed import loop_of, made_up

from promptfed.data.dataset import Dataset
from promptfed.runs import planning


def with_test(data: Dataset, share: float) -> Dataset:
    """Return `data` with its last images as the test set."""
    return replace(data, test=np.arange(len(data)) >= len(data) * (1 - share))


def ours(rounds: int, device: str, every: int) -> float:
    """Return seconds a round with an evaluation every so many, after first rounds that capture the step."""
    data = with_test(made_up(60_000), 1 / 6)
    with tempfile.TemporaryDirectory() as folder:
        words = [f"device={device}", f"rounds={rounds + 1000}", f"evaluate.every={every}", "checkpoint_seconds=3600"]
        loop = loop_of(words, "benchmark/pfl-cifar10", data, Path(folder) / "run")
        torch.set_float32_matmul_precision("high")

        def stretch(first: int, last: int) -> float:
            began = time.perf_counter()
            for t in range(first, last):
                loop.server, _ = loop.round(t)
            if device == "cuda":
                torch.cuda.synchronize()
            return time.perf_counter() - began

        stretch(0, 10)
        return stretch(10, 10 + rounds) / rounds


def theirs(rounds: int) -> float:
    """Return pfl-research's seconds a round for the same training, without its evaluations."""
    from pfl_side import seconds_a_round

    return seconds_a_round(rounds)


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    device = planning.pick_device(args.device).type
    whole, plain = (ours(args.rounds, device, every) for every in (10, args.rounds + 500))
    print("| simulator | s a round, evaluation every 10 rounds | without evaluation |\n|---|--:|--:|")
    print(f"| PromptFed, stacked, {device} | {whole:.4f} | {plain:.4f} |")
    if importlib.util.find_spec("pfl") is None:
        print("pfl-research is not installed here; with it (pip install pfl[pytorch]) its row would stand beside ours.")
    else:
        print(f"| pfl-research | | {theirs(args.rounds):.4f} |")


if __name__ == "__main__":
    main()
