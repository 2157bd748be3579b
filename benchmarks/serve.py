"""Requests a second and their latency, over few and many tenants, and what a further tenant costs in memory.

    python benchmarks/serve.py [--device cuda --dtype bf16] [--tenants 1 100 10000] [--batch 256] [--seconds 5]
    python benchmarks/serve.py --soak 600 [--bundle DIR] [--workers 2]

On a GPU the network is ViT-B/16 at 224 pixels with random weights, elsewhere a small one. Every tenant has 10 prompt
tokens and a head of its own. Mixed batches and tenant by tenant are measured in one run, over the same images, by
askers who each wait for an answer before they ask again. `--soak` keeps a server saturated over HTTP, which needs the
[serve] extra.
"""

import argparse
import asyncio
import gc
import http.client
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from promptfed.analysis.bundle.contents import Bundle, BundledFile
from promptfed.backbones.pretrained import ViT
from promptfed.core import tree
from promptfed.core.method import Task
from promptfed.data.dataset import Images
from promptfed.methods.fedvpt import FedVPT
from promptfed.serving import mixed
from promptfed.serving.batcher import Answer, Batcher
from promptfed.serving.graphs import Recorded
from promptfed.serving.opened import ServedBundle, map_tensors

LARGE = (768, 12, 12, 16)  # width, depth, heads, patch
SMALL = (64, 3, 4, 8)
CLASSES, TOKENS = 10, 10
WARM = 1.0  # seconds that are not counted


def make_served(folder: Path, tenants: int, device: torch.device, dtype: str, side: int) -> ServedBundle:
    """Return a bundle of so many tenants, whose rows lie in a file as a real bundle's do."""
    width, depth, heads, patch = LARGE if side == 224 else SMALL
    arch = {"width": width, "depth": depth, "heads": heads, "patch": patch}
    precision = "bf16" if dtype == "bf16" else "fp32"
    backbone = ViT.random((3, side, side), CLASSES, precision=precision, **arch).to(device)  # type: ignore[arg-type]
    shapes = {"prompt": (TOKENS, width), "head.weight": (CLASSES, width), "head.bias": (CLASSES,)}
    path = folder / f"{tenants}.safetensors"
    if not path.exists():
        draw = torch.Generator().manual_seed(0)
        save_file({name: torch.randn(tenants, *shape, generator=draw) / 10 for name, shape in shapes.items()}, path)
    file, classes = BundledFile(path.name, 0, ""), tuple(map(str, range(CLASSES)))
    grey = (0.5, 0.5, 0.5)
    name = {"name": "fedvpt"}
    about = Bundle(
        "", name, {}, {}, "", classes, (side, side), grey, grey, 0, 1, tenants, tuple(shapes), {}, file, file
    )
    return ServedBundle(
        folder=folder,
        about=about,
        method=FedVPT(),
        task=Task(backbone, classes, tenants),
        device=device,
        shared={},
        rows=map_tensors(path),
        facts={"client": torch.arange(tenants, device=device)},
        draws={},
        salts={},
        pixels=tuple(torch.tensor(part, device=device) for part in ([1 / 127.5] * 3, [-1.0] * 3)),  # type: ignore[arg-type]
        order={tenant: tenant for tenant in range(tenants)},
        sums=(),
        checked=set(range(tenants)),
    )


# -- askers -----------------------------------------------------------------------------------------------------------


async def ask_all(answer: Answer, served: ServedBundle, askers: int, batch: int, seconds: float) -> list[float]:
    """Return the seconds that every request took while so many askers kept on asking."""
    tenants, shape = len(served.order), served.about.shape
    images = np.random.default_rng(0).integers(0, 256, (64, *shape, 3), np.uint8)
    batcher = Batcher(answer, batch, askers)
    running = asyncio.create_task(batcher.run())
    start, took = time.monotonic(), []

    async def asker(number: int) -> None:
        draw = np.random.default_rng(number)
        while (began := time.monotonic()) < start + WARM + seconds:
            place = int(draw.integers(64))
            await batcher.ask(served, int(draw.integers(tenants)), images[place : place + 1], 600)
            if began > start + WARM:
                took.append(time.monotonic() - began)

    await asyncio.gather(*(asker(number) for number in range(askers)))
    running.cancel()
    return took


def speed(answer: Answer, served: ServedBundle, batch: int, seconds: float) -> float:
    """Return the images a second of full batches, with nothing around the backbone."""
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (batch, *served.about.shape, 3), np.uint8)
    rows = draw.integers(0, len(served.order), batch).tolist()
    for _ in range(3):
        answer(served, rows, images)
    start, done = time.monotonic(), 0
    while time.monotonic() < start + seconds:
        answer(served, rows, images)
        done += batch
    return done / (time.monotonic() - start)


# -- memory -----------------------------------------------------------------------------------------------------------


def status(kind: str, process: int | str = "self") -> int:
    """Return a line of Linux's account of a process's memory, in bytes."""
    for line in Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{kind}:"):
            return 1024 * int(line.split()[1])
    return 0


def touch(served: ServedBundle, batch: int) -> None:
    """Ask for every tenant's row once."""
    for first in range(0, len(served.order), batch):
        served.gather(list(range(first, min(first + batch, len(served.order)))))


def memory(folder: Path, few: int, many: int, device: torch.device, dtype: str, side: int) -> tuple[float, float]:
    """Return the private and the mapped bytes that a further tenant takes once all rows have been used."""
    held = []
    make_served(folder, many, device, dtype, side)  # making the file takes memory that serving it does not
    for tenants in (few, few, many):  # the first is for what is allocated but once
        gc.collect()
        served = make_served(folder, tenants, device, dtype, side)
        touch(served, 256)
        own = torch.cuda.memory_allocated() if device.type == "cuda" else 0
        held.append((status("RssAnon") + own, status("RssFile")))
        del served
    return tuple((new - old) / (many - few) for old, new in zip(*held[1:], strict=True))


# -- tables -----------------------------------------------------------------------------------------------------------


def compare(folder: Path, given: argparse.Namespace, device: torch.device, side: int) -> None:
    """Print requests a second and latency, mixed and tenant by tenant."""
    print("| tenants | way | requests/s | p50 ms | p99 ms | full batches, images/s |")
    print("|--:|---|--:|--:|--:|--:|")
    for tenants in given.tenants:
        served = make_served(folder, tenants, device, given.dtype, side)
        ways: dict[str, Answer] = {"mixed": mixed.answer}
        if device.type == "cuda":
            ways["mixed, CUDA graphs"] = Recorded(given.batch)
        ways["tenant by tenant"] = partial(mixed.answer, room=0)
        for way, answer in ways.items():
            took = asyncio.run(ask_all(answer, served, given.askers, given.batch, given.seconds))
            middle, late = (1000 * float(np.percentile(took, part)) for part in (50, 99))
            full = speed(answer, served, given.batch, given.seconds)
            rate = len(took) / given.seconds
            print(f"| {tenants:,} | {way} | {rate:,.0f} | {middle:.1f} | {late:.1f} | {full:,.0f} |")


def check(folder: Path, device: torch.device, dtype: str, side: int) -> float:
    """Return the largest difference of probabilities from answers given alone: speed is to be that of right answers."""
    served = make_served(folder, 50, device, dtype, side)
    images: Images = np.random.default_rng(1).integers(0, 256, (50, side, side, 3), np.uint8)
    rows = list(range(50))
    alone = torch.cat([mixed.answer(served, [row], images[row : row + 1]) for row in rows]).softmax(-1)
    found: list[Tensor] = [mixed.answer(served, rows, images)]
    if device.type == "cuda":
        found.append(Recorded(64)(served, rows, images))
    return max(float((one.softmax(-1) - alone).abs().max()) for one in found)


# -- over HTTP --------------------------------------------------------------------------------------------------------


def soak(bundle: Path, seconds: float, askers: int, workers: int) -> None:
    """Keep a server saturated and print what went wrong, and its memory at the beginning and the end."""
    from promptfed.analysis.bundle.contents import open_bundle

    clients = list(open_bundle(bundle).clients)
    room = max(1, askers // 2 // workers)
    command = [sys.executable, "-m", "promptfed", "serve", str(bundle), "--port", "0", "--queue", str(room)]
    command += ["--workers", str(workers)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    port = int(process.stdout.readline().partition("://127.0.0.1:")[2].partition("/")[0])
    statuses: Counter[str] = Counter()
    start = time.monotonic()
    picture = made_picture()

    def asker(number: int) -> None:
        line, mine = http.client.HTTPConnection("127.0.0.1", port, timeout=60), Counter[str]()
        while time.monotonic() < start + seconds:
            try:
                line.request("POST", f"/v1/predict?client={clients[number % len(clients)]}", picture)
                answer = line.getresponse()
                answer.read()
                mine[str(answer.status)] += 1
            except OSError as error:
                mine[type(error).__name__] += 1
                line.close()
        statuses.update(mine)

    threads = [threading.Thread(target=asker, args=(number,)) for number in range(askers)]
    for thread in threads:
        thread.start()
    time.sleep(min(10.0, seconds / 4))
    first = taken(process.pid)
    for thread in threads:
        thread.join()
    last, took = taken(process.pid), time.monotonic() - start
    process.send_signal(signal.SIGTERM)
    code = process.wait(60)
    wrong = sum(count for kind, count in statuses.items() if kind not in ("200", "429"))
    print("| seconds | workers | askers | answers/s | 200 | 429 | errors | MB near the start | MB at the end | code |")
    print("|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    sizes = f"{first / 1e6:.0f} | {last / 1e6:.0f}"
    counts = f"{statuses['200'] / took:,.0f} | {statuses['200']:,} | {statuses['429']:,} | {wrong}"
    print(f"| {took:.0f} | {workers} | {askers} | {counts} | {sizes} | {code} |")


def taken(process: int) -> int:
    """Return the bytes that a server and its workers hold, shared pages counted in each."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text(encoding="utf-8").split()
    return status("VmRSS", process) + sum(status("VmRSS", one) for one in children)


def made_picture() -> bytes:
    """Return a photograph-sized JPEG of noise."""
    import io

    from PIL import Image

    noise = np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(noise).resize((640, 480)).save(stream, "JPEG")
    return stream.getvalue()


def made_bundle(folder: Path) -> Path:
    """Return a bundle of the embedded data set."""
    from promptfed.analysis.bundle.making import make_bundle
    from promptfed.runs import runner

    ran = runner.run("pfedpt", out=folder / "run", overrides=("rounds=1", "method.epochs=1", "evaluate.after=false"))
    make_bundle(ran.folder, folder / "bundle")
    return folder / "bundle"


def main() -> None:
    """Print the tables."""
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if on_gpu else "cpu")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="bf16" if on_gpu else "fp32")
    parser.add_argument("--size", type=int, choices=(32, 224), default=224 if on_gpu else 32, help="pixels a side")
    parser.add_argument("--tenants", type=int, nargs="+", default=[1, 100, 10_000])
    parser.add_argument("--batch", type=int, default=256 if on_gpu else 64)
    parser.add_argument("--askers", type=int, default=0, help="askers at a time; 0: twice a batch")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--soak", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--workers", type=int, default=1, help="processes that answer, with --soak")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if given.soak:
            soak(given.bundle or made_bundle(folder), given.soak, given.askers or 32, given.workers)
            return
        given.askers = given.askers or 2 * given.batch
        device = torch.device(given.device)
        kind = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{os.cpu_count()} CPU cores"
        print(f"{kind}, torch {torch.__version__}, {given.dtype}, batches of {given.batch}, {given.askers} askers\n")
        compare(folder, given, device, given.size)
        print(f"\nLargest difference from answers given alone: {check(folder, device, given.dtype, given.size):.1e}")
        row = tree.nbytes(make_served(folder, 1, device, given.dtype, given.size).rows)
        private, mapped = memory(folder, 100, 10_000, device, given.dtype, given.size)
        print(f"A tenant's row has {row:,} bytes. Once all rows have been used, a further tenant takes")
        print(f"{private:,.0f} bytes of private memory and {mapped:,.0f} mapped from its file.")


if __name__ == "__main__":
    main()
