"""The dual encoder against transformers' own CLIP, and what its texts and towers promise."""

import dataclasses
import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from promptfed.backbones import BACKBONES, transformer
from promptfed.backbones.clip import CLIP, LoadedCLIP
from promptfed.backbones.transformer import Arch
from promptfed.core import options, tree
from promptfed.core.errors import PromptFedError
from promptfed.core.method import Task, dual
from promptfed.core.protocols import DualEncoder
from support.tiny_clip import clip, said, saved
from support.tiny_hub import Model, dinov2
from support.toy_clip import ARCH, NAMES, NET, SHAPE, assert_close, normal
from support.toys import rng

CPU = torch.device("cpu")


def loaded(model: Model, folder: Path, names: tuple[str, ...] = NAMES, chunk: int = 512) -> LoadedCLIP:
    return CLIP(SHAPE, len(names), names, saved(model, folder), chunk=chunk).to(CPU)


def unit(features: Tensor) -> Tensor:
    return torch.nn.functional.normalize(features, dim=-1)


# -- the same numbers as transformers -------------------------------------------------------------------------------


@pytest.mark.parametrize("act", ["quick_gelu", "gelu"])
def test_image_features_are_those_of_transformers(act: str, tmp_path: Path) -> None:
    model, x = clip(image={"hidden_act": act}, words={"hidden_act": act}), normal(2, *SHAPE)
    net = loaded(model, tmp_path)
    with torch.no_grad():
        assert_close(net.features({}, x), model.get_image_features(x).pooler_output)
        large = CLIP((3, 24, 20), 3, NAMES, str(tmp_path)).to(CPU)
        wide = normal(2, 3, 24, 20)
        found = model.get_image_features(wide, interpolate_pos_encoding=True).pooler_output
        assert_close(large.features({}, wide), found)
    assert_close(net.scale, model.logit_scale.exp().detach(), 0)


@pytest.mark.parametrize("act", ["quick_gelu", "gelu"])
@pytest.mark.parametrize("per_class", [False, True])
def test_text_features_are_those_of_transformers_at_77_tokens(act: str, per_class: bool, tmp_path: Path) -> None:
    model = clip(words={"hidden_act": act})
    net = loaded(model, tmp_path)
    tokens = said([f"red photo of {name.replace('_', ' ')}." for name in NAMES])
    assert tokens.shape == (3, 77)
    with torch.no_grad():
        context = model.text_model.embeddings.token_embedding(tokens[0, 1:4])
        wanted = unit(model.get_text_features(tokens).pooler_output)
    assert_close(net.text(context.expand(3, -1, -1) if per_class else context, per_class=per_class), wanted)


def test_zero_shot_features_are_of_a_photo(tmp_path: Path) -> None:
    model = clip()
    net = loaded(model, tmp_path)
    tokens = said(["a photo of a cat.", "a photo of a red dog.", "a photo of a a car's 9 trees."])
    with torch.no_grad():
        assert_close(net.zero_shot, unit(model.get_text_features(tokens).pooler_output))
    assert not net.zero_shot.requires_grad


def test_the_old_configurations_with_end_token_2_give_the_same(tmp_path: Path) -> None:
    model = clip()
    tokens = said([f"a photo of a {name.replace('_', ' ')}." for name in NAMES])
    model.text_model.eos_token_id = 2
    model.config.text_config.eos_token_id = 2
    with torch.no_grad():
        wanted = unit(model.get_text_features(tokens).pooler_output)
    assert_close(loaded(model, tmp_path).zero_shot, wanted)


def test_pickled_weights_of_the_hub(tmp_path: Path) -> None:
    model = clip()
    net = loaded(model, tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    again = CLIP(SHAPE, 3, NAMES, str(tmp_path)).to(CPU)
    assert all(value.equal(again.image.pretrained[name]) for name, value in net.image.pretrained.items())
    assert net.zero_shot.equal(again.zero_shot)


def test_the_image_tower_may_be_a_dinov2(tmp_path: Path) -> None:
    words, other, x = clip(), dinov2(), normal(2, *SHAPE)
    projection = normal(10, 16, seed=3)
    kept = {name: value for name, value in words.state_dict().items() if not name.startswith("vis")}
    kept |= {f"vision_model.{name}": value for name, value in other.state_dict().items()}
    saved(words, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"vision_config": other.config.to_dict()}))
    save_file(kept | {"visual_projection.weight": projection}, tmp_path / "model.safetensors")
    net = CLIP(SHAPE, 3, NAMES, str(tmp_path)).to(CPU)
    assert net.statistics == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    with torch.no_grad():
        assert_close(net.features({}, x), other(x).last_hidden_state[:, 0] @ projection.T)


def test_number_of_weights_of_the_paper() -> None:
    # the image tower of ViT-B/32 with its projection: 87.85 M
    base = Arch(768, 12, 12, 32, 3072, (7, 7), quick_gelu=True, pre_norm=True, patch_bias=False, projection=512)
    sizes = {name: torch.empty(shape, device="meta") for name, shape in transformer.shapes(base).items()}
    assert tree.floats(sizes) == 87_849_216


# -- images ---------------------------------------------------------------------------------------------------------


def test_the_classifier_sees_the_projected_features() -> None:
    head, x = NET.head(rng()), normal(2, *SHAPE)
    assert head["head.weight"].shape == (3, 10)
    features = NET.features({}, x)
    assert features.shape == (2, 10)
    assert_close(NET(head, x), features @ head["head.weight"].T + head["head.bias"], 1e-6)
    assert not torch.allclose(features.norm(dim=-1), torch.ones(2), atol=1e-2)


def test_training_everything_starts_from_the_pretrained_image_tower() -> None:
    start, x = NET.init(rng()), normal(2, *SHAPE)
    assert start.keys() == transformer.shapes(NET.arch.image).keys() | {"head.weight", "head.bias"}
    assert "projection.weight" in start
    assert "prenorm.bias" in start
    assert "patch.bias" not in start
    assert NET(start, x).equal(NET(NET.head(rng()), x))
    own = tree.map(torch.Tensor.requires_grad_, tree.map(torch.clone, start))
    pulls = torch.autograd.grad(NET(own, x).square().sum(), list(own.values()))
    assert all(pull.abs().sum() > 0 for pull in pulls)


@pytest.mark.parametrize("trained", [False, True])
def test_a_stack_of_image_towers_is_one_by_one(trained: bool) -> None:
    x, tokens = normal(3, 2, *SHAPE), [normal(3, 4, 16, seed=at) for at in range(2)]
    singles = [NET.init(rng(seed=seed)) if trained else NET.head(rng(seed=seed)) for seed in range(3)]
    singles = [tree.map(lambda value, by=at: value + 0.02 * by, one) for at, one in enumerate(singles)]
    together = NET(tree.stack(singles), x, tokens=tokens)
    for client, single in enumerate(singles):
        assert_close(together[client], NET(single, x[client], tokens=[one[client] for one in tokens]))


def test_prompt_tokens_are_normed_with_the_others(tmp_path: Path) -> None:
    model, x, tokens = clip(), normal(2, *SHAPE), normal(3, 16, seed=1)
    net, tower = loaded(model, tmp_path), model.vision_model
    with torch.no_grad():
        z = tower.embeddings(x)
        z = tower.pre_layrnorm(torch.cat([z[:, :1], tokens.expand(2, -1, -1), z[:, 1:]], 1))
        z = tower.post_layernorm(tower.encoder(inputs_embeds=z).last_hidden_state[:, 0])
        assert_close(net.features({}, x, tokens=tokens), model.visual_projection(z))


# -- how it is made -------------------------------------------------------------------------------------------------


def test_the_name_finds_it_and_its_options_are_the_recipes_keys() -> None:
    assert BACKBONES["clip"] is CLIP
    assert options.defaults(CLIP) == {"weights": "embedded", "size": 0, "precision": "auto", "chunk": 0}
    fixed = {"shape": SHAPE, "classes": 3, "names": NAMES}
    assert options.make(CLIP, {"size": 32}, "backbone", fixed) == CLIP(SHAPE, 3, NAMES, size=32)


def test_form_is_known_before_weights_are_read(tmp_path: Path) -> None:
    saved(clip(), tmp_path)
    (tmp_path / "model.safetensors").unlink()
    net = CLIP(SHAPE, 3, NAMES, str(tmp_path))
    assert (net.token_width, net.layers, net.context_width) == (16, 2, 12)
    assert net.statistics == ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
    assert not isinstance(net, LoadedCLIP)


def test_a_loaded_one_is_a_dual_encoder_that_can_be_copied_and_compared(tmp_path: Path) -> None:
    net: DualEncoder = loaded(clip(), tmp_path)
    assert dual(Task(net, NAMES, 2)) is net
    assert (net.shape, net.token_width, net.layers, net.context_width, net.draws()) == (SHAPE, 16, 2, 12, {})
    again = net.to(CPU)
    assert net == again == pickle.loads(pickle.dumps(net))
    assert hash(net) == hash(again)
    assert "tensor" not in repr(net)


def test_the_fingerprint_is_that_of_the_image_tower() -> None:
    other = CLIP.random(SHAPE, NAMES, ARCH, seed=1)
    plain = CLIP.random(
        SHAPE, NAMES, dataclasses.replace(ARCH, image=dataclasses.replace(ARCH.image, quick_gelu=False))
    )
    assert NET.fingerprint == CLIP.random(SHAPE, ("cat",), ARCH, chunk=3).fingerprint
    assert len({NET.fingerprint, other.fingerprint, plain.fingerprint}) == 3


def test_bfloat16_is_close_and_answers_in_float32() -> None:
    low = CLIP.random(SHAPE, NAMES, ARCH, precision="bf16")
    assert {value.dtype for value in low.frozen.values()} == {torch.bfloat16, torch.int64}
    context, x = normal(2, 4, 12).requires_grad_(), normal(2, *SHAPE)
    found = low.text(context, per_class=False)
    assert found.dtype == low.features({}, x).dtype == low.zero_shot.dtype == low.scale.dtype == torch.float32
    assert_close(found, NET.text(context, per_class=False), 0.05)
    (pull,) = torch.autograd.grad(found.pow(3).sum(), context)
    assert pull.dtype == torch.float32


# -- mistakes -------------------------------------------------------------------------------------------------------


def test_patches_must_divide_the_images(tmp_path: Path) -> None:
    where = saved(clip(), tmp_path)
    with pytest.raises(PromptFedError, match=r"^Images of 30×30 pixels .* patches of 4; set backbone\.size=16\.$"):
        CLIP((3, 30, 30), 3, NAMES, where).to(CPU)
