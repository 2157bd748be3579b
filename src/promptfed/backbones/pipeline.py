"""The parts of a latent diffusion model in diffusers' layout: from files, or with random weights."""

import copy
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from promptfed.backbones import checkpoint
from promptfed.core.errors import PromptFedError

EMBEDDED = checkpoint.EMBEDDED / "diffusion"
FOLDERS = ("tokenizer", "text_encoder", "unet", "vae", "scheduler")
PATTERNS = [
    "model_index.json",
    "*/*config.json",
    "tokenizer/*",
    "text_encoder/model.safetensors",
    "unet/diffusion_pytorch_model.safetensors",
    "vae/diffusion_pytorch_model.safetensors",
]
PREDICTIONS = ("epsilon", "v_prediction")
START, END, LAST = "<|startoftext|>", "<|endoftext|>", "</w>"


@dataclass(frozen=True, eq=False)
class Pipeline:
    """The frozen modules of a text-to-image model; `vision` is an image encoder beside it, if there is one."""

    tokenizer: Any  # CLIPTokenizer
    text: Any  # CLIPTextModel
    unet: Any  # UNet2DConditionModel
    vae: Any  # AutoencoderKL
    scheduler: Any  # DDIMScheduler
    vision: Any = None  # CLIPVisionModelWithProjection

    @property
    def shrink(self) -> int:
        """Return how many pixels a latent is wide."""
        return int(2 ** (len(self.vae.config.block_out_channels) - 1))

    def to(self, device: torch.device, kind: torch.dtype) -> "Pipeline":
        """Move the modules, in place; text tower and denoiser work in `kind`, all that sees pixels in float32."""
        move = torch.nn.Module.to  # diffusers' own warns of parts that these models do not have
        return replace(
            self,
            text=move(self.text, device, kind),
            unet=move(self.unet, device, kind),
            vae=move(self.vae, device, torch.float32),
            vision=None if self.vision is None else move(self.vision, device, torch.float32),
        )


def libraries() -> tuple[Any, Any]:
    """Return diffusers and transformers, or say how to get them."""
    try:
        import diffusers
        import transformers
    except ImportError as error:
        raise PromptFedError(
            'The diffusion backbone needs the [diffusion] extra: pip install "promptfed[diffusion]".'
        ) from error
    return diffusers, transformers


# -- reading ------------------------------------------------------------------------------------------------------


def read_pipeline(weights: str, vision: str = "") -> Pipeline:
    """Return the model called `weights` on the CPU, and the image encoder called `vision` if it is given."""
    folder = checkpoint.find(weights, PATTERNS, EMBEDDED)
    for part in FOLDERS:
        if not (folder / part).is_dir():
            raise PromptFedError(f"{folder} is not a text-to-image model in diffusers' layout: it has no {part}/.")
    diffusers, transformers = libraries()
    kinds = {
        "tokenizer": transformers.CLIPTokenizer,
        "text_encoder": transformers.CLIPTextModel,
        "unet": diffusers.UNet2DConditionModel,
        "vae": diffusers.AutoencoderKL,
        "scheduler": diffusers.DDIMScheduler,
    }
    tokenizer, text, unet, vae, scheduler = (_load(kind, folder / part) for part, kind in kinds.items())
    if scheduler.config.prediction_type not in PREDICTIONS:
        known = " or ".join(PREDICTIONS)
        raise PromptFedError(f"{folder} predicts {scheduler.config.prediction_type}; only {known} is supported.")
    seeing = None
    if vision:
        where = checkpoint.find(vision, ["config.json", "model.safetensors"], EMBEDDED)
        seeing = _frozen(_load(transformers.CLIPVisionModelWithProjection, where))
    return Pipeline(tokenizer, _frozen(text), _frozen(unet), _frozen(vae), scheduler, seeing)


def _load(kind: Any, folder: Path) -> Any:
    """Read one part, or say in one sentence what is wrong with its files."""
    plain = {"low_cpu_mem_usage": False} if kind.__module__.startswith("diffusers.models") else {}
    try:
        with _quiet():
            return kind.from_pretrained(str(folder), **plain)
    except Exception as error:  # damaged files make these libraries raise nearly anything
        reason = (str(error) or type(error).__name__).strip().splitlines()[0].rstrip(".")
        raise PromptFedError(f"{folder} cannot be read as a {kind.__name__}: {reason}.") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers from drawing progress bars of its own."""
    _, transformers = libraries()
    logging = transformers.utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _frozen(module: Any) -> Any:
    return module.float().eval().requires_grad_(False)


# -- making -------------------------------------------------------------------------------------------------------


def fresh_pipeline(
    texts: Iterable[str],
    *,
    unet: Mapping[str, object],
    vae: Mapping[str, object],
    text: Mapping[str, object],
    context: int = 77,
    times: int = 1000,
    prediction: str = "epsilon",
    seed: int = 0,
) -> Pipeline:
    """Return a model with random weights whose tokenizer knows every word of `texts` as one token.

    `unet`, `vae` and `text` are options of diffusers' and transformers' own configurations. It is for pretraining,
    for tests and for measuring speed.
    """
    diffusers, transformers = libraries()
    vocabulary, merges = word_pieces(texts)
    tokenizer = transformers.CLIPTokenizer(vocab=vocabulary, merges=merges, model_max_length=context)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = transformers.CLIPTextConfig(
            vocab_size=len(vocabulary),
            max_position_embeddings=context,
            bos_token_id=vocabulary[START],
            eos_token_id=vocabulary[END],
            pad_token_id=vocabulary[END],
            **text,
        )
        tower = transformers.CLIPTextModel(config)
        denoiser = diffusers.UNet2DConditionModel(cross_attention_dim=config.hidden_size, **unet)
        coder = diffusers.AutoencoderKL(**vae)
    scheduler = _scheduler(times, prediction)
    return Pipeline(tokenizer, _frozen(tower), _frozen(denoiser), _frozen(coder), scheduler)


def _scheduler(times: int, prediction: str) -> Any:
    """Return the noise schedule of Stable Diffusion."""
    diffusers, _ = libraries()
    return diffusers.DDIMScheduler(
        num_train_timesteps=times,
        beta_schedule="scaled_linear",
        beta_start=0.00085,
        beta_end=0.012,
        clip_sample=False,
        set_alpha_to_one=False,
        steps_offset=1,
        prediction_type=prediction,
    )


def word_pieces(texts: Iterable[str]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return the vocabulary and merges of a byte-pair encoding in which every word of `texts` is one token.

    The most frequent neighbours are joined first, as the encoding will join them, until every word is whole.
    """
    words = sorted({word for line in texts for word in re.findall(r"[a-z]+|[0-9]|[^\sa-z0-9]+", line.lower())})
    split = [[*word[:-1], word[-1] + LAST] for word in words]
    letters = [chr(code) for code in range(33, 127)]
    merges: list[tuple[str, str]] = []
    while counts := Counter(pair for pieces in split for pair in pairwise(pieces)):
        best = max(counts, key=lambda pair: (counts[pair], pair))
        merges.append(best)
        split = [_joined(pieces, best) for pieces in split]
    pieces = [*letters, *(letter + LAST for letter in letters), *("".join(pair) for pair in merges), START, END]
    return {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}, merges


def _joined(pieces: Sequence[str], pair: tuple[str, str]) -> list[str]:
    joined, at = [], 0
    while at < len(pieces):
        both = tuple(pieces[at : at + 2]) == pair
        joined.append("".join(pair) if both else pieces[at])
        at += 2 if both else 1
    return joined


def write_pipeline(pipeline: Pipeline, folder: Path) -> None:
    """Write the model in diffusers' layout, in half precision."""
    diffusers, _ = libraries()
    parts = (pipeline.tokenizer, pipeline.text, pipeline.unet, pipeline.vae, pipeline.scheduler)
    index: dict[str, object] = {"_class_name": "StableDiffusionPipeline", "_diffusers_version": diffusers.__version__}
    for name, part in zip(FOLDERS, parts, strict=True):
        small: Any = copy.deepcopy(part).half() if isinstance(part, torch.nn.Module) else part
        small.save_pretrained(str(folder / name))
        index[name] = [type(part).__module__.partition(".")[0], type(part).__name__]
    index |= {key: [None, None] for key in ("feature_extractor", "image_encoder", "safety_checker")}
    (folder / "model_index.json").write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    for path in folder.rglob("*.safetensors"):
        path.chmod(0o644)  # safetensors writes it for its owner alone


# -- prompts ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Prompts:
    """Templates as tokens [T, L], and where in them the vectors of the pseudo-word stand, slots [T, L, v].

    `words` [T, L] is 1 at the template's own words: neither start, end and filling nor the pseudo-word.
    """

    tokens: Tensor
    slots: Tensor
    words: Tensor


def read_prompts(tokenizer: Any, templates: Sequence[str], vectors: int, device: torch.device) -> Prompts:
    """Tokenise templates with `vectors` places for the pseudo-word at their {}."""
    length = tokenizer.model_max_length
    tokens = torch.full((len(templates), length), tokenizer.pad_token_id)
    slots, words = torch.zeros(len(templates), length, vectors), torch.zeros(len(templates), length)
    for row, template in enumerate(templates):
        if template.count("{}") != 1:
            raise PromptFedError(f'A template needs one place for the word: "{template}" has {template.count("{}")}.')
        before, after = (tokenizer(part, add_special_tokens=False).input_ids for part in template.split("{}"))
        place = 1 + len(before)
        line = [tokenizer.bos_token_id, *before, *[tokenizer.eos_token_id] * vectors, *after, tokenizer.eos_token_id]
        if len(line) > length:
            raise PromptFedError(f'"{template}" with a word of {vectors} vectors is longer than {length} tokens.')
        tokens[row, : len(line)] = torch.tensor(line)
        words[row, 1 : len(line) - 1] = 1
        words[row, place : place + vectors] = 0
        slots[row, place : place + vectors] = torch.eye(vectors)
    return Prompts(tokens.to(device), slots.to(device), words.to(device))
