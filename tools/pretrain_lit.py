"""Train a text tower for a frozen DINOv2: locked-image tuning (LiT, Zhai et al. 2022). What comes out is not CLIP.

    python tools/pretrain_lit.py --dinov2 dinov2_vits14.safetensors --vocabulary bpe_simple_vocab_16e6.txt.gz
        --sentences all-MiniLM-L6-v2 --images cifar100.npz --images flowers102 --device cuda --out lit

The text tower learns to say of a text what a frozen sentence encoder says (distillation, on the words of the vocabulary
and the names of the classes), half of the time behind words of no meaning, so that a learned context may stand there.
The image tower is frozen; its projection learns to put the name of an image's class closer to the image than the names
of all other classes. Nothing else learns from images: the names of their classes would move away from the names of all
others, and no image would be called by a name that had none.

Images are an .npz with x_train, y_train and class_names (and x_test, y_test), or a folder CLASS/*.jpg, whose
classes.json may give the classes' names and of which every tenth image is kept for testing. Sentence features are kept
in --targets, so that they can be computed on another machine; the folder of the sentence encoder is then not needed.
The folder written is in the model hub's CLIP layout, with a DINOv2 as `vision_config`; pretraining.json says how it
was made and how many test images it names right.
"""

import argparse
import gzip
import json
import re
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from clip_layout import hub_tensors, write_folder
from numpy.typing import NDArray
from PIL import Image
from pretrain_clip import paced
from pretrain_vit import TrainingPlan, training_options
from torch import Tensor, nn

from promptfed.backbones import checkpoint, text
from promptfed.backbones.checkpoint import IMAGENET
from promptfed.backbones.clip import CLIP
from promptfed.backbones.clip_checkpoint import read_towers
from promptfed.backbones.init import affine
from promptfed.backbones.pretrained import ViT, fit_positions
from promptfed.backbones.text import TextArch
from promptfed.backbones.tokenizer import END, LAST, START, Tokenizer, letters, read_tokenizer
from promptfed.backbones.transformer import Arch
from promptfed.core import tree
from promptfed.core.tree import Tree

MERGES = 49152 - 256 - 2  # of the published file, CLIP uses so many
TEMPLATES = ("a photo of a {}.", "{}", "a {}.", "a picture of a {}.", "a blurry photo of the {}.", "a drawing of a {}.")
LONGEST = 16  # tokens of a text
LONGEST_CONTEXT = 16
GENTLE = 10.0  # of the projection's logits: a steeper softmax fits classes that have images, and forgets the others


@dataclass(frozen=True)
class LabelledImages:
    """Images of known classes."""

    name: str
    classes: list[str]
    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    test: NDArray[np.bool_]


# -- reading ------------------------------------------------------------------------------------------------------


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


def read_images(path: Path, side: int) -> LabelledImages:
    """Return the images of an .npz or of a folder of classes, those of a folder at `side` × `side` pixels."""
    if path.is_file():
        content = np.load(path)
        names = [str(name).replace("_", " ") for name in content["class_names"]]
        splits = [split for split in ("train", "test") if f"x_{split}" in content]
        images, labels = (np.concatenate([content[f"{kind}_{split}"] for split in splits]) for kind in "xy")
        test = np.concatenate([np.full(len(content[f"y_{split}"]), split == "test") for split in splits])
        return LabelledImages(path.stem, names, images, labels.astype(np.int64), test)
    called = json.loads((path / "classes.json").read_text("utf-8")) if (path / "classes.json").is_file() else {}
    folders = sorted(folder for folder in path.iterdir() if folder.is_dir())
    files = [(file, label) for label, folder in enumerate(folders) for file in sorted(folder.glob("*.jpg"))]
    pixels = np.stack([np.asarray(Image.open(file).convert("RGB").resize((side, side))) for file, _ in files])
    names = [str(called.get(folder.name, folder.name)).replace("_", " ") for folder in folders]
    labels = np.array([label for _, label in files], np.int64)
    return LabelledImages(path.name, names, pixels, labels, np.arange(len(files)) % 10 == 9)


def image_features(album: LabelledImages, dinov2: Path, size: int, device: torch.device) -> Tensor:
    """Return the class tokens [N, D] of a frozen DINOv2."""
    shape = (3, *album.images.shape[1:3])
    net = ViT(shape, 1, str(dinov2), size).to(device)
    mean, std = (torch.tensor(value, device=device).view(3, 1, 1) for value in IMAGENET)
    parts = []
    with torch.no_grad():
        for part in torch.from_numpy(album.images).split(256):
            x = part.to(device).permute(0, 3, 1, 2).float() / 255
            parts.append(net.features({}, (x - mean) / std))
    return torch.cat(parts)


def sentence_features(folder: Path, texts: list[str], device: torch.device) -> NDArray[np.float16]:
    """Return the unit features of texts by a sentence encoder in the hub's layout: the mean over its tokens."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval().to(device)
    parts = []
    with torch.no_grad():
        for first in range(0, len(texts), 512):
            said: Any = tokenizer(texts[first : first + 512], padding=True, truncation=True, return_tensors="pt")
            said = said.to(device)
            mask = said["attention_mask"][..., None]
            mean = (model(**said).last_hidden_state * mask).sum(1) / mask.sum(1)
            parts.append(F.normalize(mean, dim=-1).half().cpu())
    return torch.cat(parts).numpy()


def targets(
    file: Path, sentences: Path | None, tokenizer: Tokenizer, names: list[str], device: torch.device
) -> tuple[list[str], Tensor]:
    """Return texts and their sentence features, from `file` where it has been made before."""
    if not file.is_file():
        if sentences is None:
            raise SystemExit(f"{file} is not there yet: give --sentences, the folder of a sentence encoder.")
        words = [piece.removesuffix(LAST) for piece in tokenizer.vocabulary if re.fullmatch(r"[a-z]{3,}</w>", piece)]
        texts = [template.format(name) for name in names for template in TEMPLATES]
        texts += [template.format(word) for word in words for template in TEMPLATES[:2]]
        texts += [f"a {first} {second}." for first, second in zip(words[::2], words[1::2], strict=False)]
        np.savez(file, texts=np.array(texts), features=sentence_features(sentences, texts, device))
    content = np.load(file)
    return [str(one) for one in content["texts"]], torch.from_numpy(content["features"])


# -- training -----------------------------------------------------------------------------------------------------


def tokenized(tokenizer: Tokenizer, texts: list[str], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the tokens of texts [N, LONGEST + 1], ended and filled up with end tokens, and the place of the first."""
    stop = tokenizer.vocabulary[END]
    rows = [tokenizer(one)[:LONGEST] for one in texts]
    padded = [row + [stop] * (LONGEST + 1 - len(row)) for row in rows]
    return torch.tensor(padded, device=device), torch.tensor([len(row) for row in rows], device=device)


def pretrain(
    arch: TextArch,
    weights: Tree,
    tokenizer: Tokenizer,
    images: tuple[Tensor, Tensor],
    classes: list[str],
    taught: tuple[list[str], Tensor],
    plan: TrainingPlan,
) -> tuple[Tree, int]:
    """Return the trained weights and the number of steps; `images` are features with labels among all `classes`."""
    device = plan.device
    generator = torch.Generator(device).manual_seed(plan.seed)
    weights = {name: value.to(device).clone().requires_grad_() for name, value in weights.items()}
    optimiser = torch.optim.AdamW(weights.values(), lr=plan.lr, weight_decay=plan.weight_decay)
    features, labels = (value.to(device) for value in images)
    texts, wanted = tokenized(tokenizer, taught[0], device), taught[1].to(device).float()
    named = [tokenized(tokenizer, [form.format(one) for one in classes], device) for form in TEMPLATES]
    began, step = time.perf_counter(), 0

    def draw(count: int, among: int) -> Tensor:
        return torch.randint(among, (count,), device=device, generator=generator)

    def said(tower: Tree, tokens: Tensor, end: Tensor, context: Tensor) -> Tensor:
        ending = tower["token"][tokens[:, : int(end.max()) + 1]]
        spelled = tower | {"start": tower["token"][tokenizer.vocabulary[START]], "ending": ending, "end": end}
        return text.features(arch, spelled, context[None], chunk=len(tokens))

    for step, lr in paced(plan):
        for group in optimiser.param_groups:
            group["lr"] = lr
        tower = {name.removeprefix("text."): value for name, value in weights.items() if name.startswith("text.")}
        tower = tree.map(torch.Tensor.bfloat16, tower) if device.type == "cuda" else tower
        some = draw(plan.batch, len(wanted))
        odd = tower["token"][draw(step // 2 % (LONGEST_CONTEXT + 1) * (step % 2), tokenizer.vocabulary[START])]
        distance = 1 - (said(tower, texts[0][some], texts[1][some], odd) * wanted[some]).sum(-1).mean()
        with torch.no_grad():
            known = said(tower, *named[step % len(TEMPLATES)], odd)
        chosen = draw(plan.batch, len(labels))
        shown = F.normalize(F.linear(features[chosen], weights["image.projection.weight"]), dim=-1)
        cosines, scale = shown @ known.T, weights["logit_scale"].clamp(max=np.log(100).item()).exp()
        loss = distance + F.cross_entropy(GENTLE * cosines, labels[chosen])
        loss = loss + F.cross_entropy(scale * cosines.detach(), labels[chosen])
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(weights.values(), 1.0)
        optimiser.step()
        if step % 200 == 0:
            done = time.perf_counter() - began
            print(f"step {step}: loss {loss.item():.3f}, distance {distance.item():.3f}, {done:.0f} s", flush=True)
    with torch.no_grad():
        weights["logit_scale"].clamp_(max=np.log(100).item())
    return tree.map(lambda value: value.detach().cpu(), weights), step + 1


# -- writing ------------------------------------------------------------------------------------------------------


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


def zero_shot(folder: Path, size: int, features: Tensor, album: LabelledImages) -> float:
    """Return the share of the album's test images, given by their class tokens, closest to their class's name."""
    net = CLIP((3, size, size), len(album.classes), tuple(album.classes), str(folder)).to(features.device)
    with torch.no_grad():
        projected = features @ net.image.pretrained["projection.weight"].to(features.device).T
        best = (projected @ net.zero_shot.T).argmax(1).cpu().numpy()
    return round(float((best == album.labels)[album.test].mean()), 4)


def main() -> None:
    """Read the arguments, train, write and measure."""
    parser = argparse.ArgumentParser(description="Train a text tower for a frozen DINOv2.")
    parser.add_argument("--dinov2", type=Path, required=True, help="a DINOv2 as `vit` reads it")
    parser.add_argument("--vocabulary", type=Path, required=True, help="CLIP's tokenizer: bpe_simple_vocab or a folder")
    parser.add_argument("--sentences", type=Path, help="the folder of a sentence encoder")
    parser.add_argument("--targets", type=Path, default=Path("targets.npz"), help="where sentence features are kept")
    parser.add_argument("--images", type=Path, action="append", required=True, help="an .npz or a folder; repeatable")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    parser.add_argument("--start", type=Path, help="a folder written before, whose text tower is trained further")
    parser.add_argument("--size", type=int, default=112, help="images are resized to so many pixels per side")
    training_options(parser)
    parser.add_argument("--text-width", type=int, default=384)
    parser.add_argument("--text-depth", type=int, default=4)
    parser.add_argument("--text-heads", type=int, default=6)
    parser.add_argument("--only-targets", action="store_true", help="compute the sentence features and stop")
    given = parser.parse_args()
    plan = TrainingPlan(given.device, given.seconds, given.steps, given.seed, given.batch, lr=5e-4)
    tokenizer = read_vocabulary(given.vocabulary)
    albums = [read_images(path, given.size) for path in given.images]
    classes = sorted({name for album in albums for name in album.classes})
    taught = targets(given.targets, given.sentences, tokenizer, classes, plan.device)
    print(f"{len(taught[0]):,} texts, {len(classes)} classes", flush=True)
    if given.only_targets:
        return
    form = checkpoint.read_arch(str(given.dinov2))
    features = [image_features(album, given.dinov2, given.size, plan.device) for album in albums]
    training = [torch.from_numpy(~album.test).to(plan.device) for album in albums]
    seen = torch.cat([own[rows] for own, rows in zip(features, training, strict=True)])
    labels = [[classes.index(album.classes[label]) for label in album.labels[~album.test]] for album in albums]
    wide, width = taught[1].shape[1], given.text_width
    arch = TextArch(width, given.text_depth, given.text_heads, 4 * width, len(tokenizer.vocabulary), 77, wide)
    generator = torch.Generator().manual_seed(plan.seed)
    weights = {f"text.{name}": value for name, value in text.fresh(arch, generator).items()}
    if given.start:
        weights = {f"text.{name}": value for name, value in read_towers(str(given.start)).text.items()}
    weights["image.projection.weight"] = affine("projection", (wide, form.width), generator)["projection.weight"]
    weights["logit_scale"] = torch.tensor(1 / 0.07).log()
    answers = torch.tensor([label for own in labels for label in own])
    weights, steps = pretrain(arch, weights, tokenizer, (seen, answers), classes, taught, plan)
    grid = (given.size // form.patch, given.size // form.patch)
    image = checkpoint.read_weights(str(given.dinov2))
    image["position"] = fit_positions(image["position"], form.grid, grid)  # it was trained on images of this side
    tensors = hub_tensors(weights) | dinov2_tensors(image, form.patch)
    write_folder(given.out, dinov2_config(replace(form, grid=grid)), arch, tensors, tokenizer)
    facts: dict[str, object] = {
        "texts": len(taught[0]),
        "images": len(answers),
        "classes": len(classes),
        "seed": plan.seed,
        "steps": steps,
        "batch": plan.batch,
        "size": given.size,
        "torch": torch.__version__,
    }
    named = zip(albums, features, strict=True)
    facts["zero_shot"] = {album.name: zero_shot(given.out, given.size, own, album) for album, own in named}
    (given.out / "pretraining.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
