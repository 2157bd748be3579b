"""The dual encoder against transformers' own CLIP, and what its texts and towers promise."""

import dataclasses
import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from promptfed.backbones import BACKBONES, text, transformer
from promptfed.backbones.clip import CLIP, LoadedCLIP
from promptfed.backbones.clip_checkpoint import ClipArch
from promptfed.backbones.text import TextArch
from promptfed.backbones.transformer import Arch
from promptfed.core import options, tree
from promptfed.core.errors import PromptFedError
from promptfed.core.method import Task, dual
from promptfed.core.protocols import DualEncoder
from promptfed.core.tree import Tree
from support.tiny_clip import clip, said, saved
from support.tiny_hub import Model, dinov2
from support.toys import rng

CPU = torch.device("cpu")
SHAPE = (3, 16, 16)
NAMES = ("cat", "red_dog", "a car's 9 trees")
FORM = ClipArch(
    Arch(16, 2, 2, 4, 24, (4, 4), quick_gelu=True, pre_norm=True, patch_bias=False, projection=10),
    TextArch(12, 3, 2, 24, 300, 77, 10),
)
NET = CLIP.random(SHAPE, NAMES, FORM)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def close(found: Tensor, wanted: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


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
        close(net.features({}, x), model.get_image_features(x).pooler_output)
        large = CLIP((3, 24, 20), 3, NAMES, str(tmp_path)).to(CPU)
        wide = normal(2, 3, 24, 20)
        found = model.get_image_features(wide, interpolate_pos_encoding=True).pooler_output
        close(large.features({}, wide), found)
    close(net.scale, model.logit_scale.exp().detach(), 0)


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
    close(net.text(context.expand(3, -1, -1) if per_class else context, per_class=per_class), wanted)


def test_zero_shot_features_are_of_a_photo(tmp_path: Path) -> None:
    model = clip()
    net = loaded(model, tmp_path)
    tokens = said(["a photo of a cat.", "a photo of a red dog.", "a photo of a a car's 9 trees."])
    with torch.no_grad():
        close(net.zero_shot, unit(model.get_text_features(tokens).pooler_output))
    assert not net.zero_shot.requires_grad


def test_the_old_configurations_with_end_token_2_give_the_same(tmp_path: Path) -> None:
    model = clip()
    tokens = said([f"a photo of a {name.replace('_', ' ')}." for name in NAMES])
    model.text_model.eos_token_id = 2
    model.config.text_config.eos_token_id = 2
    with torch.no_grad():
        wanted = unit(model.get_text_features(tokens).pooler_output)
    close(loaded(model, tmp_path).zero_shot, wanted)


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
        close(net.features({}, x), other(x).last_hidden_state[:, 0] @ projection.T)


def test_number_of_weights_of_the_paper() -> None:
    # the image tower of ViT-B/32 with its projection: 87.85 M
    base = Arch(768, 12, 12, 32, 3072, (7, 7), quick_gelu=True, pre_norm=True, patch_bias=False, projection=512)
    sizes = {name: torch.empty(shape, device="meta") for name, shape in transformer.shapes(base).items()}
    assert tree.floats(sizes) == 87_849_216


# -- texts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("per_class", [False, True])
def test_what_follows_the_end_token_changes_nothing(per_class: bool) -> None:
    context = normal(3, 4, 12) if per_class else normal(4, 12)
    ending = NET.frozen["ending"]
    rest = normal(3, 77 - 1 - 4 - ending.shape[1], 12, seed=1)
    whole = NET.frozen | {"ending": torch.cat([ending, rest], 1)}
    flat = context if per_class else context[None]
    close(text.features(NET.quick_arch, whole, flat), NET.text(context, per_class=per_class), 1e-6)


def test_a_shared_context_is_the_same_one_for_every_class() -> None:
    context = normal(2, 4, 12).requires_grad_()
    repeated = context.detach()[:, None].repeat(1, 3, 1, 1).requires_grad_()
    pull = normal(2, 3, 10, seed=1)
    shared, each = NET.text(context, per_class=False), NET.text(repeated, per_class=True)
    close(shared, each, 1e-6)
    (first,), (second,) = (
        torch.autograd.grad((found * pull).sum(), given) for found, given in ((shared, context), (each, repeated))
    )
    close(first, second.sum(1))


@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 7, 100])
@pytest.mark.parametrize("per_class", [False, True])
def test_parts_are_the_whole_and_so_are_their_gradients(chunk: int, per_class: bool) -> None:
    small = dataclasses.replace(NET, chunk=chunk)
    context = normal(5, *((3,) if per_class else ()), 4, 12).requires_grad_()
    pull = normal(5, 3, 10, seed=1)
    found, wanted = (net.text(context, per_class=per_class) for net in (small, NET))
    close(found, wanted, 1e-6)
    pulls = [torch.autograd.grad((made * pull).sum(), context)[0] for made in (found, wanted)]
    assert pulls[1].abs().sum() > 0
    close(pulls[0], pulls[1], 1e-6)
    with torch.no_grad():
        close(small.text(context, per_class=per_class), wanted, 1e-6)


def test_long_names_are_apart_from_short_ones() -> None:
    end = torch.tensor([2, 2, 6, 3, 2, 3, 2])  # one name of six tokens would make 7 × 7 = 49 of 27
    spelled = {"ending": torch.arange(49.0).view(7, 7, 1), "end": end}
    (everyone,) = text.grouped(spelled)
    assert everyone.rows.tolist() == list(range(7))  # seven classes are too few
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "MANY", 7)
        short, long = text.grouped(spelled)
        assert len(text.grouped(spelled | {"end": torch.tensor([5, 5, 6, 6, 6, 6, 6])})) == 1  # spares two tokens of 49
    # cut after four short names: 4 × 4 = 16 tokens spared; after the six short ones: 6 × 3 = 18
    assert (short.rows.tolist(), long.rows.tolist()) == ([0, 1, 4, 6, 3, 5], [2])
    assert short.words["ending"].shape == (6, 4, 1)
    assert long.words["ending"].shape == (1, 7, 1)
    assert short.words["end"].tolist() == [2, 2, 2, 2, 3, 3]


@pytest.mark.parametrize("per_class", [False, True])
def test_groups_are_the_whole_and_so_are_their_gradients(per_class: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("cat", "a very long name of a dog", "bird", "red fox", "cow")
    whole = CLIP.random((3, 8, 8), names, FORM)
    monkeypatch.setattr(text, "MANY", 2)
    parted = CLIP.random((3, 8, 8), names, FORM)
    assert (len(whole.groups), len(parted.groups)) == (1, 2)
    context = normal(2, *((5,) if per_class else ()), 4, 12).requires_grad_()
    found, wanted = (net.text(context, per_class=per_class) for net in (parted, whole))
    close(found, wanted, 1e-6)
    pull = normal(2, 5, 10, seed=1)
    pulls = [torch.autograd.grad((made * pull).sum(), context)[0] for made in (found, wanted)]
    assert pulls[1].abs().sum() > 0
    close(pulls[0], pulls[1], 1e-6)


@pytest.mark.parametrize("quick", [True, False])
def test_silu_takes_the_place_of_quick_gelu(quick: bool) -> None:
    arch = dataclasses.replace(FORM.text, quick_gelu=quick)
    plain = NET.spelled | {"block0.mlp1.bias": normal(24, seed=2)}
    context = normal(2, 3, 4, 12)
    form, weights = text.with_silu(arch, plain)
    assert form.silu is quick
    if quick:
        close(weights["block0.mlp1.bias"], 1.702 * plain["block0.mlp1.bias"], 1e-6)
        close(weights["block2.mlp2.weight"], plain["block2.mlp2.weight"] / 1.702, 1e-6)
        assert text.with_silu(form, weights) == (form, weights)
    assert weights["block1.mlp2.bias"] is plain["block1.mlp2.bias"]
    close(text.features(form, weights, context), text.features(arch, plain, context), 1e-6)


@pytest.mark.parametrize("per_class", [False, True])
def test_the_end_tokens_alone_are_enough_in_the_last_block(per_class: bool) -> None:
    context, full = normal(2, 3 if per_class else 1, 4, 12), FORM.text
    identity = tree.map(torch.zeros_like, tree.pick(NET.spelled, [n for n in NET.spelled if n.startswith("block0.")]))
    longer = NET.spelled | {name.replace("block0", "block3"): value for name, value in identity.items()}
    # a fourth block of zeros adds nothing, and makes of the third one that computes all tokens
    close(
        text.features(dataclasses.replace(full, depth=4), longer, context),
        text.features(full, NET.spelled, context),
        1e-6,
    )


def test_as_many_texts_at_once_as_memory_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    # a token keeps 6 · 12 + 2 · 24 numbers of 4 bytes in each of 3 blocks: 1,440 bytes; a text has 5 + 7 tokens
    assert NET.frozen["ending"].shape[1] == 7
    parts: list[int] = []
    original = text._part
    monkeypatch.setattr(text, "SHARE", 1.0)
    monkeypatch.setattr(text, "CPU_MEMORY", 7 * 12 * 1440)

    def counted(arch: TextArch, spelled: Tree, context: Tensor) -> Tensor:
        parts.append(len(context))
        return original(arch, spelled, context)

    monkeypatch.setattr(text, "_part", counted)
    context = normal(5, 3, 4, 12).requires_grad_()
    NET.text(context, per_class=True)
    assert parts == [2, 2, 1]  # seven texts are two contexts of three classes
    parts.clear()
    with torch.no_grad():  # only two blocks' worth at a time: ten texts
        NET.text(context, per_class=True)
    assert parts == [3, 2]


def test_parts_keep_no_more_than_their_inputs_for_the_gradient() -> None:
    kept: list[int] = []

    def pack(value: Tensor) -> Tensor:
        kept.append(value.numel())
        return value

    context = normal(6, 4, 12).requires_grad_()
    counts = []
    for chunk in (512, 3):
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
            dataclasses.replace(NET, chunk=chunk).text(context, per_class=False)
        counts.append(sum(kept))
    assert counts[1] < counts[0] / 10


@pytest.mark.parametrize("per_class", [False, True])
def test_a_stack_is_one_by_one(per_class: bool) -> None:
    # two clients, each with a context for each of four images
    context = normal(2, 4, *((3,) if per_class else ()), 5, 12)
    together = NET.text(context, per_class=per_class)
    assert together.shape == (2, 4, 3, 10)
    for client in range(2):
        for image in range(4):
            close(together[client, image], NET.text(context[client, image], per_class=per_class), 1e-6)
    close(together.norm(dim=-1), torch.ones(2, 4, 3))


def test_without_a_context_there_is_the_name_alone() -> None:
    close(NET.text(torch.zeros(0, 12), per_class=False), NET.text(torch.zeros(3, 0, 12), per_class=True), 1e-6)


def test_the_only_class() -> None:
    net = CLIP.random(SHAPE, ("cat",), FORM)
    context = normal(2, 4, 12)
    assert net.text(context, per_class=False).shape == (2, 1, 10)
    close(net.text(context[:, None], per_class=True), net.text(context, per_class=False), 1e-6)


def test_a_context_too_long() -> None:
    # start, 71 tokens, and "a car ' s 9 trees . end" of 8: one word is one token here, and 's is a word
    longest = NET.frozen["ending"].shape[1]
    NET.text(normal(76 - longest, 12), per_class=False)
    with pytest.raises(PromptFedError, match=r"^A context of 80 tokens .* make 88 tokens; .* positions for 77\.$"):
        NET.text(normal(80, 12), per_class=False)


def test_only_the_context_gets_a_gradient() -> None:
    context = normal(4, 12).requires_grad_()
    NET.text(context, per_class=False).pow(3).sum().backward()
    assert context.grad is not None
    assert context.grad.abs().min() > 0
    assert not any(value.requires_grad for value in NET.frozen.values())


# -- images ---------------------------------------------------------------------------------------------------------


def test_the_classifier_sees_the_projected_features() -> None:
    head, x = NET.head(rng()), normal(2, *SHAPE)
    assert head["head.weight"].shape == (3, 10)
    features = NET.features({}, x)
    assert features.shape == (2, 10)
    close(NET(head, x), features @ head["head.weight"].T + head["head.bias"], 1e-6)
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
        close(together[client], NET(single, x[client], tokens=[one[client] for one in tokens]))


def test_prompt_tokens_are_normed_with_the_others(tmp_path: Path) -> None:
    model, x, tokens = clip(), normal(2, *SHAPE), normal(3, 16, seed=1)
    net, tower = loaded(model, tmp_path), model.vision_model
    with torch.no_grad():
        z = tower.embeddings(x)
        z = tower.pre_layrnorm(torch.cat([z[:, :1], tokens.expand(2, -1, -1), z[:, 1:]], 1))
        z = tower.post_layernorm(tower.encoder(inputs_embeds=z).last_hidden_state[:, 0])
        close(net.features({}, x, tokens=tokens), model.visual_projection(z))


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
    other = CLIP.random(SHAPE, NAMES, FORM, seed=1)
    plain = CLIP.random(
        SHAPE, NAMES, dataclasses.replace(FORM, image=dataclasses.replace(FORM.image, quick_gelu=False))
    )
    assert NET.fingerprint == CLIP.random(SHAPE, ("cat",), FORM, chunk=3).fingerprint
    assert len({NET.fingerprint, other.fingerprint, plain.fingerprint}) == 3


def test_bfloat16_is_close_and_answers_in_float32() -> None:
    low = CLIP.random(SHAPE, NAMES, FORM, precision="bf16")
    assert {value.dtype for value in low.frozen.values()} == {torch.bfloat16, torch.int64}
    context, x = normal(2, 4, 12).requires_grad_(), normal(2, *SHAPE)
    found = low.text(context, per_class=False)
    assert found.dtype == low.features({}, x).dtype == low.zero_shot.dtype == low.scale.dtype == torch.float32
    close(found, NET.text(context, per_class=False), 0.05)
    (pull,) = torch.autograd.grad(found.pow(3).sum(), context)
    assert pull.dtype == torch.float32


# -- mistakes -------------------------------------------------------------------------------------------------------


def test_patches_must_divide_the_images(tmp_path: Path) -> None:
    where = saved(clip(), tmp_path)
    with pytest.raises(PromptFedError, match=r"^Images of 30×30 pixels .* patches of 4; set backbone\.size=16\.$"):
        CLIP((3, 30, 30), 3, NAMES, where).to(CPU)
