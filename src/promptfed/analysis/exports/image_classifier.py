"""A classifier as an ordinary model folder of transformers, which `pipeline("image-classification")` loads.

There is a stock class for a linear head on the class token of a ViT or DINOv2, frozen or trained: nothing else. A
client's class shares are added to the head's bias. Prompts, and text features that images are compared with, have none.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from promptfed.analysis.exports.card import write_about, write_card
from promptfed.analysis.exports.checking import largest_difference
from promptfed.analysis.exports.graphs import Answers, Ask
from promptfed.analysis.exports.making import Exported, exported, in_words, new_folder
from promptfed.analysis.exports.opening import open_source
from promptfed.analysis.exports.snippets import PIPELINE
from promptfed.analysis.predict import Model
from promptfed.backbones import transformer
from promptfed.backbones.checkpoint import vit_name
from promptfed.backbones.pretrained import LoadedViT
from promptfed.backbones.transformer import Arch
from promptfed.backbones.vit import TinyViT
from promptfed.core.errors import PromptFedError
from promptfed.core.tree import Tree
from promptfed.data.dataset import Images

HEAD, PRIOR = ("head.weight", "head.bias"), "own.prior"
WORKS = "use --format onnx or pt2; transformers takes head-probe, vit-full, and fedavg or fedrep on a ViT"


def export_pipeline(source: Path, out: Path, *, client: int | None = None) -> Exported:
    """Write the model folder of one client's classifier to the new folder `out`."""
    _need_transformers()
    with new_folder(out) as (part, scratch):
        found = open_source(source, scratch, client, together=False)
        model = found.model(found.clients[0])
        arch = _check(model, found.method)
        with _quiet():
            _network(model, arch).save_pretrained(part)
            _processor(model).save_pretrained(part)
            difference = largest_difference(_reader(part, model.task.classes), model, {})
        write_about(part, found, "transformers", {}, difference, None)
        write_card(part, found, PIPELINE, [in_words(difference, 1)])
    return exported(out, found, difference)


def _check(model: Model, name: str) -> Arch:
    """Return the architecture of a plain classifier, or refuse a model for which there is no stock class."""
    backbone = model.task.backbone
    if not isinstance(backbone, LoadedViT | TinyViT):
        kind = getattr(backbone, "name", type(backbone).__name__)
        raise PromptFedError(f"transformers has no stock classifier for {name} on backbone {kind}; {WORKS}.")
    arch = backbone.arch
    own = sorted(model.params.keys() - transformer.shapes(arch).keys() - {*HEAD, PRIOR})
    if own or not {*HEAD} <= model.params.keys():
        what = f"has {', '.join(own)}" if own else "has no linear head"
        raise PromptFedError(f"transformers has no stock classifier for {name}, whose model {what}; {WORKS}.")
    sides = arch.grid[0] * arch.patch, arch.grid[1] * arch.patch
    if sides != model.shape:
        (height, width), (to_height, to_width) = model.shape, sides
        raise PromptFedError(
            f"The network itself scales images of {height}×{width} pixels to {to_height}×{to_width}, which "
            f"transformers does not do; use --format onnx or pt2, or train with data.size={to_height}."
        )
    return arch


# -- the network ------------------------------------------------------------------------------------------------------


def _network(model: Model, arch: Arch) -> Any:
    """Return the stock model with the classifier's weights."""
    from transformers import (
        Dinov2Config,
        Dinov2ForImageClassification,
        ViTConfig,
        ViTForImageClassification,
    )

    classes = model.task.classes
    common = {
        "hidden_size": arch.width,
        "num_hidden_layers": arch.depth,
        "num_attention_heads": arch.heads,
        "patch_size": arch.patch,
        "image_size": model.shape[0] if model.shape[0] == model.shape[1] else list(model.shape),
        "layer_norm_eps": arch.eps,
        "id2label": dict(enumerate(classes)),
        "label2id": {name: number for number, name in enumerate(classes)},
    }
    if arch.layer_scale:  # a DINOv2
        config = Dinov2Config(mlp_ratio=_ratio(arch), use_swiglu_ffn=arch.swiglu, **common)
        made = Dinov2ForImageClassification(config)
    else:
        made = ViTForImageClassification(ViTConfig(intermediate_size=arch.mlp, **common))
    weights = getattr(model.task.backbone, "pretrained", {}) | model.params
    made.load_state_dict({name: _weight(name, like, weights) for name, like in made.state_dict().items()})
    return made.eval()


def _ratio(arch: Arch) -> int:
    """Return how much wider than the tokens the hidden layer of a DINOv2 is; a gated one has two thirds of that."""
    return round(arch.mlp * 3 / 2 / arch.width) if arch.swiglu else arch.mlp // arch.width


def _weight(name: str, like: Tensor, weights: Tree) -> Tensor:
    """Return the weight that transformers calls `name`, in its shape."""
    if name.startswith("classifier."):
        return _head(name.removeprefix("classifier."), like, weights)
    ours = vit_name(name, Path(name))
    block, _, rest = ours.partition(".")
    if rest.partition(".")[0] in ("q", "k", "v"):
        part, _, kind = rest.partition(".")
        return weights[f"{block}.qkv.{kind}"].chunk(3)["qkv".index(part)]
    return weights[ours].reshape(like.shape) if ours else torch.zeros_like(like)  # no name: a mask token


def _head(kind: str, like: Tensor, weights: Tree) -> Tensor:
    """Return the classifier's weight or bias; DINOv2's also has columns for the mean of all patches, zero here."""
    value = weights[f"head.{kind}"]
    if kind == "bias":
        return value + weights[PRIOR] if PRIOR in weights else value
    return torch.cat([value, value.new_zeros(len(value), like.shape[1] - value.shape[1])], 1)


def _processor(model: Model) -> Any:
    """Return what scales and normalises images as in training."""
    from transformers import ViTImageProcessor

    height, width = model.shape
    return ViTImageProcessor(
        size={"height": height, "width": width},
        resample=int(Image.Resampling.BICUBIC),
        image_mean=list(model.mean),
        image_std=list(model.std),
    )


# -- asking it --------------------------------------------------------------------------------------------------------


def _reader(folder: Path, classes: tuple[str, ...]) -> Ask:
    """Return what asks the folder as a user of transformers would."""
    from transformers import pipeline

    classify = pipeline("image-classification", model=str(folder), device="cpu")

    def ask(images: Images, own: Tree) -> Answers:
        found = classify([Image.fromarray(image) for image in images], top_k=len(classes))
        scores = [{one["label"]: one["score"] for one in each} for each in found]
        return np.array([[each[name] for name in classes] for each in scores], np.float32)

    return ask


def _need_transformers() -> None:
    """Say how to install what the folder is written with."""
    try:
        import transformers  # noqa: F401
    except ImportError as error:
        raise PromptFedError('A folder of transformers needs the [hf] extra: pip install "promptfed[hf]".') from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the progress bars and remarks of transformers from the user."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
