"""The embedded dual encoder: its files, its size, and that it is what its layout says."""

import json
import sys
from pathlib import Path

import pytest
import torch
from transformers import CLIPModel, CLIPTokenizer

from promptfed.backbones.clip import CLIP
from promptfed.backbones.clip_checkpoint import EMBEDDED
from promptfed.backbones.text import shapes
from promptfed.backbones.tokenizer import read_tokenizer
from promptfed.data.shops import CLASSES, SHOPS, load_shops

NET = CLIP((3, 32, 32), len(CLASSES), CLASSES).to(torch.device("cpu"))
FACTS = json.loads((EMBEDDED / "pretraining.json").read_text(encoding="utf-8"))


def test_it_is_small() -> None:
    assert sum(path.stat().st_size for path in Path(EMBEDDED).iterdir()) <= 6_000_000


def test_it_says_how_it_was_made() -> None:
    assert FACTS["photographs"] == 60_000 - 6_000  # what fashion-shops leaves of the training file
    text = sum(torch.Size(shape).numel() for shape in shapes(NET.text_arch).values())
    image = sum(value.numel() for value in NET.image.pretrained.values())
    assert FACTS["weights"] == text + image + 1  # and logit_scale
    assert FACTS["zero_shot"].keys() == FACTS["probe"].keys() == {"all", *SHOPS}


def test_its_form_is_the_documented_one() -> None:
    image, words = NET.arch.image, NET.arch.text
    assert (image.patch, image.width, image.depth, image.heads, image.mlp) == (8, 96, 3, 3, 384)
    assert (words.width, words.depth, words.heads, words.mlp, words.positions) == (64, 2, 4, 256, 77)
    assert image.projection == words.projection == 128


def test_it_names_the_demos_images_as_often_as_it_says() -> None:
    shops = load_shops()
    some = shops.test.nonzero()[0][::7]  # of all classes in turn
    x = torch.from_numpy(shops.images[some]).permute(0, 3, 1, 2).float() / 127.5 - 1
    right = (NET.features({}, x) @ NET.zero_shot.T).argmax(1) == torch.from_numpy(shops.labels[some])
    assert float(right.float().mean()) == pytest.approx(FACTS["zero_shot"]["all"], abs=0.1)
    assert FACTS["zero_shot"]["all"] > 0.2  # chance: 0.1


def test_every_class_is_one_word_or_a_few() -> None:
    tokenizer = read_tokenizer(EMBEDDED)
    assert [len(tokenizer(name)) for name in CLASSES] == [5, 1, 1, 1, 1, 1, 1, 1, 1, 2]  # "t", "-", "shirt", "/", "top"


def test_transformers_reads_it_too() -> None:
    model = CLIPModel.from_pretrained(EMBEDDED).float().eval()
    tokenizer = CLIPTokenizer.from_pretrained(EMBEDDED)
    texts = [f"a photo of a {name}." for name in CLASSES]
    tokens = tokenizer(texts, padding="max_length", max_length=77, return_tensors="pt")["input_ids"]
    x = torch.from_numpy(load_shops().images[::1000]).permute(0, 3, 1, 2).float() / 127.5 - 1
    with torch.no_grad():
        found = torch.nn.functional.normalize(model.get_text_features(tokens).pooler_output, dim=-1)
        torch.testing.assert_close(NET.zero_shot, found, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(NET.features({}, x), model.get_image_features(x).pooler_output, rtol=1e-4, atol=1e-4)


def test_it_needs_no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("transformers", "huggingface_hub", "tokenizers", "httpx"):
        monkeypatch.setitem(sys.modules, name, None)
    again = CLIP((3, 32, 32), len(CLASSES), CLASSES).to(torch.device("cpu"))
    assert again.zero_shot.equal(NET.zero_shot)
