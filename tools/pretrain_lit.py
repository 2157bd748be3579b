"""Train a text tower for a frozen DINOv2, so that texts and images lie in one space. What comes out is not CLIP.

    python tools/lit_features.py --dinov2 dinov2_vits14.safetensors --out features/pool pool/*  (and bench/*)
    python tools/pretrain_lit.py --dinov2 dinov2_vits14.safetensors --vocabulary bpe_simple_vocab_16e6.txt.gz
        --sentences all-MiniLM-L6-v2 --synonyms pool/synonyms.json --words dict/index.noun
        --features features/pool --bench features/bench --device cuda --out lit

The image tower stays as it is; its projection whitens the features within classes. What a text should look like is
carried over from classes that have images by `lit_targets`, for every noun of WordNet, every word of the vocabulary,
the names of classes and the captions. The text tower learns to give that, half of the time behind words of no meaning,
so that a learned context may stand there. No image and no class of the benchmark is used for any of it.

The folder written is in the model hub's CLIP layout, with a DINOv2 as `vision_config`; pretraining.json says how it
was made and how many images of the benchmark it names right.
"""

import argparse
import gzip
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from clip_layout import hub_tensors, write_folder
from lit_features import Features, read_features
from lit_targets import Looks, Seen, Sentences, Whitening, gather, teach
from pretrain_clip import paced
from pretrain_vit import TrainingPlan, training_options
from torch import Tensor, nn

from promptfed.backbones import checkpoint, text
from promptfed.backbones.clip import CLIP
from promptfed.backbones.clip_checkpoint import read_towers
from promptfed.backbones.pretrained import fit_positions
from promptfed.backbones.text import TextArch
from promptfed.backbones.tokenizer import END, LAST, START, Tokenizer, letters, read_tokenizer
from promptfed.backbones.transformer import Arch
from promptfed.core import tree
from promptfed.core.tree import Tree

MERGES = 49152 - 256 - 2  # of the published file, CLIP uses so many
FORMS = ("a photo of a {}.", "{}.", "a {}.", "a picture of a {}.", "a blurry photo of the {}.", "a drawing of a {}.")
LONGEST = 20  # tokens of a text
LONGEST_CONTEXT = 16
STEEP = 20.0  # of the softmax over a batch's targets: texts that are alike must still be told apart
SHARES = (0.5, 0.2, 0.3)  # of a batch: nouns and words, names of classes, captions


@dataclass(frozen=True)
class Lessons:
    """Texts and what they should look like [N, D], in three groups: nouns and words, names of classes, captions."""

    texts: list[str]
    looks: Tensor
    groups: tuple[int, int, int]  # how many of each


# -- what is taught ---------------------------------------------------------------------------------------------------


def read_vocabulary(path: Path) -> Tokenizer:
    """Return CLIP's tokenizer, from a folder in the hub's layout or from the published bpe_simple_vocab file."""
    if path.is_dir():
        return read_tokenizer(path)
    lines = gzip.decompress(path.read_bytes()).decode("utf-8").split("\n")[1 : MERGES + 1]
    pairs = [(first, second) for first, second in (line.split() for line in lines)]
    single = list(letters().values())
    pieces = [*single, *(letter + LAST for letter in single), *("".join(pair) for pair in pairs), START, END]
    return Tokenizer(
        {piece: number for number, piece in enumerate(pieces)}, {pair: rank for rank, pair in enumerate(pairs)}
    )


def nouns(index: Path | None, tokenizer: Tokenizer, most: int) -> list[str]:
    """Return WordNet's nouns of up to four words, from its index.noun, and the whole words of the vocabulary."""
    lines = index.read_text("utf-8").splitlines() if index else []
    found = {line.split(" ", 1)[0].replace("_", " ") for line in lines if line and line[0] != " "}
    found = {word for word in found if re.fullmatch(r"[a-z][a-z' .-]+", word) and word.count(" ") < 4}
    found |= {p.removesuffix(LAST) for p in tokenizer.vocabulary if re.fullmatch(r"[a-z]{3,}</w>", p)}
    ordered = sorted(found)
    return ordered[:: max(1, len(ordered) // most)] if most else ordered


def lessons(seen: Seen, words: list[str], captions: list[str], sentences: Sentences, looks: Looks) -> Lessons:
    """Return all that is taught."""
    names = [name for _, name in seen.names]
    named, said = looks(sentences.named([*words, *names])), looks(sentences(captions))
    return Lessons([*words, *names, *captions], torch.cat([named, said]), (len(words), len(names), len(captions)))


def tokenized(
    tokenizer: Tokenizer, texts: Sequence[str], device: torch.device, forms: Sequence[str] = ("{}",)
) -> list[tuple[Tensor, Tensor]]:
    """Return, for each form, tokens of texts [N, LONGEST + 1], filled up with end tokens, and the first one's place.

    Texts are taken apart once for all forms: no token spans two words.
    """
    stop, rows, made = tokenizer.vocabulary[END], [tokenizer(one) for one in texts], []
    for form in forms:
        before, after = (tokenizer(part) for part in form.split("{}"))
        room = LONGEST - len(before) - len(after)
        said = [before + row[:room] + after for row in rows]
        padded = [row + [stop] * (LONGEST + 1 - len(row)) for row in said]
        made.append((torch.tensor(padded, device=device), torch.tensor([len(row) for row in said], device=device)))
    return made


# -- training ---------------------------------------------------------------------------------------------------------


def pretrain(
    arch: TextArch, weights: Tree, tokenizer: Tokenizer, taught: Lessons, plan: TrainingPlan
) -> tuple[Tree, int, float]:
    """Return the trained text tower, the number of steps, and the mean cosine to the targets, as last printed."""
    device = plan.device
    generator = torch.Generator(device).manual_seed(plan.seed)
    weights = {name: value.to(device).clone().requires_grad_() for name, value in weights.items()}
    optimiser = torch.optim.AdamW(weights.values(), lr=plan.lr, weight_decay=plan.weight_decay)
    words, names, _ = taught.groups
    plain = taught.texts[: words + names]
    spelled = tokenized(tokenizer, plain, device, FORMS)
    (told,), wanted = tokenized(tokenizer, taught.texts[words + names :], device), taught.looks.to(device)
    parts = [
        (start, size, int(share * plan.batch) if size else 0)
        for start, size, share in zip((0, words, len(plain)), taught.groups, SHARES, strict=True)
    ]
    near, began, step = 0.0, time.perf_counter(), 0

    for step, lr in paced(plan):
        for group in optimiser.param_groups:
            group["lr"] = lr
        tower = tree.map(torch.Tensor.bfloat16, weights) if device.type == "cuda" else weights
        draws = [
            start + torch.randint(max(1, size), (count,), device=device, generator=generator)
            for start, size, count in parts
        ]
        chosen, free, rest = torch.cat(draws), torch.cat(draws[:2]), draws[2] - len(plain)
        form = spelled[step % len(FORMS)]
        tokens, end = (torch.cat([one[free], other[rest]]) for one, other in zip(form, told, strict=True))
        length = step // 2 % (LONGEST_CONTEXT + 1) * (step % 2)
        odd = torch.randint(tokenizer.vocabulary[START], (length,), device=device, generator=generator)
        ending = tower["token"][tokens]
        known = tower | {"start": tower["token"][tokenizer.vocabulary[START]], "ending": ending, "end": end}
        cosines = text.features(arch, known, tower["token"][odd][None], chunk=len(tokens)) @ wanted[chosen].T
        order = torch.arange(len(chosen), device=device)
        loss = 1 - cosines.diagonal().mean() + F.cross_entropy(STEEP * cosines, order) / STEEP
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(weights.values(), 1.0)
        optimiser.step()
        if step % 500 == 0:
            near, done = cosines.diagonal().mean().item(), time.perf_counter() - began
            print(f"step {step}: loss {loss.item():.3f}, cosine {near:.3f}, {done:.0f} s", flush=True)
    return tree.map(lambda value: value.detach().float().cpu(), weights), step + 1, near


def fitted_scale(net_text: Tensor, shown: Tensor, labels: Tensor) -> Tensor:
    """Return the logarithm of the factor under which cosines are the likeliest logits of the pool's images."""
    cosines = shown @ net_text.T
    factors = torch.linspace(1, 4.6, 37, device=shown.device)
    losses = torch.stack([F.cross_entropy(factor.exp() * cosines, labels) for factor in factors])
    return factors[losses.argmin()].cpu()


# -- writing ----------------------------------------------------------------------------------------------------------


def dinov2_tensors(weights: Tree, patch: int) -> Tree:
    """Return the weights of a DINOv2 in half precision under the model hub's names, as part of a dual encoder."""
    outer = {"patch": "embeddings.patch_embeddings.projection", "norm": "layernorm"}
    inner = {"out": "attention.output.dense", "scale1": "layer_scale1.lambda1", "scale2": "layer_scale2.lambda1"}
    inner |= {"mlp1": "mlp.fc1", "mlp2": "mlp.fc2"}
    made = {"embeddings.cls_token": weights["cls"][None], "embeddings.position_embeddings": weights["position"][None]}
    for name, value in tree.drop(weights, ["cls", "position"]).items():
        block, _, rest = name.partition(".")
        if block in outer:
            made[f"{outer[block]}.{rest}"] = value.unflatten(1, (3, patch, patch)) if name == "patch.weight" else value
            continue
        part, _, kind = rest.partition(".")
        layer = f"encoder.layer.{block.removeprefix('block')}"
        if part == "qkv":
            for which, third in zip(("query", "key", "value"), value.chunk(3), strict=True):
                made[f"{layer}.attention.attention.{which}.{kind}"] = third
        else:
            made[f"{layer}.{inner.get(part, part)}.{kind}".rstrip(".")] = value
    return {f"vision_model.{name}": value.half().contiguous() for name, value in made.items()}


def dinov2_config(arch: Arch) -> dict[str, object]:
    """Return the model hub's configuration of a DINOv2."""
    return {
        "model_type": "dinov2",
        "hidden_size": arch.width,
        "num_hidden_layers": arch.depth,
        "num_attention_heads": arch.heads,
        "mlp_ratio": arch.mlp // arch.width,
        "patch_size": arch.patch,
        "image_size": arch.grid[0] * arch.patch,
        "layer_norm_eps": arch.eps,
        "hidden_act": "gelu",
    }


def zero_shot(folder: Path, size: int, album: Features, whitening: Whitening) -> float:
    """Return the share of an album's images whose class's name, in the tower's own words, is closest to them."""
    net = CLIP((3, size, size), len(album.classes), tuple(album.classes), str(folder)).to(torch.device("cpu"))
    shown = whitening(album.features)
    return round((shown @ net.zero_shot.float().T).argmax(1).eq(album.labels).float().mean().item(), 4)


def write(given: argparse.Namespace, arch: TextArch, weights: Tree, whitening: Whitening, tokenizer: Tokenizer) -> None:
    """Write the folder: the DINOv2 with its mean taken off, the whitening as projection, and the text tower."""
    form = checkpoint.read_arch(str(given.dinov2))
    grid = (given.size // form.patch, given.size // form.patch)
    image = checkpoint.read_weights(str(given.dinov2))
    image["position"] = fit_positions(image["position"], form.grid, grid)  # it was trained on images of this side
    image["norm.bias"] = image["norm.bias"] - whitening.mean.cpu()
    tensors = hub_tensors(weights) | dinov2_tensors(image, form.patch)
    write_folder(given.out, dinov2_config(replace(form, grid=grid)), arch, tensors, tokenizer)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dinov2", type=Path, required=True, help="a DINOv2 as `vit` reads it")
    parser.add_argument("--vocabulary", type=Path, required=True, help="CLIP's tokenizer: bpe_simple_vocab or a folder")
    parser.add_argument("--sentences", type=Path, required=True, help="the folder of a sentence encoder")
    parser.add_argument("--features", type=Path, required=True, help="lit_features' files of the pretraining pool")
    parser.add_argument("--bench", type=Path, help="those of images to be tested on")
    parser.add_argument("--synonyms", type=Path, help="further names of classes, as lit_pool writes them")
    parser.add_argument("--words", type=Path, help="WordNet's index.noun")
    parser.add_argument("--most-words", type=int, default=0, help="take about so many nouns and words; 0: all")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    parser.add_argument("--start", type=Path, help="a folder written before, whose text tower is trained further")
    parser.add_argument("--size", type=int, default=224, help="the side in pixels that features were computed at")
    training_options(parser)
    parser.add_argument("--text-width", type=int, default=384)
    parser.add_argument("--text-depth", type=int, default=6)
    parser.add_argument("--text-heads", type=int, default=6)
    return parser.parse_args()


def main() -> None:
    """Find the targets, train, write and measure."""
    given = arguments()
    plan = TrainingPlan(given.device, given.seconds, given.steps, given.seed, given.batch, lr=1e-3)
    tokenizer = read_vocabulary(given.vocabulary)
    albums = [read_features(path) for path in sorted(given.features.glob("*.npz"))]
    seen, sentences = gather(albums, given.synonyms, plan.device), Sentences(given.sentences, plan.device)
    whitening, looks, facts = teach(seen, sentences)
    print(json.dumps(facts), flush=True)
    words = nouns(given.words, tokenizer, given.most_words)
    captions = [one for album in albums for said in album.captions for one in said]
    taught = lessons(seen, words, captions, sentences, looks)
    print(f"{len(taught.texts):,} texts, {len(seen.classes)} classes", flush=True)
    wide, width = taught.looks.shape[1], given.text_width
    arch = TextArch(width, given.text_depth, given.text_heads, 4 * width, len(tokenizer.vocabulary), 77, wide)
    fresh = text.fresh(arch, torch.Generator().manual_seed(plan.seed))
    tower, steps, near = pretrain(
        arch, read_towers(str(given.start)).text if given.start else fresh, tokenizer, taught, plan
    )
    weights = {f"text.{name}": value for name, value in tower.items()}
    weights["image.projection.weight"] = whitening.root.T.cpu().contiguous()
    asked = looks(sentences.named(seen.classes))
    weights["logit_scale"] = fitted_scale(asked, whitening(seen.features), seen.labels)
    write(given, arch, weights, whitening, tokenizer)
    facts |= {"texts": len(taught.texts), "images": len(seen.labels) + len(seen.captioned)}
    facts |= {"classes": len(seen.classes), "seed": plan.seed, "steps": steps, "batch": plan.batch, "size": given.size}
    facts |= {"cosine": round(near, 4), "torch": torch.__version__}
    bench = [read_features(path) for path in sorted(given.bench.glob("*.npz"))] if given.bench else []
    on_cpu = replace(whitening, mean=whitening.mean.cpu(), root=whitening.root.cpu())
    facts["zero_shot"] = {one.name: zero_shot(given.out, given.size, one, on_cpu) for one in bench}
    (given.out / "pretraining.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
