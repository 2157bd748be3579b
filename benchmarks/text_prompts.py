"""Prompts before class names: ms a local step on cached features, and FedAPT's fast inference beside its exact one.

    python benchmarks/text_prompts.py                  a small text tower, on any machine
    python benchmarks/text_prompts.py --device cuda    CLIP ViT-B/32's own, 6 clients, DomainNet's 345 classes

Weights and features are random: speed does not depend on what they hold. Names are about as long as DomainNet's: one of
five words, "The Great Wall of China", a few of three, one in six of two, the others of one; each word is a token. So a
text has 20 to 24 tokens: the start token, 16 of context, the name's, the full stop and the end token.
"""

import argparse
import resource
import time
from dataclasses import dataclass, replace

import numpy as np
import torch

from promptfed.backbones.cached import Cached
from promptfed.backbones.clip import CLIP
from promptfed.backbones.clip_checkpoint import ClipArch
from promptfed.backbones.text import TextArch
from promptfed.backbones.transformer import Arch
from promptfed.core import tree
from promptfed.core.method import Method, Task
from promptfed.core.tree import Tree
from promptfed.data.batches import Pool, Shards
from promptfed.data.dataset import Dataset
from promptfed.federation.loop import rng_for
from promptfed.methods.fedapt import FedAPT
from promptfed.methods.promptfl import PromptFL

IMAGE = Arch(768, 1, 12, 32, 3072, (7, 7), eps=1e-5, quick_gelu=True, pre_norm=True, patch_bias=False, projection=512)


@dataclass(frozen=True)
class Size:
    """How large a measurement is; `exact` images are timed and the time is scaled to all of them."""

    tower: TextArch
    clients: int
    classes: int
    batch: int
    steps: int
    images: int
    exact: int


# of the image tower, which is not used, one block is enough
LARGE = Size(TextArch(512, 12, 8, 2048, 49408, 77, 512), 6, 345, 256, 20, 10_000, 256)
SMALL = Size(TextArch(128, 4, 4, 512, 1000, 77, 512), 3, 20, 64, 3, 2_000, 16)


def names_of(count: int) -> tuple[str, ...]:
    """Return as many made-up class names."""
    words = [5, *[3] * (count // 115), *[2] * (count // 6)]
    words += [1] * (count - len(words))
    return tuple(" ".join([f"name{chr(97 + row // 26)}{chr(97 + row % 26)}"] * many) for row, many in enumerate(words))


def task_of(size: Size, device: torch.device, chunk: int) -> Task:
    """Return the classes and a dual encoder with random weights whose images are already features."""
    names = names_of(size.classes)
    net = CLIP.random((3, 224, 224), names, ClipArch(IMAGE, size.tower), chunk=chunk).to(device)
    return Task(Cached(net), names, size.clients)


def shards_for(size: Size, device: torch.device, task: Task) -> Shards:
    """Return random features, as many for every client as its steps need."""
    count = size.clients * size.steps * size.batch
    dataset = Dataset(
        name="made-up",
        images=np.zeros((count, 1, 1, 3), np.uint8),
        labels=np.arange(count) % size.classes,
        test=np.zeros(count, bool),
        classes=task.classes,
        domains=np.arange(count) * size.clients // count,
        domain_names=tuple(map(str, range(size.clients))),
    )
    random = torch.randn(count, size.tower.projection, generator=torch.Generator().manual_seed(0)).to(device)
    rows = np.array_split(np.arange(count), size.clients)
    return Shards(Pool(dataset, device, random), rows, rows, 0, {})


def wait(device: torch.device) -> None:
    """Let the device finish."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def peak_gigabytes(device: torch.device) -> float:
    """Return the most memory that was in use: a GPU's own, or the process's."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def step_seconds(method: Method, task: Task, server: Tree, shards: Shards, size: Size) -> float:
    """Return the seconds of one local step of all clients; the first training, which captures the step, is left out."""
    clients = torch.arange(size.clients)
    down, device = method.download(task, server, clients), shards.pool.x.device
    took = []
    for t in range(3):
        data = shards.data(clients.tolist(), t, stacked=True)
        wait(device)
        began = time.perf_counter()
        method.fit(task, down, {}, data)
        wait(device)
        took.append(time.perf_counter() - began)
    return min(took[1:]) / size.steps


def inference_seconds(method: FedAPT, task: Task, server: Tree, features: torch.Tensor, batch: int) -> float:
    """Return the seconds for all these images, with what is computed once before them."""
    device = features.device
    took = []
    with torch.no_grad():
        for _ in range(3):
            wait(device)
            began = time.perf_counter()
            params = method.prepare(task, server)
            for some in features.split(batch):
                method.predict(task, params, {"x": some})
            wait(device)
            took.append(time.perf_counter() - began)
    return min(took)


def main() -> None:
    """Print two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--chunk", type=int, default=0, help="texts at a time; 0: as many as memory holds")
    args = parser.parse_args()
    device = torch.device(args.device)
    size = LARGE if device.type == "cuda" else SMALL
    torch.set_float32_matmul_precision("high")

    task = task_of(size, device, args.chunk)
    where = f"{torch.cuda.get_device_name()}, bf16" if device.type == "cuda" else "CPU, fp32"
    print(f"text tower {size.tower.width} × {size.tower.depth}, {size.classes} classes, {where}\n")
    print("| method | context | clients | batch | ms a step | peak GB |\n|---|---|--:|--:|--:|--:|")
    fedapt = FedAPT(domains=size.clients, batch=size.batch)
    shared = PromptFL(csc=False, batch=size.batch)
    rows: list[tuple[Method, str]] = [(shared, "one for all classes"), (fedapt, "one for each class")]
    for method, context in rows:
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        server = tree.to(method.init_server(task, rng_for(0, "server")), device)
        seconds = step_seconds(method, task, server, shards_for(size, device, task), size)
        told = f"{size.clients} | {size.batch} | {1000 * seconds:.1f} | {peak_gigabytes(device):.1f}"
        print(f"| {method.name} | {context} | {told} |", flush=True)

    images = torch.randn(size.images, size.tower.projection, generator=torch.Generator().manual_seed(1)).to(device)
    exact = replace(fedapt, inference="exact")
    quick = inference_seconds(fedapt, task, server, images, size.batch)
    slow = inference_seconds(exact, task, server, images[: size.exact], size.batch) * size.images / size.exact
    print(f"\n| inference | s for {size.images:,} images |\n|---|--:|")
    print(f"| fast | {quick:.3f} |\n| exact, from {size.exact} images | {slow:.1f} |")
    print(f"\nfast is {slow / quick:,.0f} times as fast")
    with torch.no_grad():
        few = {"x": images[: size.exact]}
        one_key = fedapt.shares(server, few["x"]).amax(-1) > 1 - 1e-6  # only then they are the same function
        apart = (fedapt.predict(task, server, few) - exact.predict(task, server, few)).abs().amax(-1)
    print(f"logits under one key differ by {apart[one_key].max():.2g} at most, in {int(one_key.sum())} images")


if __name__ == "__main__":
    main()
