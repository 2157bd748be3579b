"""Images a second of textual inversion: the clients of a round in one batch, beside one client after another.

    python benchmarks/diffusion_speed.py                  a small model, on any machine
    python benchmarks/diffusion_speed.py --device cuda    Stable Diffusion 2's shapes, latents of 96 × 96, bf16

Weights and latents are random: speed does not depend on what they hold. A step is one image of every client through the
text tower and the denoiser, forward and backward, and an update of every client's word; the batch is 1, as in the RELIC
paper. The plain loop is the same loss with torch's own AdamW, client after client, as anyone would write it. The other
two are the fleets of `promptfed run`; on a GPU both record the step and replay it.
"""

import argparse
import gc
import os
import resource
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from promptfed.backbones.cached import Cached
from promptfed.backbones.diffusion import Diffusion
from promptfed.backbones.pipeline import fresh_pipeline
from promptfed.core import tree
from promptfed.core.method import Task
from promptfed.core.prompts.templates import OBJECT
from promptfed.core.tree import Tree
from promptfed.data.batches import Pool, Shards
from promptfed.data.dataset import Dataset
from promptfed.federation.fleet import OneByOne, Stacked
from promptfed.federation.loop import rng_for
from promptfed.federation.store import Store
from promptfed.methods.relic import FedTI

IMAGES = 3  # of a client; each is seen several times


@dataclass(frozen=True)
class Size:
    """The shapes of a model and of its latents."""

    title: str
    side: int  # of the latents
    unet: Mapping[str, object]
    vae: Mapping[str, object]
    text: Mapping[str, object]


LARGE = Size(
    title="Stable Diffusion 2",
    side=96,
    unet={
        "block_out_channels": (320, 640, 1280, 1280),
        "attention_head_dim": (5, 10, 20, 20),  # diffusers takes it for the number of heads
        "use_linear_projection": True,
    },
    vae={
        "block_out_channels": (128, 256, 512, 512),
        "layers_per_block": 2,
        "down_block_types": ("DownEncoderBlock2D",) * 4,
        "up_block_types": ("UpDecoderBlock2D",) * 4,
    },
    text={
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 23,
        "num_attention_heads": 16,
        "hidden_act": "gelu",
    },
)
SMALL = Size(
    title="a small model",
    side=16,
    unet={
        "block_out_channels": (32, 64),
        "layers_per_block": 1,
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
        "norm_num_groups": 16,
        "attention_head_dim": 4,
    },
    vae={
        "block_out_channels": (16, 16),
        "norm_num_groups": 16,
        "down_block_types": ("DownEncoderBlock2D",) * 2,
        "up_block_types": ("UpDecoderBlock2D",) * 2,
    },
    text={"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4},
)


@dataclass(frozen=True)
class Setting:
    """What is measured: the model with its latents, who holds which, and the first word."""

    method: FedTI
    task: Task
    shards: Shards
    down: Tree  # what every client receives [C, ...]
    device: torch.device
    clients: int
    steps: int  # of a client in a round


def setting_of(size: Size, device: torch.device, clients: int, repeats: int) -> Setting:
    """Return a model with random weights, and random latents for every client."""
    unet = {**size.unet, "sample_size": size.side}
    parts = fresh_pipeline([*OBJECT, "flower"], unet=unet, vae=size.vae, text=size.text, prediction="v_prediction")
    net = Diffusion((3, 8, 8), 1, precision="bf16" if device.type == "cuda" else "fp32").loaded(parts, device)
    task = Task(Cached(net), ("thing",), clients)
    method = FedTI(epochs=1, repeats=repeats)
    count = clients * IMAGES
    dataset = Dataset(
        name="made-up",
        images=np.zeros((count, 1, 1, 3), np.uint8),
        labels=np.zeros(count, np.int64),
        test=np.zeros(count, bool),
        classes=task.classes,
        domains=np.zeros(count, np.int64),
        domain_names=("one",),
    )
    width = 2 * torch.Size(net.latent_shape).numel() + net.visual_width
    rows = torch.randn(count, width, generator=torch.Generator().manual_seed(0))
    held = np.array_split(np.arange(count), clients)
    shards = Shards(Pool(dataset, device, rows), held, held, 0, method.draws(task))
    server = tree.to(method.init_server(task, rng_for(0, "server")), device)
    down = method.download(task, server, torch.arange(clients))
    return Setting(method, task, shards, down, device, clients, IMAGES * repeats)


# -- three ways of the same training --------------------------------------------------------------------------------


def plain_round(setting: Setting, t: int) -> Tree:
    """Train client after client by torch's own optimiser; return their words [C, ...]."""
    method, rows = setting.method, []
    for client in range(setting.clients):
        start = tree.row(setting.down, client)
        word = start["word"].clone().requires_grad_()
        optimiser = torch.optim.AdamW([word], lr=method.lr, weight_decay=0.0)
        data = setting.shards.data([client], t, stacked=False)
        for batch in data.batches(size=method.batch, epochs=method.epochs * method.repeats):
            optimiser.zero_grad()
            method.loss(setting.task, start, {"word": word}, batch).backward()
            optimiser.step()
        rows.append({"word": word.detach()})
    return tree.stack(rows)


def fleet_round(setting: Setting, fleet: OneByOne | Stacked, t: int) -> Tree:
    """Train the clients as `promptfed run` does; return their words [C, ...]."""
    return fleet.fit(t, torch.arange(setting.clients), setting.down, keep=False, test=False).up


def images_a_second(setting: Setting, once: Callable[[int], Tree], rounds: int) -> tuple[float, Tree]:
    """Time all rounds but the first, in which steps are recorded and algorithms chosen; return the last words too."""
    words = once(0)
    _wait(setting.device)
    began = time.perf_counter()
    for t in range(1, rounds + 1):
        words = once(t)
    _wait(setting.device)
    return rounds * setting.clients * setting.steps / (time.perf_counter() - began), words


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _forget(setting: Setting) -> None:
    """Drop recorded steps, which keep their memory, and reset the peak."""
    setting.task.captured.clear()
    gc.collect()
    if setting.device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _peak(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{torch.cuda.max_memory_allocated() / 2**30:.1f}"
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f}"  # of the process so far


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", type=torch.device, default="cpu")
    parser.add_argument("--clients", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=4, help=f"of each of a client's {IMAGES} images in a round")
    parser.add_argument("--rounds", type=int, default=2, help="that are timed")
    args = parser.parse_args()
    size = LARGE if args.device.type == "cuda" else SMALL
    torch.set_float32_matmul_precision("high")
    setting = setting_of(size, args.device, args.clients, args.repeats)
    net = setting.task.backbone
    weights = sum(p.numel() for part in (net.parts.text, net.parts.unet) for p in part.parameters())  # type: ignore[attr-defined]
    where = (
        f"{torch.cuda.get_device_name()}, bf16" if args.device.type == "cuda" else f"{os.cpu_count()} CPU cores, fp32"
    )
    print(f"{size.title}: {weights / 1e6:,.0f} M weights, latents of {size.side} × {size.side}; {where}\n")
    print("| way | clients at a time | images/s | peak GiB |\n|---|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as folder:
        store = Store(lambda client: {}, Path(folder))
        one = OneByOne(setting.method, setting.task, setting.shards, store)
        stacked = Stacked(setting.method, setting.task, setting.shards, store, setting.clients)
        ways: list[tuple[str, int, Callable[[int], Tree]]] = [
            ("a plain PyTorch loop", 1, lambda t: plain_round(setting, t)),
            ("one by one", 1, lambda t: fleet_round(setting, one, t)),
            ("stacked", setting.clients, lambda t: fleet_round(setting, stacked, t)),
        ]
        speeds, words = [], []
        for title, at_once, once in ways:
            _forget(setting)
            speed, found = images_a_second(setting, once, args.rounds)
            speeds.append(speed)
            words.append(found["word"])
            print(f"| {title} | {at_once} | {speed:.1f} | {_peak(setting.device)} |", flush=True)
    slower = (
        f"{speeds[2] / speeds[1]:.2f} times as fast as one by one, {speeds[2] / speeds[0]:.2f} times as the plain loop"
    )
    print(f"\nstacked is {slower}")
    moved = (words[0] - setting.down["word"]).abs().max()
    apart = max(float((other - words[0]).abs().max()) for other in words[1:])
    print(f"words moved by up to {moved:.2g} in a round; the three ways differ by up to {apart:.2g}")


if __name__ == "__main__":
    main()
