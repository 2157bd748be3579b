"""Milliseconds of one local step of all clients, for every method of the field, side by side on made-up data.

    python benchmarks/field_steps.py                     tiny towers, on any machine
    python benchmarks/field_steps.py --device cuda       CLIP ViT-B/16 and DINOv2-S, 10 clients × 32 images
    python benchmarks/field_steps.py --rows promptfl,fedpgp --encoder small

The rows are those of the field's tables, with their own hyper-parameters, and all see the same random towers and data.
"work" counts what a step sends through the towers: the text tower's tokens in units of PromptFL's, and images in units
of a batch, that is, of FedVPT's. "of its work" is the time in units of what PromptFL and FedVPT need for as much. Rows
on another encoder are compared with FedVPT there. Where memory does not hold all clients at a time, fewer are stacked,
and the time is that of all.
"""

import argparse
import gc
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from text_prompts import names_of, wait
from towers import ENCODERS, Watched, grid_of, network

from promptfed.backbones.cached import behind
from promptfed.core import extensions, tree
from promptfed.core.errors import PromptFedError, choice
from promptfed.core.method import Method, Task
from promptfed.core.tree import Tree
from promptfed.data.batches import Pool, Shards
from promptfed.data.dataset import Dataset
from promptfed.data.features import constants_of
from promptfed.federation.loop import rng_for
from promptfed.runs import filling, memory, planning
from promptfed.runs.registry import RECIPES
from promptfed.runs.rows import TableRow, read_rows

TEXT, IMAGE, OTHER = "promptfl", "fedvpt", "fedvpt-dinov2"  # what the others are compared with
FEW = 8  # images that constants are computed of; all others have the same ones
DOMAINS = 4
QUICK = 0.5  # seconds; what takes less is timed three times
WORTH = 0.01  # of a tower's work; less is none


@dataclass(frozen=True)
class Setting:
    """What all rows have in common; a fit has `long` steps, or `short` ones."""

    device: torch.device
    encoder: str
    clients: int
    classes: int
    batch: int
    long: int
    short: int

    @property
    def names(self) -> tuple[str, ...]:
        """Return the classes' names."""
        return names_of(self.classes)


@dataclass(frozen=True)
class Step:
    """A row's step: what it sends through the towers, how it is run, and what it takes."""

    text: float = 0.0  # tokens through the text tower
    image: float = 0.0  # images through the image tower; without a way back they are half
    width: int = 0  # clients at a time
    recorded: bool = False  # as a CUDA graph
    seconds: float = math.nan
    gigabytes: float = math.nan
    problem: str = ""


def made_up(setting: Setting, count: int) -> Dataset:
    """Return noise, and labels in turn."""
    side = ENCODERS[setting.encoder].side
    grain = np.random.default_rng(0).integers(0, 256, (97, side, side, 3), np.uint8)
    return Dataset(
        name="made-up",
        images=grain[np.arange(count) % len(grain)],
        labels=np.arange(count) % setting.classes,
        test=np.zeros(count, bool),
        classes=setting.names,
        domains=np.arange(count) * setting.clients // count % DOMAINS,
        domain_names=tuple(map(str, range(DOMAINS))),
    )


def pool_for(setting: Setting, method: Method, task: Task) -> Pool:
    """Return what the method reads of a long fit's images, random where a run would compute it once."""
    data, device = made_up(setting, setting.clients * setting.batch * setting.long), setting.device
    extras: Tree = {}
    if isinstance(method, extensions.HasConstants):
        compute = partial(extensions.constants, method, task)
        few = constants_of(made_up(setting, FEW), device, 0, compute)
        extras = {name: value[torch.arange(len(data), device=device) % FEW] for name, value in few.items()}
    if method.traits.reads == "pixels":
        return Pool(data, device, extras=extras)
    backbone: Any = task.backbone
    width = backbone.arch.text.projection if hasattr(backbone, "zero_shot") else backbone.token_width
    patches = [1 + math.prod(grid_of(backbone))] * (method.traits.reads == "patches")
    draw, kind = torch.Generator(device).manual_seed(0), torch.float16 if patches else torch.float32
    return Pool(
        data, device, torch.randn(len(data), *patches, width, device=device, generator=draw, dtype=kind), extras
    )


# -- a row -------------------------------------------------------------------------------------------------------------


def method_of(row: TableRow, batch: int) -> Method:
    """Return a row's method with its own hyper-parameters, and batches of this size."""
    table = row.recipe["method"]
    table = table | {"batch": batch} if "batch" in table else table
    return filling.make_method(filling.fill_method(table, {})[0], {})


def network_of(row: TableRow) -> str:
    """Return which network the row is on."""
    return str(row.recipe.get("backbone", {}).get("name", "clip"))


def reference(row: TableRow) -> str:
    """Return whose image tower the row's is compared with."""
    return OTHER if network_of(row) == "vit" else IMAGE


class Clients:
    """The clients that are stacked, with their trees, and one fit of theirs after the other."""

    def __init__(self, setting: Setting, method: Method, task: Task, pool: Pool, width: int) -> None:
        self.method, self.setting, self.pool, self.ids = method, setting, pool, torch.arange(width)
        self.rows = np.array_split(np.arange(len(pool.y)), setting.clients)
        self.draws, self.fits = method.draws(task), 0
        self.server = tree.to(method.init_server(task, rng_for(0, "server")), setting.device)
        each = self.shards(setting.long)
        own = [
            method.init_client(task, each.data([one], 0, stacked=False), rng_for(0, one)) for one in self.ids.tolist()
        ]
        self.personal = tree.stack([tree.to(part, setting.device) for part in own])

    def shards(self, steps: int) -> Shards:
        """Return as many images of every client as make so many batches."""
        rows = [some[: steps * self.setting.batch] for some in self.rows]
        return Shards(self.pool, rows, rows, 0, self.draws)

    def fit(self, task: Task, steps: int) -> tuple[float, int]:
        """Train, and return the seconds and the number of steps, which may be the method's own."""
        down = self.method.download(task, self.server, self.ids)
        data, seen = self.shards(steps).data(self.ids.tolist(), self.fits, stacked=True), self.pool.seen
        wait(self.setting.device)
        began = time.perf_counter()
        _, self.personal = self.method.fit(task, down, self.personal, data)
        wait(self.setting.device)
        self.fits += 1
        return time.perf_counter() - began, (self.pool.seen - seen) // (len(self.ids) * self.setting.batch)


def measured(setting: Setting, row: TableRow, width: int) -> Step:
    """Return a row's step with so many clients at a time, or with fewer if memory does not hold them."""
    try:
        return timed(setting, row, width)
    except (MemoryError, RuntimeError) as error:
        if width == 1 or not memory.ran_out(error):
            raise
    release(setting.device)
    return measured(setting, row, width // 2)


def timed(setting: Setting, row: TableRow, width: int) -> Step:
    """Look at one step, which is not recorded, then time long fits and short ones."""
    cuda = setting.device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    method, backbone = (
        method_of(row, setting.batch),
        network(setting.encoder, network_of(row), setting.names, setting.device),
    )
    whole, reads = Task(backbone, setting.names, setting.clients, rounds=50), method.traits.reads
    pool = pool_for(setting, method, whole)
    task = replace(whole, backbone=behind(backbone, reads), captured={})
    clients = Clients(setting, method, task, pool, width)
    watched: Any = Watched(task.backbone, reads == "pixels")
    _, looked = clients.fit(replace(task, backbone=watched, captured={}), 1)
    clients.fit(task, setting.long)
    long = [clients.fit(task, setting.long)]
    long += [clients.fit(task, setting.long) for _ in range(2) if long[0][0] < QUICK]
    short = [clients.fit(task, setting.short) for _ in long]
    (slow, most), (fast, least) = min(long), min(short)
    # what is done once in a fit is in both, and not in their difference; other work on a CPU may be
    seconds = (slow - fast) / (most - least) if most > least and cuda else slow / most
    recorded, peak = bool(task.captured), torch.cuda.max_memory_allocated() / 1e9 if cuda else math.nan
    task.captured.clear()
    work = watched.text_tokens / looked, watched.images / looked
    return Step(*work, width, recorded, seconds * setting.clients / width, peak)


def release(device: torch.device) -> None:
    """Give back what the last row held."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def tried(setting: Setting, row: TableRow) -> Step:
    """Return a row's step, or why there is none in one sentence."""
    try:
        return measured(setting, row, setting.clients)
    except PromptFedError as error:
        return Step(problem=str(error))
    except Exception as error:  # one method must not cost the rest of the table
        return Step(problem=f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
    finally:
        release(setting.device)


# -- the table ---------------------------------------------------------------------------------------------------------


def rows_of(wanted: Sequence[str]) -> list[TableRow]:
    """Return the field's rows that learn, those that others are compared with first."""
    table = RECIPES / "field" / "steps.table.toml"
    known = {row.name: row for row in read_rows({"rows_from": "methods.rows.toml"}, table, {})}
    known = {name: row for name, row in known.items() if method_of(row, 1).traits.learns}
    for name in wanted:
        if name not in known:
            raise choice("row", name, known, "--rows")
    chosen = [known[name] for name in wanted or known]
    moved = {reference(row) for row in chosen if method_of(row, 1).traits.reads == "pixels"}
    first = [TEXT, *(name for name in (IMAGE, OTHER) if name in moved)]
    return [known[name] for name in dict.fromkeys([*first, *(row.name for row in chosen)])]


@dataclass(frozen=True)
class Scale:
    """What a step is compared with: PromptFL's, and FedVPT's on the same images."""

    text: Step
    image: Step

    def shares(self, step: Step) -> tuple[float, float]:
        """Return a step's work in both towers, of all clients."""
        return self._share(step, "text"), self._share(step, "image")

    def _share(self, step: Step, tower: str) -> float:
        with_it: Step = getattr(self, tower)
        each = getattr(with_it, tower) / max(with_it.width, 1)
        share = getattr(step, tower) / max(step.width, 1) / each if each else 0.0
        return share if share > WORTH else 0.0

    def expected(self, step: Step) -> float:
        """Return the seconds that PromptFL and FedVPT need for as much work."""
        return sum(
            share * one.seconds for share, one in zip(self.shares(step), (self.text, self.image), strict=True) if share
        )


def way(step: Step, shares: tuple[float, float], pixels: bool) -> str:
    """Return in words what a step goes through."""
    towers = [name for name, share in zip(("text tower", "image tower"), shares, strict=True) if share]
    through = "both towers" if len(towers) == 2 else towers[0] if towers else "head alone"
    return f"{through} on {'pixels' if pixels else 'cached features'}"


def line(setting: Setting, row: TableRow, step: Step, scale: Scale) -> tuple[str, float]:
    """Return a row of the table, and how often its work's time it takes."""
    if step.problem:
        return f"| {row.title} | {step.problem} |" + " |" * 7, math.nan
    shares, expected = scale.shares(step), scale.expected(step)
    pixels = method_of(row, setting.batch).traits.reads == "pixels"
    some = "" if step.width == setting.clients else f", {step.width} at a time"
    fleet = f"stacked{some}, {'a CUDA graph' if step.recorded else 'step by step'}"
    work = " + ".join(f"{share:.3g} {name}" for share, name in zip(shares, ("text", "image"), strict=True) if share)
    times = step.seconds / expected if expected else math.nan
    beside = [step.seconds / scale.text.seconds, step.seconds / scale.image.seconds if shares[1] else math.nan, times]
    cells = [
        *(row.title, way(step, shares, pixels), fleet, f"{1000 * step.seconds:.2f}", work),
        *("" if math.isnan(ratio) else f"{ratio:.2f}×" for ratio in beside),
        "" if math.isnan(step.gigabytes) else f"{step.gigabytes:.1f}",
    ]
    return f"| {' | '.join(cells)} |", times


def print_table(setting: Setting, rows: Iterable[TableRow]) -> None:
    """Print a line for every row, and which need more than twice what their work does."""
    names = (
        "method",
        "a step goes through",
        "fleet",
        "ms a step",
        "work",
        "of PromptFL's",
        "of FedVPT's",
        "of its work",
    )
    print(f"| {' | '.join(names)} | peak GB |")
    print("|---|---|---|--:|---|--:|--:|--:|--:|")
    known: dict[str, Step] = {}
    over, unrecorded = [], []
    for row in rows:
        step = known[row.name] = tried(setting, row)
        scale = Scale(known[TEXT], known.get(reference(row), Step()))
        told, times = line(setting, row, step, scale)
        print(told, flush=True)
        over += [row.title] if times > 2 else []
        unrecorded += [row.title] if not step.recorded else []
    print(f"\nmore than twice their work: {', '.join(over) or 'none'}")
    if setting.device.type == "cuda":
        print(f"not recorded as a CUDA graph: {', '.join(unrecorded) or 'none'}")


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--encoder", choices=[*ENCODERS], help="b16 on a GPU, else tiny")
    parser.add_argument("--rows", default="", help="some of the field's rows, with commas between them")
    parser.add_argument("--clients", type=int, help="10 on a GPU, else 2")
    parser.add_argument("--classes", type=int, help="100 on a GPU, else 8")
    parser.add_argument("--batch", type=int, help="32 on a GPU, else 4")
    args = parser.parse_args()
    try:
        device = planning.pick_device(args.device)
        rows = rows_of([name.strip() for name in args.rows.split(",") if name.strip()])
    except PromptFedError as error:
        parser.error(str(error))
    large = device.type == "cuda"
    sizes = {"clients": 10, "classes": 100, "batch": 32} if large else {"clients": 2, "classes": 8, "batch": 4}
    sizes = {name: getattr(args, name) or usual for name, usual in sizes.items()}
    steps = {"long": 10, "short": 2} if large else {"long": 2, "short": 1}
    setting = Setting(device, args.encoder or ("b16" if large else "tiny"), **sizes, **steps)
    torch.set_float32_matmul_precision("high")
    where = f"{torch.cuda.get_device_name()}, bf16" if large else "CPU, fp32"
    print(
        f"{setting.encoder} towers, {setting.clients} clients × {setting.batch}, {setting.classes} classes, {where}\n"
    )
    print_table(setting, rows)


if __name__ == "__main__":
    main()
