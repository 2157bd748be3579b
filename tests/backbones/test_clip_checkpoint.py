"""Folders in CLIP's layout: what is read from them, and the sentence a bad one gives."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from promptfed.backbones import clip_checkpoint
from promptfed.backbones.clip import CLIP
from promptfed.backbones.clip_checkpoint import ClipArch
from promptfed.backbones.text import TextArch
from promptfed.backbones.tokenizer import END
from promptfed.backbones.transformer import Arch
from promptfed.core.errors import PromptFedError
from promptfed.core.tree import Tree
from support.tiny_clip import VOCABULARY, clip, saved


def edit(folder: Path, change: Callable[[Tree], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def configure(folder: Path, tower: str, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (config[tower] if tower else config).update(changes)
    (folder / "config.json").write_text(json.dumps(config))


def assert_refused(weights: str | Path, sentence: str) -> None:
    with pytest.raises(PromptFedError, match=sentence) as caught:
        CLIP((3, 16, 16), 2, ("cat", "dog"), str(weights)).to(torch.device("cpu"))
    assert re.fullmatch(r"[^\n]+[.?]", str(caught.value))


def test_what_a_configuration_leaves_out_has_the_hubs_defaults(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "clip", "text_config_dict": null, "vision_config": {}}')
    pixels = clip_checkpoint.PIXELS
    assert clip_checkpoint.read_arch(str(tmp_path)) == ClipArch(
        Arch(
            768, 12, 12, 32, 3072, (7, 7), eps=1e-5, quick_gelu=True, pre_norm=True, patch_bias=False, projection=512,
            statistics=pixels,
        ),
        TextArch(512, 12, 8, 2048, 49408, 77, 512),
    )  # fmt: skip


def test_lists_of_positions_in_old_checkpoints_have_no_use(tmp_path: Path) -> None:
    where = saved(clip(), tmp_path)
    before = clip_checkpoint.read_towers(where)
    edit(tmp_path, lambda tensors: tensors.update({"text_model.embeddings.position_ids": torch.arange(77)[None]}))
    after = clip_checkpoint.read_towers(where)
    assert before.text.keys() == after.text.keys()
    assert before.text["position"].equal(after.text["position"])


def test_another_model(tmp_path: Path) -> None:
    saved(clip(), tmp_path)
    configure(tmp_path, "", model_type="clap")
    assert_refused(tmp_path, r'Unknown model_type "clap" in .*config\.json; did you mean "clip"\?')


def test_another_image_tower(tmp_path: Path) -> None:
    saved(clip(), tmp_path)
    configure(tmp_path, "vision_config", model_type="dinov3")
    assert_refused(tmp_path, r'config\.json has model_type "dinov3"; supported are vit')


@pytest.mark.parametrize("tower", ["vision_config", "text_config"])
@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("hidden_act", "relu", "has hidden_act=relu; only hidden_act=quick_gelu or hidden_act=gelu is supported"),
        ("num_hidden_layers", 0, "num_hidden_layers=0; it must be a whole number of at least 1"),
        ("num_attention_heads", 5, "num_attention_heads=5, which does not divide"),
        ("intermediate_size", 25, r'"block0\.mlp1\.weight" is 24×\d+; its architecture needs 25'),
    ],
)
def test_forms_that_do_not_fit(tower: str, key: str, value: object, sentence: str, tmp_path: Path) -> None:
    saved(clip(), tmp_path)
    configure(tmp_path, tower, **{key: value})
    assert_refused(tmp_path, sentence)


@pytest.mark.parametrize(
    ("gone", "named"),
    [
        ("visual_projection.weight", "projection.weight"),
        ("text_model.final_layer_norm.bias", "norm.bias"),
        ("text_model.encoder.layers.1.self_attn.k_proj.weight", "block1.qkv.weight"),
        ("vision_model.pre_layrnorm.weight", "prenorm.weight"),
        ("vision_model.embeddings.class_embedding", "cls"),
        ("logit_scale", "logit_scale"),
    ],
)
def test_a_missing_weight(gone: str, named: str, tmp_path: Path) -> None:
    saved(clip(), tmp_path)
    edit(tmp_path, lambda tensors: tensors.pop(gone))
    assert_refused(tmp_path, f'is not a complete checkpoint: it has no weight for "{re.escape(named)}"')


def test_no_folder_but_a_file(tmp_path: Path) -> None:
    path = tmp_path / "clip.safetensors"
    save_file({"logit_scale": torch.zeros(())}, path)
    assert_refused(path, "is a file; a dual encoder is a folder in CLIP's layout")


def test_no_weights_and_torn_weights(tmp_path: Path) -> None:
    saved(clip(), tmp_path)
    (tmp_path / "model.safetensors").unlink()
    assert_refused(tmp_path, r"has no model\.safetensors\.$")
    (tmp_path / "pytorch_model.bin").write_bytes(b"torn")
    assert_refused(tmp_path, r"pytorch_model\.bin is not a complete PyTorch file")


def test_no_tokenizer(tmp_path: Path) -> None:
    saved(clip(), tmp_path)
    (tmp_path / "merges.txt").unlink()
    assert_refused(tmp_path, r"has a vocab\.json but no readable merges\.txt\.$")
    (tmp_path / "vocab.json").unlink()
    assert_refused(tmp_path, r"has no tokenizer: neither vocab\.json nor tokenizer\.json\.$")


def test_a_tokenizer_of_another_model(tmp_path: Path) -> None:
    saved(clip(), tmp_path)
    (tmp_path / "vocab.json").write_text(json.dumps(VOCABULARY | {"more": len(VOCABULARY)}))
    assert_refused(tmp_path, rf"has more tokens than the text tower's vocab_size={len(VOCABULARY)}\.$")
    (tmp_path / "vocab.json").write_text(json.dumps({"[CLS]": 0}))
    assert_refused(tmp_path, r"vocab\.json is not a CLIP vocabulary: it has no <\|startoftext\|>\.$")
    assert END in VOCABULARY


def test_a_hub_name_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert_refused("nobody/clip-without-extra", r'needs the \[hf\] extra: pip install "promptfed\[hf\]"')


def test_a_hub_name_fetches_pickled_weights_only_where_there_are_no_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[list[str]] = []
    model = clip()
    saved(model, tmp_path)

    def download(name: str, allow_patterns: list[str]) -> str:
        asked.append(allow_patterns)
        if "pytorch_model.bin" in allow_patterns:
            torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    clip_checkpoint.read_towers("somebody/clip-tiny")
    assert [("vocab.json" in one, "pytorch_model.bin" in one) for one in asked] == [(False, False), (True, False)]
    (tmp_path / "model.safetensors").unlink()
    clip_checkpoint.read_towers("somebody/clip-tiny")
    assert "pytorch_model.bin" in asked[-1]
