"""Reading checkpoints: every layout gives the same weights, and a bad one gives a sentence."""

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from promptfed.backbones import checkpoint, transformer
from promptfed.backbones.pretrained import ViT
from promptfed.backbones.transformer import Arch
from promptfed.core.errors import PromptFedError
from promptfed.core.tree import Tree
from support.tiny_hub import dinov2, saved, vit

SHAPE = (3, 16, 16)


def edit(folder: Path, change: Callable[[Tree], object]) -> None:
    """Change the tensors of a saved checkpoint in place."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def configure(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def same(first: Tree, second: Tree) -> bool:
    return first.keys() == second.keys() and all(value.equal(second[name]) for name, value in first.items())


# -- layouts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "vit."])
def test_the_names_of_all_versions_of_transformers(prefix: str, tmp_path: Path) -> None:
    model = vit()
    old, new = tmp_path / "old", tmp_path / "new"
    saved(model, old)
    assert "encoder.layer.0.attention.attention.query.weight" in load_file(old / "model.safetensors")
    state = {f"{prefix}{name}": value for name, value in model.state_dict().items()}
    assert f"{prefix}layers.0.attention.q_proj.weight" in state
    saved(model, new)
    save_file(state, new / "model.safetensors")
    found = checkpoint.read_weights(str(old))
    assert same(found, checkpoint.read_weights(str(new)))
    parts = [model.state_dict()[f"layers.2.attention.{part}_proj.bias"] for part in "qkv"]
    assert found["block2.qkv.bias"].equal(torch.cat(parts))


@pytest.mark.parametrize("prefix", ["", "dinov2."])
def test_dinov2_with_and_without_prefix(prefix: str, tmp_path: Path) -> None:
    model = dinov2()
    saved(model, tmp_path)
    save_file({f"{prefix}{name}": value for name, value in model.state_dict().items()}, tmp_path / "model.safetensors")
    found = checkpoint.read_weights(str(tmp_path))
    assert found["block1.scale2"].equal(model.state_dict()["encoder.layer.1.layer_scale2.lambda1"])


def test_shards_are_one_checkpoint(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    model = vit()
    saved(model, whole)
    model.save_pretrained(parts, max_shard_size="8KB")
    assert not (parts / "model.safetensors").exists()
    assert len(list(parts.glob("model-*.safetensors"))) > 1
    assert same(checkpoint.read_weights(str(whole)), checkpoint.read_weights(str(parts)))


def test_half_precision_is_read_as_float32(tmp_path: Path) -> None:
    where = saved(vit().half(), tmp_path)
    assert {value.dtype for value in checkpoint.read_weights(where).values()} == {torch.float32}


def original(swiglu: bool = False) -> tuple[Arch, Tree, Tree]:
    """Return the form of a tiny DINOv2, its weights by our names, and by the original ones."""
    arch = Arch(64, 2, 1, 4, 96, (3, 3), layer_scale=True, swiglu=swiglu, statistics=checkpoint.IMAGENET)
    generator = torch.Generator().manual_seed(0)
    ours = {name: torch.randn(shape, generator=generator) for name, shape in transformer.shapes(arch).items()}
    names = {"cls": "cls_token", "position": "pos_embed", "patch": "patch_embed.proj", "norm": "norm"}
    inner = {"qkv": "attn.qkv", "out": "attn.proj", "scale1": "ls1.gamma", "scale2": "ls2.gamma"}
    inner |= {"mlp1": "mlp.w12", "mlp2": "mlp.w3"} if swiglu else {"mlp1": "mlp.fc1", "mlp2": "mlp.fc2"}

    def theirs(name: str) -> str:
        first, _, rest = name.partition(".")
        if not first.startswith("block"):
            return f"{names[first]}.{rest}".rstrip(".")
        part, _, kind = rest.partition(".")
        return f"blocks.{first[5:]}.{inner.get(part, part)}.{kind}".rstrip(".")

    shaped = ours | {"cls": ours["cls"][None], "position": ours["position"][None]}
    shaped |= {"patch.weight": ours["patch.weight"].view(64, 3, 4, 4)}
    return arch, ours, {theirs(name): value for name, value in shaped.items()} | {"mask_token": torch.zeros(1, 64)}


@pytest.mark.parametrize("swiglu", [False, True])
def test_a_file_with_the_original_names_of_dinov2(swiglu: bool, tmp_path: Path) -> None:
    arch, ours, theirs = original(swiglu)
    assert {"blocks.0.attn.qkv.weight", "blocks.1.ls2.gamma", "cls_token", "norm.bias"} <= theirs.keys()
    path = tmp_path / "dinov2.safetensors"
    save_file(theirs, path)
    assert checkpoint.read_arch(str(path)) == arch
    assert same(checkpoint.read_weights(str(path)), ours)
    net = ViT((3, 12, 12), 5, str(path)).to(torch.device("cpu"))
    x = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(net.features({}, x), transformer.features(arch, ours, x))


@pytest.mark.skipif(
    "PROMPTFED_DINOV2" not in os.environ, reason="PROMPTFED_DINOV2 does not name a real DINOv2 ViT-S/14."
)
def test_the_real_dinov2_knows_an_image_by_its_mirror_image() -> None:
    net = ViT((3, 32, 32), 5, os.environ["PROMPTFED_DINOV2"], size=112).to(torch.device("cpu"))
    assert (net.arch.width, net.arch.depth, net.arch.heads, net.arch.patch) == (384, 12, 6, 14)
    rough = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    x = torch.nn.functional.interpolate(rough, (32, 32), mode="bilinear")
    features = torch.nn.functional.normalize(net.features({}, torch.cat([x, x.flip(-1)])), dim=-1)
    alike = features @ features.T
    assert alike[0, 2] > alike[0, 1]
    assert alike[1, 3] > alike[0, 1]
    assert features.std() > 0.01


# -- statistics -----------------------------------------------------------------------------------------------------


def test_statistics_of_the_folder_come_first(tmp_path: Path) -> None:
    where = saved(vit(), tmp_path)
    given = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(given))
    assert ViT(SHAPE, 5, where).statistics == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))


def test_what_a_configuration_leaves_out_has_the_hubs_defaults(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "dinov2", "image_size": [518, 518]}')
    base = Arch(768, 12, 12, 14, 3072, (37, 37), layer_scale=True, statistics=checkpoint.IMAGENET)
    assert checkpoint.read_arch(str(tmp_path)) == base
    (tmp_path / "vit").mkdir()
    (tmp_path / "vit" / "config.json").write_text('{"model_type": "vit"}')
    assert checkpoint.read_arch(str(tmp_path / "vit")) == Arch(
        768, 12, 12, 16, 3072, (14, 14), eps=1e-12, statistics=checkpoint.HALVES
    )


def test_the_giants_gated_layer_has_its_own_width(tmp_path: Path) -> None:
    giant = {"model_type": "dinov2", "hidden_size": 1536, "num_hidden_layers": 40, "num_attention_heads": 24}
    (tmp_path / "config.json").write_text(json.dumps(giant | {"use_swiglu_ffn": True}))
    assert checkpoint.read_arch(str(tmp_path)).mlp == 4096  # 6144 · 2/3, a multiple of 8


# -- mistakes -------------------------------------------------------------------------------------------------------


def assert_refused(weights: str | Path, sentence: str) -> None:
    with pytest.raises(PromptFedError, match=sentence) as caught:
        ViT(SHAPE, 5, str(weights)).to(torch.device("cpu"))
    assert re.fullmatch(r"[^\n]+[.?]", str(caught.value))


@pytest.mark.parametrize(
    "name", ["./nowhere", "/no/such/folder", "nowhere", "nowhere/at/all", "no/file.safetensors", ""]
)
def test_no_such_folder(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(name, "no such folder or file, and it is not a hub name" if name else "config.json")


def test_an_empty_folder(tmp_path: Path) -> None:
    assert_refused(tmp_path, r"config\.json cannot be read: No such file")


def test_a_torn_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type"')
    assert_refused(tmp_path, r"config\.json is not valid JSON")
    (tmp_path / "list").mkdir()
    (tmp_path / "list" / "config.json").write_text("[]")
    assert_refused(tmp_path / "list", r"config\.json does not hold a JSON object")


def test_an_unknown_model_type(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "dinov3"}')
    assert_refused(tmp_path, r'config\.json has model_type "dinov3"; supported are vit \(DeiT')


@pytest.mark.parametrize(("key", "value"), [("hidden_act", "relu"), ("num_channels", 1)])
def test_forms_that_are_not_supported(key: str, value: object, tmp_path: Path) -> None:
    where = saved(vit(), tmp_path)
    configure(tmp_path, **{key: value})
    assert_refused(where, f"has {key}={value}; only {key}=")


@pytest.mark.parametrize(
    ("key", "value"),
    [("hidden_size", "wide"), ("num_hidden_layers", 0), ("image_size", None), ("patch_size", [4, 0.5])],
)
def test_sizes_that_are_no_numbers(key: str, value: object, tmp_path: Path) -> None:
    where = saved(vit(), tmp_path)
    configure(tmp_path, **{key: value})
    assert_refused(where, rf"config\.json has {key}=.*; it must be a whole number of at least 1\.$")


def test_heads_that_do_not_divide_the_width(tmp_path: Path) -> None:
    where = saved(vit(), tmp_path)
    configure(tmp_path, num_attention_heads=3)
    assert_refused(where, "has num_attention_heads=3, which does not divide hidden_size=16")


def test_an_index_without_files(tmp_path: Path) -> None:
    where = saved(vit(), tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    assert_refused(where, 'it has no weight for "cls"')
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"layernorm.bias": "model-1.safetensors"}}')
    assert_refused(where, r"has no model-1\.safetensors\.$")


def test_oblong_patches(tmp_path: Path) -> None:
    where = saved(vit(), tmp_path)
    configure(tmp_path, patch_size=[4, 8])
    assert_refused(where, "patches of 4×8 pixels; only square ones")


def test_statistics_of_one_channel(tmp_path: Path) -> None:
    where = saved(vit(), tmp_path)
    (tmp_path / "preprocessor_config.json").write_text('{"image_mean": [0.5], "image_std": [0.5]}')
    assert_refused(where, "image_mean and image_std for three channels")


def test_no_tensors(tmp_path: Path) -> None:
    where = saved(vit(), tmp_path)
    (tmp_path / "model.safetensors").unlink()
    assert_refused(where, r"has no model\.safetensors\.$")


def test_torn_tensors(tmp_path: Path) -> None:
    where = saved(vit(), tmp_path)
    (tmp_path / "model.safetensors").write_bytes((tmp_path / "model.safetensors").read_bytes()[:1000])
    assert_refused(where, r"model\.safetensors is not a complete safetensors file")


@pytest.mark.parametrize(
    ("gone", "named"),
    [
        ("layernorm.bias", "norm.bias"),
        ("encoder.layer.1.attention.attention.key.weight", "block1.qkv.weight"),
        ("encoder.layer.1.attention.attention.key.bias", "block1.qkv.bias"),
        ("encoder.layer.2.output.dense.bias", "block2.mlp2.bias"),
        ("embeddings.cls_token", "cls"),
    ],
)
def test_a_missing_weight(gone: str, named: str, tmp_path: Path) -> None:
    where = saved(vit(), tmp_path)
    edit(tmp_path, lambda tensors: tensors.pop(gone))
    assert_refused(where, f'is not a complete checkpoint: it has no weight for "{re.escape(named)}"')


@pytest.mark.parametrize(
    ("name", "shape", "sentence"),
    [
        ("layernorm.bias", (17,), '"norm.bias" is 17; its architecture needs 16'),
        (
            "encoder.layer.0.output.dense.weight",
            (16, 41),
            r'"block0\.mlp2\.weight" is 16×41; its architecture needs 16×40',
        ),
        ("embeddings.position_embeddings", (1, 5, 16), '"position" is 5×16; its architecture needs 17×16'),
        ("embeddings.cls_token", (16,), '"cls" is 16; its architecture needs 1×16'),
        ("encoder.layer.0.attention.attention.query.weight", (16, 17), r'no weight for "block0\.qkv\.weight"'),
    ],
)
def test_a_weight_of_another_shape(name: str, shape: tuple[int, ...], sentence: str, tmp_path: Path) -> None:
    where = saved(vit(), tmp_path)
    edit(tmp_path, lambda tensors: tensors.update({name: torch.zeros(shape)}))
    assert_refused(where, sentence)


def test_a_file_of_another_network(tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    save_file({"conv.weight": torch.zeros(3)}, path)
    assert_refused(path, r"has no DINOv2 names; for another ViT give the folder with its config\.json")


def test_registers_of_an_original_dinov2(tmp_path: Path) -> None:
    path = tmp_path / "registers.safetensors"
    registers: dict[str, Tensor] = {"register_tokens": torch.full((1, 4, 64), 0.5)}
    save_file(original()[2] | registers, path)
    assert checkpoint.read_arch(str(path)).registers == 4
    assert checkpoint.read_weights(str(path))["registers"].tolist() == [[0.5] * 64] * 4


# -- the hub --------------------------------------------------------------------------------------------------------


def test_a_hub_name_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert_refused("nobody/without-extra", r'needs the \[hf\] extra: pip install "promptfed\[hf\]"')


def test_a_hub_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(name: str, allow_patterns: list[str]) -> str:
        raise OSError("no route\nto the hub")

    monkeypatch.setattr("huggingface_hub.snapshot_download", silent)
    assert_refused("nobody/not-there", r"is not a folder here, and the hub did not deliver it: no route\.$")


def test_a_hub_name_may_be_pinned_to_a_revision(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[str, str]] = []
    saved(dinov2(), tmp_path)

    def download(name: str, allow_patterns: list[str], revision: str = "") -> str:
        asked.append((name, revision))
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    ViT(SHAPE, 5, "somebody/dinov2-pinned@ed25f3a").to(torch.device("cpu"))
    assert asked == [("somebody/dinov2-pinned", "ed25f3a")] * len(asked)
    assert len(asked) > 0


@pytest.mark.parametrize("value", ["x", None, -1, 0, [1e-6], True, 1e400])
def test_a_layer_norm_epsilon_that_is_no_positive_number(value: object, tmp_path: Path) -> None:
    saved(vit(), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"layer_norm_eps": value}))
    assert_refused(str(tmp_path), r"config\.json has layer_norm_eps=.*; it must be a positive number")


@pytest.mark.parametrize("value", [3, ["a", "b", "c"], [0.5, 0.5]])
def test_statistics_of_pixels_that_are_no_numbers(value: object, tmp_path: Path) -> None:
    saved(vit(), tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"image_mean": value}))
    assert_refused(str(tmp_path), r"must give image_mean and image_std for three channels")


def test_a_hub_name_fetches_the_configuration_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[list[str]] = []
    saved(dinov2(), tmp_path)

    def download(name: str, allow_patterns: list[str]) -> str:
        assert name == "somebody/dinov2-tiny"
        asked.append(allow_patterns)
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    net = ViT(SHAPE, 5, "somebody/dinov2-tiny")
    assert (net.layers, net.token_width) == (3, 16)
    assert asked == [["config.json", "preprocessor_config.json"]]
    net.to(torch.device("cpu"))
    assert "model*.safetensors" in asked[1]
