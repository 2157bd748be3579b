"""Pretrain the embedded dual encoder on captioned photographs that fashion-shops does not have.

    python tools/pretrain_clip.py --data /usr/share/datasets/fashion-mnist --device cuda --seconds 150

The photographs are those of tools/pretrain_vit.py: Fashion-MNIST's training file without any that fashion-shops uses
and without every copy of one; the official test file is not read. Each is shown in two colours, with a caption made of
a name of its class and, at times, the colour behind it. So, unlike the embedded ViT, this one is supervised: it knows
the classes' names, but no photograph of the demo, and neither drawings nor streets: two of the four shops are new to
it, as some domains are to any CLIP. An image shall be closer to the captions that are true of it than to the others of
the batch, and a caption to its images (CLIP, Radford et al. 2021, with several right answers).

The folder written is in the model hub's CLIP layout, with a tokenizer of its own. Its pretraining.json says how it was
made, and how many of fashion-shops' test images it names right without training. `--steps` repeats a run, whose number
of steps is there, in place of `--seconds`.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from clip_captions import FILLERS, behind, captions, learn_tokenizer, tokenized
from clip_layout import write
from pretrain_vit import TrainingPlan, leftover, probe, training_options, view
from torch import Tensor, nn

from promptfed.backbones import clip_checkpoint, text, transformer
from promptfed.backbones.clip import CLIP, LoadedCLIP
from promptfed.backbones.clip_checkpoint import EMBEDDED, ClipArch
from promptfed.backbones.text import TextArch
from promptfed.backbones.tokenizer import LAST, START, Tokenizer
from promptfed.backbones.transformer import Arch
from promptfed.core import tree
from promptfed.core.tree import Tree
from promptfed.data.archives import read_idx
from promptfed.data.shops import CLASSES, SHOPS, SIDE, load_shops

WARM_UP = 20  # steps before the speed is measured
LONGEST_FILLER = 16

# -- training -----------------------------------------------------------------------------------------------------


def labelled(source: Path) -> tuple[Tensor, Tensor]:
    """Return the training photographs of which fashion-shops has no copy, and their labels."""
    images, labels = (read_idx(source / f"train-{name}-ubyte.gz") for name in ("images-idx3", "labels-idx1"))
    known = {image.tobytes(): int(label) for image, label in zip(images, labels, strict=True)}
    photographs = leftover(source)
    return photographs, torch.tensor([known[one.numpy().tobytes()] for one in photographs])


def contrast(images: Tensor, texts: Tensor, true: Tensor, scale: Tensor) -> Tensor:
    """Return the loss of finding the captions that are `true` [images, texts] of an image, and the images of a caption.

    All right answers shall have the same share.
    """
    logits = scale * images @ texts.T
    losses = []
    for scores, right in ((logits, true), (logits.T, true.T)):
        count = right.sum(1)
        each = -(scores.log_softmax(1) * right).sum(1) / count.clamp(min=1)
        losses.append(each[count > 0].mean())
    return (losses[0] + losses[1]) / 2


def paced(plan: TrainingPlan) -> Iterator[tuple[int, float]]:
    """Yield the number of every step and its learning rate: a warm-up, then half a cosine over the time there is."""
    steps, step, began = plan.steps, 0, time.perf_counter()
    while not steps or step < steps:
        if not steps and step in (WARM_UP, 2 * WARM_UP) and plan.device.type == "cuda":
            torch.cuda.synchronize()  # what is still queued has taken no time yet
        if not steps and step == WARM_UP:
            began = time.perf_counter()
        if not steps and step == 2 * WARM_UP:
            steps = step + int(plan.seconds / ((time.perf_counter() - began) / WARM_UP))
        done = step / steps if steps else 0.0
        yield step, plan.lr * min(1.0, (step + 1) / 200) * (0.5 + 0.5 * math.cos(math.pi * done))
        step += 1


def pretrain(
    net: LoadedCLIP, weights: Tree, tokenizer: Tokenizer, data: Path, plan: TrainingPlan
) -> tuple[Tree, int, int]:
    """Return the trained weights, the number of photographs, and the number of steps it took.

    `weights` has those of the image tower as `image.*`, of the text tower as `text.*`, and `logit_scale`.
    """
    generator = torch.Generator(plan.device).manual_seed(plan.seed)
    weights = {name: value.to(plan.device).clone().requires_grad_() for name, value in weights.items()}
    decayed = [value for value in weights.values() if value.dim() > 1]
    others = [value for value in weights.values() if value.dim() <= 1]
    optimiser = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": plan.weight_decay}, {"params": others, "weight_decay": 0.0}], lr=plan.lr
    )
    photographs, labels = (value.to(plan.device) for value in labelled(data))
    every = tokenized(tokenizer, plan.device)
    fillers = torch.tensor([tokenizer.vocabulary[word + LAST] for word in FILLERS], device=plan.device)
    start, step, began = tokenizer.vocabulary[START], 0, time.perf_counter()
    low = plan.device.type == "cuda"

    def draw(count: int, among: int) -> Tensor:
        return torch.randint(among, (count,), device=plan.device, generator=generator)

    for step, lr in paced(plan):
        for group in optimiser.param_groups:
            group["lr"] = lr
        chosen, said = draw(plan.batch, len(photographs)), draw(plan.batch, len(every.tokens))
        views = view(photographs[chosen].float() / 255, generator, drawn=0, outside=0)
        colour = behind(views)
        image = {name.removeprefix("image."): value for name, value in weights.items() if name.startswith("image.")}
        tower = {name.removeprefix("text."): value for name, value in weights.items() if name.startswith("text.")}
        tower = tree.map(torch.Tensor.bfloat16, tower) if low else tower
        # a few words of no meaning in front: the tower shall read a name at any place, behind any context
        before = tower["token"][fillers[draw(step % (LONGEST_FILLER + 1), len(fillers))]]
        ending = tower["token"][every.tokens[said]]
        spelled = tower | {"start": tower["token"][start], "ending": ending, "end": every.end[said]}
        texts = text.features(net.text_arch, spelled, before[None], chunk=plan.batch)
        images = F.normalize(net.image.features(image, views), dim=-1)
        true = (labels[chosen][:, None] == every.label[said]) & (
            (every.colour[said] < 0) | (every.colour[said] == colour[:, None])
        )
        loss = contrast(images, texts, true.float(), weights["logit_scale"].clamp(max=math.log(100)).exp())
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(weights.values(), 1.0)
        optimiser.step()
        if step % 200 == 0 or step == 2 * WARM_UP:
            print(f"step {step}: loss {loss.item():.3f}, {time.perf_counter() - began:.0f} s", flush=True)
    with torch.no_grad():
        weights["logit_scale"].clamp_(max=math.log(100))
    return tree.map(lambda value: value.detach().cpu().half().float(), weights), len(photographs), step + 1


# -- what it is worth ---------------------------------------------------------------------------------------------


def zero_shot(net: LoadedCLIP, device: torch.device) -> dict[str, float]:
    """Return the share of fashion-shops' test images that are closest to their class's name, in all and by shop."""
    shops = load_shops()
    pixels = torch.from_numpy(shops.images[shops.test]).permute(0, 3, 1, 2)
    with torch.no_grad():
        parts = [net.features({}, part.to(device).float() / 127.5 - 1) @ net.zero_shot.T for part in pixels.split(500)]
    right = (torch.cat(parts).argmax(1).cpu() == torch.from_numpy(shops.labels[shops.test])).float()
    where = torch.from_numpy(shops.domains[shops.test])
    by_shop = {name: round(float(right[where == number].mean()), 4) for number, name in enumerate(SHOPS)}
    return {"all": round(float(right.mean()), 4)} | by_shop


def architecture(given: argparse.Namespace, vocabulary: int) -> ClipArch:
    """Return the architecture that the options ask for, with a vocabulary of that size."""
    grid = SIDE // given.patch, SIDE // given.patch
    return ClipArch(
        Arch(given.width, given.depth, given.heads, given.patch, 4 * given.width, grid, eps=1e-5, quick_gelu=True,
             pre_norm=True, patch_bias=False, projection=given.features),
        TextArch(given.text_width, given.text_depth, given.text_heads, 4 * given.text_width, vocabulary, 77,
                 given.features),
    )  # fmt: skip


def fresh_weights(net: LoadedCLIP, arch: ClipArch, seed: int) -> Tree:
    """Return the weights that training starts from: `image.*`, `text.*` and `logit_scale`."""
    generator = torch.Generator().manual_seed(seed)
    weights = {f"image.{name}": value for name, value in net.image.pretrained.items()}
    weights |= {f"text.{name}": value for name, value in text.fresh(arch.text, generator).items()}
    assert weights.keys() == {f"image.{name}" for name in transformer.shapes(arch.image)} | {
        f"text.{name}" for name in text.shapes(arch.text)
    }
    return weights | {"logit_scale": torch.tensor(1 / 0.07).log()}


def main() -> None:
    """Read the arguments, train, write and measure."""
    parser = argparse.ArgumentParser(description="Pretrain the embedded dual encoder on captioned photographs.")
    parser.add_argument("--data", type=Path, required=True, help="the folder with the official Fashion-MNIST files")
    parser.add_argument("--out", type=Path, default=EMBEDDED, help=f"the folder to write (default: {EMBEDDED})")
    training_options(parser)
    parser.add_argument("--patch", type=int, default=4)
    parser.add_argument("--width", type=int, default=160)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--heads", type=int, default=5)
    parser.add_argument("--text-width", type=int, default=128)
    parser.add_argument("--text-depth", type=int, default=4)
    parser.add_argument("--text-heads", type=int, default=4)
    parser.add_argument("--features", type=int, default=128)
    given = parser.parse_args()
    plan = TrainingPlan(given.device, given.seconds, given.steps, given.seed, given.batch)
    tokenizer = learn_tokenizer([one for one, _, _ in captions()] + [" ".join(FILLERS)])
    size = len(tokenizer.vocabulary)
    arch = architecture(given, size)
    net = CLIP.random((3, SIDE, SIDE), CLASSES, arch, seed=plan.seed).to(plan.device)
    weights = fresh_weights(net, arch, plan.seed)
    print(f"{tree.floats(weights):,} weights, {size} tokens, {len(set(captions())):,} captions", flush=True)
    weights, photographs, steps = pretrain(net, weights, tokenizer, given.data, plan)
    write(given.out, arch, weights, tokenizer)
    clip_checkpoint.read_arch.cache_clear()
    made = CLIP((3, SIDE, SIDE), len(CLASSES), CLASSES, str(given.out)).to(plan.device)
    facts = {
        "photographs": photographs,
        "captions": len(set(captions())),
        "weights": tree.floats(weights),
        "seed": plan.seed,
        "steps": steps,
        "batch": plan.batch,
        "torch": torch.__version__,
        "zero_shot": zero_shot(made, plan.device),
        "probe": probe(made.image, made.image.pretrained, plan.device),
    }
    (given.out / "pretraining.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(facts, indent=1))
    print(f"{given.out}: {sum(path.stat().st_size for path in given.out.iterdir()):,} bytes")


if __name__ == "__main__":
    main()
