"""Pretrain a text-to-image model on all kinds of a thing but one: the embedded one on clothes, a larger one on flowers.

    python tools/pretrain_diffusion.py --data /usr/share/datasets/fashion-mnist --device cuda --seconds 480
    python tools/pretrain_diffusion.py --preset flowers --data FOLDER --out flowers-diffusion --device cuda

No photograph of the kind named by `--leave-out` is seen, so that a federated run can teach the model that kind.

`clothes` becomes the embedded model, for 32 × 32 images. Of Fashion-MNIST's training file the photographs that
fashion-shops uses are left out, and with them every copy of one; the official test file is not read. Every photograph
is shown in the styles of all four shops. `flowers` is for 64 × 64 images: Flowers-102 in any layout that the data set
of that name takes, every photograph also mirrored. Its weights are not part of the package.

First an autoencoder learns to shrink the images, then a text tower and a denoiser learn together to draw what a
caption says. The folder written is in diffusers' layout; pretraining.json in it says how it was made and how well it
does on photographs it has not seen. `--vae-steps` and `--steps` repeat a run, whose numbers of steps are there.
"""

import argparse
import copy
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from drawn_things import CLOTHES, PRESETS, Captions, Preset, Shown, fresh
from PIL import Image
from torch import Tensor, nn

from promptfed.backbones.diffusion import Diffusion, LoadedDiffusion
from promptfed.backbones.pipeline import EMBEDDED, Pipeline, write_pipeline
from promptfed.core.prompts.templates import OBJECT

WARM_UP = 20  # steps before the speed is measured
EAGER = 3  # steps before the step is captured
LEVELS = 4  # times at which a caption is judged


@dataclass(frozen=True)
class TrainingPlan:
    """The options of a training."""

    device: torch.device
    seed: int
    batch: int
    lr: float


# -- training -----------------------------------------------------------------------------------------------------


def schedule(plan: TrainingPlan, seconds: float, steps: int) -> Iterator[tuple[int, float]]:
    """Yield the steps there is time for, or exactly `steps`, with a rate that rises shortly and falls by a cosine."""
    step, began = 0, time.perf_counter()
    while not steps or step < steps:
        if not steps and step in (WARM_UP, 2 * WARM_UP) and plan.device.type == "cuda":
            torch.cuda.synchronize()  # what is still queued has taken no time yet
        if not steps and step == WARM_UP:
            began = time.perf_counter()
        if not steps and step == 2 * WARM_UP:
            steps = step + int(seconds / ((time.perf_counter() - began) / WARM_UP))
        done = step / steps if steps else 0.0
        yield step, plan.lr * min(1.0, (step + 1) / 100) * (0.5 + 0.5 * math.cos(math.pi * done))
        step += 1
        if step % 1000 == 0:
            print(f"step {step} of {steps or '?'}: {time.perf_counter() - began:.0f} s", flush=True)


def descend(
    plan: TrainingPlan,
    modules: list[Any],
    seconds: float,
    steps: int,
    generator: torch.Generator,
    loss: Callable[[], Tensor],
) -> tuple[int, float]:
    """Minimise `loss` by AdamW and leave the modules with the mean of their last weights; return steps and loss.

    On a GPU the step is captured as a graph: starting its thousands of small kernels one by one takes six times as
    long as they do. So all that changes from step to step is in tensors, and random numbers come from `generator`.
    """
    cuda = plan.device.type == "cuda"
    parameters = [p for module in modules for p in module.requires_grad_(True).parameters()]
    averaged = [p.detach().clone() for p in parameters]
    rate, share = (torch.zeros((), device=plan.device) for _ in range(2))
    optimiser = torch.optim.AdamW(parameters, lr=rate, weight_decay=0.01, fused=True, capturable=cuda)

    def once() -> Tensor:
        optimiser.zero_grad()
        with torch.autocast(plan.device.type, torch.bfloat16, enabled=cuda, cache_enabled=False):
            value = loss()
        value.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        with torch.no_grad():
            torch._foreach_mul_(averaged, share)
            torch._foreach_add_(averaged, torch._foreach_mul(parameters, 1 - share))
        return value.detach()

    last, value, graph = 0, torch.zeros(()), torch.cuda.CUDAGraph() if cuda else None
    for step, lr in schedule(plan, seconds, steps):
        rate.fill_(lr)
        share.fill_(min(0.999, (1 + step) / (10 + step)))
        if graph is None:
            value = once()
        elif step < EAGER:
            with torch.cuda.stream(torch.cuda.Stream()):
                torch.cuda.synchronize()
                value = once()
                torch.cuda.synchronize()
        elif step == EAGER:
            graph.register_generator_state(generator)
            with torch.cuda.graph(graph):
                value = once()
            graph.replay()
        else:
            graph.replay()
        last = step + 1
    with torch.no_grad():
        for p, mean in zip(parameters, averaged, strict=True):
            p.copy_(mean)
    for module in modules:
        module.requires_grad_(False)
    return last, float(value)


def train_coder(parts: Pipeline, shown: Shown, plan: TrainingPlan, seconds: float, steps: int) -> int:
    """Train the autoencoder, and scale its latents to unit variance; return the steps."""
    generator = torch.Generator(plan.device).manual_seed(plan.seed)
    vae = parts.vae

    def loss() -> Tensor:
        images = _pixels(shown, _some(shown, plan, generator))
        code = vae.encode(images).latent_dist
        error = vae.decode(code.sample()).sample - images
        total: Tensor = error.abs().mean() + error.square().mean() + 1e-6 * code.kl().mean()
        return total

    steps, value = descend(plan, [vae], seconds, steps, generator, loss)
    with torch.no_grad():
        code = vae.encode(_pixels(shown, _some(shown, plan, generator))).latent_dist.mean
    vae.register_to_config(scaling_factor=round(1 / float(code.std()), 5))
    print(f"autoencoder: {steps} steps, loss {value:.4f}, scaling factor {vae.config.scaling_factor}", flush=True)
    return steps


@torch.no_grad()
def encoded(parts: Pipeline, shown: Shown, plan: TrainingPlan) -> Tensor:
    """Return the latents of all images."""
    every = torch.arange(len(shown.images), device=plan.device).split(1024)
    means = [parts.vae.encode(_pixels(shown, some)).latent_dist.mean for some in every]
    coded: Tensor = torch.cat(means) * parts.vae.config.scaling_factor
    return coded


def train_denoiser(
    parts: Pipeline, preset: Preset, shown: Shown, plan: TrainingPlan, seconds: float, steps: int
) -> int:
    """Train text tower and denoiser to draw what captions say; return the steps."""
    generator = torch.Generator(plan.device).manual_seed(plan.seed + 1)
    left = parts.scheduler.alphas_cumprod.to(plan.device)
    kinds, shops = shown.kinds.to(plan.device), shown.shops.to(plan.device)
    coded, lines = encoded(parts, shown, plan), Captions.of(parts, preset, plan.device)
    parts.unet.to(memory_format=torch.channels_last)

    def loss() -> Tensor:
        chosen = _some(shown, plan, generator)
        latents = coded[chosen].contiguous(memory_format=torch.channels_last)
        states = parts.text(lines.draw(kinds[chosen], shops[chosen], generator)).last_hidden_state
        noise = torch.randn(latents.shape, device=plan.device, generator=generator)
        when = torch.randint(len(left), (len(latents),), device=plan.device, generator=generator)
        share = left[when][:, None, None, None]
        noisy = share.sqrt() * latents + (1 - share).sqrt() * noise
        found: Tensor = parts.unet(noisy, when, encoder_hidden_states=states).sample
        return (found.float() - noise).square().mean()

    steps, value = descend(plan, [parts.text, parts.unet], seconds, steps, generator, loss)
    parts.unet.to(memory_format=torch.contiguous_format)
    print(f"denoiser: {steps} steps, loss {value:.4f}", flush=True)
    return steps


def _some(shown: Shown, plan: TrainingPlan, generator: torch.Generator) -> Tensor:
    return torch.randint(len(shown.images), (plan.batch,), device=plan.device, generator=generator)


def _pixels(shown: Shown, chosen: Tensor) -> Tensor:
    return shown.images[chosen.to(shown.images.device)].to(chosen.device).float() / 127.5 - 1


# -- what it is worth ---------------------------------------------------------------------------------------------


@torch.no_grad()
def measure(net: LoadedDiffusion, preset: Preset, kept: Shown, leave_out: str) -> dict[str, float]:
    """Return how well unseen photographs are rebuilt, and how often the right noun describes one best.

    A noun describes an image the better, the less the denoiser errs on it; all nouns meet the same noise.
    """
    known = [number for number, noun in enumerate(preset.nouns) if noun != leave_out]
    new = kept.kinds == preset.nouns.index(leave_out)
    pixels = (kept.images.float() / 127.5 - 1).to(net.device)
    code = net.parts.vae.encode(pixels).latent_dist.mean
    errors = (net.parts.vae.decode(code).sample - pixels).square().mean((1, 2, 3)).cpu()
    latents = (code * net.parts.vae.config.scaling_factor)[~new.to(net.device)]
    scores = torch.stack([_misfit(net, latents, preset.nouns[number]) for number in known], 1).cpu()
    right = torch.tensor(known)[scores.argmin(1)] == kept.kinds[~new]
    return {
        "rebuilt_mse": round(float(errors[~new].mean()), 5),
        "rebuilt_mse_of_left_out": round(float(errors[new].mean()), 5),
        "right_noun": round(float(right.float().mean()), 4),
    }


def _misfit(net: LoadedDiffusion, latents: Tensor, noun: str) -> Tensor:
    """Return how far the denoiser errs on each image, told that it shows `noun`, on the mean over times [N]."""
    generator = torch.Generator(net.device).manual_seed(0)
    first = torch.zeros(len(latents), dtype=torch.long, device=net.device)
    states = _read(net, noun).expand(len(latents), -1, -1)
    total = torch.zeros(len(latents), device=net.device)
    for level in range(LEVELS):
        noise = torch.randn(latents.shape, device=net.device, generator=generator)
        when = first + net.times * (2 * level + 1) // (2 * LEVELS)
        noisy, wanted = net.noised(latents, noise, when)
        total += (net.denoise(noisy, when, states) - wanted).square().mean((1, 2, 3)) / LEVELS
    return total


def _read(net: LoadedDiffusion, noun: str) -> Tensor:
    """Return the text tower's states [1, L, W] of the first template with a noun, which may have several words."""
    line = net.parts.tokenizer(OBJECT[0].format(noun), padding="max_length", return_tensors="pt").input_ids
    states: Tensor = net.parts.text(line.to(net.device)).last_hidden_state
    return states


@torch.no_grad()
def draw(net: LoadedDiffusion, nouns: tuple[str, ...], path: Path, columns: int = 8) -> float:
    """Write a row of drawings of every noun to `path`; return the seconds it took."""
    began = time.perf_counter()
    start = torch.randn(columns, *net.latent_shape, generator=torch.Generator().manual_seed(0)).to(net.device)
    rows = []
    for noun in nouns:
        states = _read(net, noun).expand(columns, -1, -1)
        rows.append(torch.cat(list(net.sample(states, start, guidance=3.0)), -1))
    grid = ((torch.cat(rows, -2) + 1) * 127.5).byte().permute(1, 2, 0).cpu().numpy()
    Image.fromarray(grid).resize((2 * grid.shape[1], 2 * grid.shape[0]), Image.Resampling.NEAREST).save(path)
    return time.perf_counter() - began


def main() -> None:
    """Read the arguments, train, measure and write."""
    parser = argparse.ArgumentParser(description="Pretrain a text-to-image model.")
    parser.add_argument("--preset", choices=PRESETS, default="clothes", help="clothes (default): the embedded model")
    parser.add_argument(
        "--data", type=Path, required=True, help="the folder with the official Fashion-MNIST files, or with Flowers-102"
    )
    parser.add_argument("--out", type=Path, help=f"the folder to write (of clothes: {EMBEDDED})")
    parser.add_argument("--samples", type=Path, default=Path("samples.png"), help="where to put some drawings")
    parser.add_argument("--leave-out", help="the kind it never sees (boot, clematis)")
    parser.add_argument("--device", type=torch.device, default="cuda")
    parser.add_argument("--seconds", type=float, help="how long to train (480, 360), the autoencoder a fifth of it")
    parser.add_argument("--vae-steps", type=int, default=0, help="how many steps to train it, in place of --seconds")
    parser.add_argument("--steps", type=int, default=0, help="how many steps to train the rest")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--lr", type=float, help="the highest learning rate (1e-3, 5e-4)")
    given = parser.parse_args()
    preset = PRESETS[given.preset]
    out, leave_out = given.out or (EMBEDDED if preset is CLOTHES else None), given.leave_out or preset.leave_out
    if out is None:
        parser.error("--out is needed: only the embedded model has a place in the package")
    if leave_out not in preset.nouns:
        parser.error(f"--leave-out must be one of {', '.join(preset.nouns)}")
    plan, seconds = (
        TrainingPlan(given.device, given.seed, given.batch, given.lr or preset.lr),
        given.seconds or preset.seconds,
    )
    torch.manual_seed(plan.seed)
    shown, kept = preset.read(given.data, leave_out)
    if plan.device.type == "cuda":
        shown = Shown(shown.images.to(plan.device), shown.kinds, shown.shops)
    parts = fresh(preset, plan.seed).to(plan.device, torch.float32)
    sizes = {name: sum(p.numel() for p in getattr(parts, name).parameters()) for name in ("text", "unet", "vae")}
    print(f"{len(shown.images):,} images, weights {sizes}", flush=True)
    vae_steps = train_coder(parts, shown, plan, seconds / 5, given.vae_steps)
    steps = train_denoiser(parts, preset, shown, plan, seconds * 4 / 5, given.steps)
    write_pipeline(parts, out)
    shape = (3, preset.side, preset.side)
    net = Diffusion(shape, len(preset.nouns), precision="fp32").loaded(copy.deepcopy(parts), plan.device)
    facts = {
        "images": len(shown.images),
        "left_out": leave_out,
        "weights": sizes,
        "seed": plan.seed,
        "vae_steps": vae_steps,
        "steps": steps,
        "batch": plan.batch,
        "torch": torch.__version__,
        "measured": measure(net, preset, kept, leave_out),
    }
    (out / "pretraining.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    print(f"{len(preset.drawn)} × 8 drawings in {draw(net, preset.drawn, given.samples):.1f} s: {given.samples}")
    print(json.dumps(facts, indent=1))
    print(f"{out}: {sum(path.stat().st_size for path in out.rglob('*') if path.is_file()):,} bytes")


if __name__ == "__main__":
    main()
