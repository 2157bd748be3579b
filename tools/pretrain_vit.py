"""Pretrain the embedded vision transformer, without labels, on photographs that fashion-shops does not have.

    python tools/pretrain_vit.py --data /usr/share/datasets/fashion-mnist --device cuda --seconds 150

Of Fashion-MNIST's training file the photographs that fashion-shops uses are left out, and with them every copy of one;
the official test file is not read. Labels only serve to find what fashion-shops uses. Two random views of a photograph,
each cropped, turned and shown in a random style, shall have features closer to each other than to all other views
of the batch (SimCLR, Chen et al. 2020). The folder written is in the model hub's ViT layout; pretraining.json in it
says how it was made and how well a linear classifier of its features does on fashion-shops, beside one of a network
with random weights. `--steps` repeats a run, whose number of steps is there, in place of `--seconds`.
"""

import argparse
import io
import json
import lzma
import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from safetensors.torch import save_file
from torch import Tensor, nn

from promptfed.backbones.checkpoint import EMBEDDED, HALVES
from promptfed.backbones.pretrained import LoadedViT, ViT
from promptfed.core import tree
from promptfed.core.tree import Tree
from promptfed.data.archives import read_idx
from promptfed.data.shops import CLASSES, SHOPS, SIDE, TRAIN, load_shops
from promptfed.data.shops import EMBEDDED as SHOPS_FILE

WARM_UP = 20  # steps before the speed is measured


@dataclass(frozen=True)
class TrainingPlan:
    """The options of a training."""

    device: torch.device
    seconds: float
    steps: int
    seed: int
    batch: int
    lr: float = 1e-3
    weight_decay: float = 0.05
    temperature: float = 0.2


def training_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that every pretraining has."""
    parser.add_argument("--device", type=torch.device, default="cuda")
    parser.add_argument("--seconds", type=float, default=150.0, help="how long to train")
    parser.add_argument("--steps", type=int, default=0, help="how many steps to train, in place of --seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=1024)


def leftover(source: Path) -> Tensor:
    """Return the training photographs [N, 28, 28] of which fashion-shops has no copy."""
    images, labels = (read_idx(source / f"train-{name}-ubyte.gz") for name in ("images-idx3", "labels-idx1"))
    later = np.concatenate([np.flatnonzero(labels == label)[TRAIN * len(SHOPS) :] for label in range(len(CLASSES))])
    shops = np.load(io.BytesIO(lzma.decompress(SHOPS_FILE.read_bytes()))).reshape(-1, 28 * 28)
    taken = {photograph.tobytes() for photograph in shops}
    kept = [index for index in np.sort(later) if images[index].tobytes() not in taken]
    return torch.from_numpy(images[kept])


# -- random views -------------------------------------------------------------------------------------------------


def view(grey: Tensor, generator: torch.Generator, *, drawn: float = 0.3, outside: float = 0.35) -> Tensor:
    """Show photographs [N, 28, 28] in 0 … 1, each in its own crop, turn and style: [N, 3, 32, 32] in −1 … 1.

    A share of them is `drawn` with a pencil, and a share is `outside`, in front of a wall.
    """
    frame = _placed(F.pad(grey[:, None], (2, 2, 2, 2)), generator)
    count = len(frame)

    def uniform(*shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        return low + (high - low) * torch.rand(count, *shape, device=grey.device, generator=generator)

    amount = torch.where(uniform(1, 1, 1) < drawn, _lines(frame), frame) ** torch.exp(
        uniform(1, 1, 1, low=-0.5, high=0.5)
    )
    swap = uniform(1, 1, 1) < 0.5
    dark, bright = uniform(3, 1, 1, high=0.45), uniform(3, 1, 1, low=0.55)
    flat = torch.lerp(torch.where(swap, dark, bright), torch.where(swap, bright, dark), amount)
    coarse = F.interpolate(uniform(1, 8, 8), (SIDE, SIDE), mode="nearest")
    wall = torch.lerp(uniform(3, 1, 1), uniform(3, 1, 1), coarse) + 0.1 * (uniform(1, SIDE, SIDE) - 0.5)
    cloth = torch.lerp(uniform(1, 1, 1, high=0.4), torch.ones_like(frame), frame) * uniform(3, 1, 1, low=0.3)
    scene = torch.lerp(wall, cloth, (frame * 7).clamp(max=1))
    shown = torch.where(uniform(1, 1, 1) < outside, scene, flat)
    noise = torch.randn(shown.shape, device=grey.device, generator=generator) * uniform(1, 1, 1, high=0.05)
    return (shown + noise).clamp(0, 1) * 2 - 1


def _placed(frame: Tensor, generator: torch.Generator) -> Tensor:
    """Return random crops of [N, 1, 32, 32], mirrored half of the time and slightly turned."""

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(len(frame), device=frame.device, generator=generator)

    scale, turn = uniform(0.5, 1.1), uniform(-0.3, 0.3)
    mirror = torch.where(uniform(0, 1) < 0.5, -1.0, 1.0)
    room = (1 - scale).clamp(min=0)
    stretch = torch.exp(uniform(-0.15, 0.15))
    across = torch.stack([mirror * scale * stretch * turn.cos(), -scale * turn.sin(), uniform(-1, 1) * room], 1)
    down = torch.stack([mirror * scale * turn.sin(), scale / stretch * turn.cos(), uniform(-1, 1) * room], 1)
    grid = F.affine_grid(torch.stack([across, down], 1), list(frame.shape), align_corners=False)
    return F.grid_sample(frame, grid, align_corners=False)


def _lines(frame: Tensor) -> Tensor:
    """Return how strongly brightness changes at each pixel, as a pencil would draw it."""
    down = F.pad(frame.diff(dim=-2), (0, 0, 0, 1)).abs()
    across = F.pad(frame.diff(dim=-1), (0, 1)).abs()
    return ((down + across - 0.05) * 1.5).clamp(0, 1)


# -- training -----------------------------------------------------------------------------------------------------


def contrast(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """Return the loss of telling each view's twin from all other views of the batch."""
    both = F.normalize(torch.cat([first, second]), dim=1)
    alike = (both @ both.T / temperature).fill_diagonal_(-torch.inf)
    twins = torch.arange(len(both), device=both.device).roll(len(first))
    return F.cross_entropy(alike, twins)


def pretrain(net: LoadedViT, photographs: Tensor, plan: TrainingPlan) -> tuple[Tree, int]:
    """Return the trained weights and the number of steps it took."""
    generator = torch.Generator(plan.device).manual_seed(plan.seed)
    torch.manual_seed(plan.seed)
    weights = {name: value.to(plan.device).clone().requires_grad_() for name, value in net.pretrained.items()}
    wide = 1024
    project = nn.Sequential(nn.Linear(net.arch.width, wide), nn.BatchNorm1d(wide), nn.ReLU(), nn.Linear(wide, 128)).to(
        plan.device
    )
    optimiser = torch.optim.AdamW(
        [*weights.values(), *project.parameters()], lr=plan.lr, weight_decay=plan.weight_decay
    )
    photographs = photographs.to(plan.device)
    steps, step, began = plan.steps, 0, time.perf_counter()
    while not steps or step < steps:
        if not steps and step in (WARM_UP, 2 * WARM_UP) and plan.device.type == "cuda":
            torch.cuda.synchronize()  # what is still queued has taken no time yet
        if not steps and step == WARM_UP:
            began = time.perf_counter()
        if not steps and step == 2 * WARM_UP:
            steps = step + int(plan.seconds / ((time.perf_counter() - began) / WARM_UP))
        warm = min(1.0, (step + 1) / 200)
        done = step / steps if steps else 0.0
        for group in optimiser.param_groups:
            group["lr"] = plan.lr * warm * (0.5 + 0.5 * math.cos(math.pi * done))
        chosen = torch.randint(len(photographs), (plan.batch,), device=plan.device, generator=generator)
        grey = photographs[chosen].float() / 255
        views = torch.cat([view(grey, generator), view(grey, generator)])
        first, second = project(net.features(weights, views)).chunk(2)
        loss = contrast(first, second, plan.temperature)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(weights.values(), 1.0)
        optimiser.step()
        step += 1
        if step % 200 == 0 or step in (WARM_UP, 2 * WARM_UP):
            print(
                f"step {step} of {steps or '?'}: loss {loss.item():.3f}, {time.perf_counter() - began:.0f} s",
                flush=True,
            )
    return tree.map(lambda value: value.detach().cpu().half().float(), weights), step


# -- what the features are worth ----------------------------------------------------------------------------------


def probe(net: LoadedViT, weights: Tree, device: torch.device) -> dict[str, float]:
    """Return the accuracy of a linear classifier of the features on fashion-shops' test images, in all and by shop."""
    shops = load_shops()
    pixels = torch.from_numpy(shops.images).permute(0, 3, 1, 2)
    weights = tree.to(weights, device)
    with torch.no_grad():
        parts = [net.features(weights, part.to(device).float() / 127.5 - 1) for part in pixels.split(500)]
    features, labels = torch.cat(parts), torch.from_numpy(shops.labels).to(device)
    test = torch.from_numpy(shops.test).to(device)
    features = (features - features[~test].mean(0)) / features[~test].std(0).clamp(min=1e-6)
    head = nn.Linear(features.shape[1], len(CLASSES)).to(device)
    nn.init.zeros_(head.weight)
    optimiser = torch.optim.LBFGS(head.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> float:
        optimiser.zero_grad()
        value = F.cross_entropy(head(features[~test]), labels[~test]) + 1e-3 * head.weight.square().sum()
        value.backward()
        return float(value.detach())

    optimiser.step(loss)
    right = (head(features).argmax(1) == labels)[test].float().cpu()
    where = shops.domains[shops.test]
    by_shop = {
        name: round(float(right[torch.from_numpy(where == number)].mean()), 4) for number, name in enumerate(SHOPS)
    }
    return {"all": round(float(right.mean()), 4)} | by_shop


# -- writing ------------------------------------------------------------------------------------------------------


def hub_tensors(weights: Tree) -> Tree:
    """Return the weights in half precision under the model hub's names for a ViT."""
    inner = {
        "norm1": "layernorm_before",
        "out": "attention.output.dense",
        "norm2": "layernorm_after",
        "mlp1": "intermediate.dense",
        "mlp2": "output.dense",
    }
    outer = {"patch": "embeddings.patch_embeddings.projection", "norm": "layernorm"}
    side = math.isqrt(weights["patch.weight"].shape[1] // 3)
    made = {
        "embeddings.cls_token": weights["cls"][None],
        "embeddings.position_embeddings": weights["position"][None],
        "embeddings.patch_embeddings.projection.weight": weights["patch.weight"].unflatten(1, (3, side, side)),
    }
    for name, value in tree.drop(weights, ["cls", "position", "patch.weight"]).items():
        *block, part, kind = name.split(".")
        layer = f"encoder.layer.{block[0].removeprefix('block')}." if block else ""
        if part == "qkv":
            for which, third in zip(("query", "key", "value"), value.chunk(3), strict=True):
                made[f"{layer}attention.attention.{which}.{kind}"] = third
        else:
            made[f"{layer}{(inner if block else outer)[part]}.{kind}"] = value
    return tree.map(lambda value: value.half().contiguous(), made)


def write(folder: Path, net: LoadedViT, weights: Tree, facts: dict[str, object]) -> None:
    """Write the model hub's ViT layout, and how it was made."""
    arch = net.arch
    config = {
        "architectures": ["ViTModel"],
        "model_type": "vit",
        "hidden_size": arch.width,
        "num_hidden_layers": arch.depth,
        "num_attention_heads": arch.heads,
        "intermediate_size": arch.mlp,
        "hidden_act": "gelu",
        "layer_norm_eps": arch.eps,
        "image_size": SIDE,
        "patch_size": arch.patch,
        "num_channels": 3,
        "qkv_bias": True,
    }
    pixels = {"image_mean": HALVES[0], "image_std": HALVES[1], "size": {"height": SIDE, "width": SIDE}}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(hub_tensors(weights), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # safetensors writes it for its owner alone
    for name, content in (("config", config), ("preprocessor_config", pixels), ("pretraining", facts)):
        (folder / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Read the arguments, train, measure and write."""
    parser = argparse.ArgumentParser(description="Pretrain the embedded vision transformer without labels.")
    parser.add_argument("--data", type=Path, required=True, help="the folder with the official Fashion-MNIST files")
    parser.add_argument("--out", type=Path, default=EMBEDDED, help=f"the folder to write (default: {EMBEDDED})")
    training_options(parser)
    parser.add_argument("--width", type=int, default=160)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--heads", type=int, default=5)
    given = parser.parse_args()
    plan = TrainingPlan(given.device, given.seconds, given.steps, given.seed, given.batch)
    net = ViT.random(
        (3, SIDE, SIDE), len(CLASSES), width=given.width, depth=given.depth, heads=given.heads, patch=4, seed=plan.seed
    ).to(plan.device)
    photographs = leftover(given.data)
    print(f"{len(photographs):,} photographs, {tree.floats(net.pretrained):,} weights", flush=True)
    weights, steps = pretrain(net, photographs, plan)
    facts = {
        "photographs": len(photographs),
        "weights": tree.floats(weights),
        "seed": plan.seed,
        "steps": steps,
        "batch": plan.batch,
        "torch": torch.__version__,
        "probe": probe(net, weights, plan.device),
        "probe_of_random_weights": probe(net, net.pretrained, plan.device),
    }
    write(given.out, net, weights, facts)
    print(json.dumps(facts, indent=1))
    print(f"{given.out}: {sum(path.stat().st_size for path in given.out.iterdir()):,} bytes")


if __name__ == "__main__":
    main()
