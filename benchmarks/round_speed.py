"""Seconds a round: pFedPT and FedAvg on made-up CIFAR-shaped images, beside a plain PyTorch loop of the same training.

    python benchmarks/round_speed.py [--device cuda] [--backbone cnn vit-tiny] [--clients 10] [--images 900]

The training is the pFedPT paper's: 10 clients a round, 900 images each, batch 16, 5 + 5 epochs.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from promptfed.core import keys
from promptfed.data.dataset import Dataset
from promptfed.data.partition import make_partition
from promptfed.federation.loop import Loop
from promptfed.results.folder.record import Record
from promptfed.runs import config, planning


def made_up(images: int) -> Dataset:
    """Return random images: speed does not depend on what they show."""
    rng = np.random.default_rng(0)
    return Dataset(
        name="made-up",
        images=rng.integers(0, 256, (images, 32, 32, 3), np.uint8),
        labels=np.arange(images) % 10,
        test=np.zeros(images, bool),
        classes=tuple("0123456789"),
        domains=np.zeros(images, np.int64),
        domain_names=("one",),
    )


def loop_of(words: list[str], name: str, data: Dataset, folder: Path) -> Loop:
    """Return the round loop of a recipe on `data`, divided equally."""
    recipe = config.load(name, words)[0]
    partition = make_partition("iid", {}, data, recipe.clients, 0)
    device = planning.pick_device(recipe.device)
    task = planning.make_task(recipe, data.sides, data.classes, device)
    plan = planning.Plan(recipe, config.build_method(recipe), data, partition, task, device)
    return planning.make_loop(plan, Record.create(folder, recipe.to_toml(), {}))


def seconds_a_round(loop: Loop, rounds: int) -> float:
    """Time training and aggregation, without tests; the first round, which captures the step, is left out."""

    def once(t: int) -> None:
        clients = loop.everyone
        down = loop.method.download(loop.task, loop.server, clients)
        fitted = loop.fleet.fit(t, clients, down, test=False)
        loop.server = loop.method.aggregate(loop.task, loop.server, clients, fitted.up, fitted.weights)
        if loop.device.type == "cuda":
            torch.cuda.synchronize()

    once(0)
    began = time.perf_counter()
    for t in range(1, rounds + 1):
        once(t)
    return (time.perf_counter() - began) / rounds


class Plain(torch.nn.Module):
    """The authors' CNN as anyone would write it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(
            *(torch.nn.Conv2d(3, 32, 5), torch.nn.ReLU(), torch.nn.MaxPool2d(2)),
            *(torch.nn.Conv2d(32, 64, 5), torch.nn.ReLU(), torch.nn.MaxPool2d(2)),
            *(torch.nn.Flatten(), torch.nn.Linear(1600, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        out: torch.Tensor = self.body(x)
        return out


def plain_round(data: Dataset, clients: int, epochs: int, batch: int, device: str) -> float:
    """Time one FedAvg round written as a plain loop: nn.Module, SGD, one client after another."""
    x = (torch.from_numpy(data.images).permute(0, 3, 1, 2).float() / 127.5 - 1).contiguous().to(device)
    y = torch.from_numpy(data.labels).to(device)
    shared = Plain().to(device)
    began = time.perf_counter()
    states = []
    for rows in np.array_split(np.arange(len(data)), clients):
        model = Plain().to(device)
        model.load_state_dict(shared.state_dict())
        optimiser = torch.optim.SGD(model.parameters(), lr=0.005)
        shuffle = keys.generator(0, int(rows[0]))
        for _ in range(epochs):
            order = torch.from_numpy(rows)[torch.randperm(len(rows), generator=shuffle)].to(device)
            for index in order.split(batch):
                optimiser.zero_grad()
                F.cross_entropy(model(x[index]), y[index]).backward()
                optimiser.step()
        states.append(model.state_dict())
    shared.load_state_dict({name: torch.stack([s[name] for s in states]).mean(0) for name in states[0]})
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--backbone", nargs="+", default=["cnn"])
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--images", type=int, default=900)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    data = made_up(args.clients * args.images)
    device = planning.pick_device(args.device).type
    common = [f"clients={args.clients}", f"device={device}", f"method.epochs={args.epochs}", "evaluate.after=false"]
    print(f"{args.clients} clients × {args.images} images, batch 16, {args.epochs} epochs, {device}\n")
    print("| backbone | method | fleet | s a round | images/s |\n|---|---|---|--:|--:|")
    torch.set_float32_matmul_precision("high")
    for backbone in args.backbone:
        for name in ("fedavg", "pfedpt"):
            extra = [f"method.prompt_epochs={args.epochs}"] if name == "pfedpt" else []
            passes = args.epochs * (2 if name == "pfedpt" else 1)
            with tempfile.TemporaryDirectory() as folder:
                loop = loop_of([*common, *extra, f"backbone.name={backbone}"], name, data, Path(folder) / "run")
                seconds = seconds_a_round(loop, args.rounds)
            rate = len(data) * passes / seconds
            print(f"| {backbone} | {name} | {type(loop.fleet).__name__} | {seconds:.3f} | {rate:,.0f} |", flush=True)
    plain_round(made_up(160), 1, 1, 16, device)
    seconds = min(plain_round(data, args.clients, args.epochs, 16, device) for _ in range(2))
    print(f"| cnn | fedavg | a plain PyTorch loop | {seconds:.3f} | {len(data) * args.epochs / seconds:,.0f} |")


if __name__ == "__main__":
    main()
