"""Frozen pretrained transformers against transformers' own, and what a frozen network promises."""

import dataclasses
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from promptfed.backbones import BACKBONES, transformer
from promptfed.backbones.pretrained import LoadedViT, ViT, fit_positions
from promptfed.core import options, tree
from promptfed.core.errors import PromptFedError
from promptfed.core.protocols import Backbone
from support.tiny_hub import Model, by_hand, dinov2, registered, saved, vit
from support.toys import rng

CPU = torch.device("cpu")
SHAPE = (3, 16, 16)
MODELS: dict[str, Callable[[], Model]] = {
    "vit": vit,
    "vit without biases": lambda: vit(qkv_bias=False),
    "dinov2": dinov2,
    "dinov2 with registers": registered,
    "dinov2 gated": lambda: dinov2(use_swiglu_ffn=True),
}
NET = ViT.random(SHAPE, 5, width=16, depth=3, heads=4, patch=4)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def assert_close(found: Tensor, wanted: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


# -- the same numbers as transformers -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("prompts", [0, 1, 3])
def test_features_are_those_of_transformers(kind: str, prompts: int, tmp_path: Path) -> None:
    model, x = MODELS[kind](), normal(2, *SHAPE)
    net = ViT(SHAPE, 5, saved(model, tmp_path)).to(CPU)
    tokens = [normal(4, 16, seed=1 + at) for at in range(prompts)]
    with torch.no_grad():
        assert_close(net.features({}, x, tokens=tokens or None), by_hand(model, x, tokens))
        if not prompts:
            assert_close(net.features({}, x), model(x).last_hidden_state[:, 0])


@pytest.mark.parametrize("kind", ["vit", "dinov2"])
@pytest.mark.parametrize("shape", [(3, 24, 24), (3, 8, 20), (3, 32, 8), (3, 12, 8)])
def test_positions_are_interpolated_as_transformers_does(
    kind: str, shape: tuple[int, int, int], tmp_path: Path
) -> None:
    model, x = MODELS[kind](), normal(2, *shape)
    net = ViT(shape, 5, saved(model, tmp_path)).to(CPU)
    assert net.arch.grid == (shape[1] // 4, shape[2] // 4)
    with torch.no_grad():
        assert_close(net.features({}, x), by_hand(model, x, []))


def test_images_are_resized_inside(tmp_path: Path) -> None:
    where, x = saved(dinov2(), tmp_path), normal(3, 2, 3, 10, 10)
    net = ViT((3, 10, 10), 5, where, size=16).to(CPU)
    larger = F.interpolate(x.flatten(0, 1), (16, 16), mode="bicubic").unflatten(0, (3, 2))
    assert_close(net.features({}, x), ViT(SHAPE, 5, where).to(CPU).features({}, larger), 1e-6)


def test_positions_of_another_grid_by_hand() -> None:
    # a plane that is constant stays so, and the class token's position is never touched
    position = torch.cat([torch.full((1, 2), 7.0), torch.full((4, 2), 3.0)])
    assert fit_positions(position, (2, 2), (2, 2)) is position
    assert_close(
        fit_positions(position, (2, 2), (3, 5)), torch.cat([torch.full((1, 2), 7.0), torch.full((15, 2), 3.0)])
    )


# -- frozen weights and trained ones --------------------------------------------------------------------------------


def test_a_missing_weight_is_the_pretrained_one() -> None:
    start, x = NET.init(rng()), normal(2, *SHAPE)
    head = tree.pick(start, ["head.weight", "head.bias"])
    assert NET(head, x).equal(NET(start, x))
    changed = {"block1.mlp1.bias": start["block1.mlp1.bias"] + 1}
    assert NET(head | changed, x).equal(NET(start | changed, x))
    assert not torch.allclose(NET(head | changed, x), NET(head, x), atol=1e-3)


def test_a_name_that_is_no_weight_changes_nothing() -> None:
    head, x = NET.head(rng()), normal(2, *SHAPE)
    assert NET(head | {"prompt": normal(4, 16)}, x).equal(NET(head, x))


def test_training_starts_from_the_pretrained_weights() -> None:
    start = NET.init(rng())
    assert start.keys() == transformer.shapes(NET.arch).keys() | {"head.weight", "head.bias"}
    assert all(start[name].equal(value) for name, value in NET.frozen.items())
    assert start["head.weight"].shape == (5, 16)
    assert all(value.equal(NET.head(rng(3))[name]) for name, value in NET.head(rng(1)).items())
    assert {value.dtype for value in start.values()} == {torch.float32}


def test_only_what_is_passed_in_gets_a_gradient() -> None:
    head = tree.map(torch.Tensor.requires_grad_, NET.head(rng()))
    tokens = [normal(2, 16, seed=at).requires_grad_() for at in range(3)]
    NET(head, normal(2, *SHAPE), tokens=tokens).square().sum().backward()
    assert all(one.grad is not None and one.grad.abs().sum() > 0 for one in (*tokens, *head.values()))
    assert not any(value.requires_grad for value in NET.frozen.values())


def test_no_prompt_is_no_change() -> None:
    x = normal(2, *SHAPE)
    assert_close(NET.features({}, x, tokens=torch.zeros(0, 16)), NET.features({}, x), 1e-6)


@pytest.mark.parametrize("trained", ["head", "all"])
@pytest.mark.parametrize("tokens", ["none", "per client", "per sample", "deep"])
def test_a_stack_is_one_by_one(trained: str, tokens: str) -> None:
    x, names = normal(3, 2, *SHAPE), ["head.weight", "head.bias"]
    singles = [NET.init(rng(seed=seed)) for seed in range(3)]
    if trained == "head":
        singles = [tree.pick(one, names) for one in singles]
    singles = [tree.map(lambda value, by=at: value + 0.02 * by, one) for at, one in enumerate(singles)]
    prompts = {
        "none": [],
        "per client": [normal(3, 4, 16, seed=1)],
        "per sample": [normal(3, 2, 4, 16, seed=1)],
        "deep": [normal(3, 4, 16, seed=at) for at in range(3)],
    }[tokens]
    together = NET(tree.stack(singles), x, tokens=prompts or None)
    for client, single in enumerate(singles):
        alone = NET(single, x[client], tokens=[one[client] for one in prompts] or None)
        assert_close(together[client], alone)


def test_bfloat16_is_close_and_answers_in_float32() -> None:
    low = ViT.random(SHAPE, 5, width=16, depth=3, heads=4, patch=4, precision="bf16")
    assert {value.dtype for value in low.frozen.values()} == {torch.bfloat16}
    assert {value.dtype for value in low.init(rng()).values()} == {torch.float32}
    start, x, tokens = NET.init(rng()), normal(2, *SHAPE), normal(4, 16).requires_grad_()
    for weights in (start, low.head(rng())):
        logits = low(weights, x, tokens=tokens)
        assert logits.dtype == low.features(weights, x).dtype == torch.float32
        assert_close(logits, NET(weights, x, tokens=tokens), 0.05)
    (pull,) = torch.autograd.grad(logits.sum(), tokens)
    assert pull.dtype == torch.float32


# -- how it is made -------------------------------------------------------------------------------------------------


def test_the_name_finds_it_and_its_options_are_the_recipes_keys() -> None:
    assert BACKBONES["vit"] is ViT
    assert options.defaults(ViT) == {"weights": "embedded", "size": 0, "precision": "auto"}
    made = options.make(ViT, {"size": 32}, "backbone", {"shape": SHAPE, "classes": 3})
    assert made == ViT(SHAPE, 3, size=32)
    with pytest.raises(PromptFedError, match=r'Unknown key "backbone\.frozen"'):
        options.make(ViT, {"frozen": {}}, "backbone", {"shape": SHAPE, "classes": 3})


def test_form_is_known_before_weights_are_read(tmp_path: Path) -> None:
    saved(dinov2(), tmp_path)
    (tmp_path / "model.safetensors").unlink()
    net = ViT(SHAPE, 5, str(tmp_path))
    assert (net.token_width, net.layers) == (16, 3)
    assert net.statistics == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert not isinstance(net, LoadedViT)


def test_a_loaded_one_is_a_backbone_that_can_be_copied_and_compared(tmp_path: Path) -> None:
    net: Backbone = ViT(SHAPE, 5, saved(vit(), tmp_path)).to(CPU)
    assert (net.shape, net.token_width, net.layers, net.draws()) == (SHAPE, 16, 3, {})
    assert net.statistics == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    assert net == net.to(CPU) == pickle.loads(pickle.dumps(net))
    assert hash(net) == hash(net.to(CPU))
    assert "tensor" not in repr(net)


def test_random_weights_are_a_function_of_the_seed() -> None:
    again, other = (ViT.random(SHAPE, 5, width=16, depth=3, heads=4, patch=4, seed=seed) for seed in (0, 1))
    assert all(value.equal(again.frozen[name]) for name, value in NET.frozen.items())
    assert not other.frozen["patch.weight"].equal(NET.frozen["patch.weight"])
    assert NET.statistics is None
    assert dataclasses.replace(NET) == NET


@pytest.mark.parametrize("kind", [{"layer_scale": True}, {"swiglu": True}, {"size": 8}])
def test_random_networks_of_every_form_run(kind: dict[str, int]) -> None:
    net = ViT.random(SHAPE, 5, width=16, depth=2, heads=4, patch=4, **kind)  # type: ignore[arg-type]
    logits = net(net.head(rng()), normal(2, *SHAPE), tokens=normal(2, 16))
    assert logits.shape == (2, 5)
    assert logits.isfinite().all()


# -- mistakes -------------------------------------------------------------------------------------------------------


def test_patches_must_divide_the_images(tmp_path: Path) -> None:
    where = saved(vit(), tmp_path)
    with pytest.raises(PromptFedError, match=r"^Images of 30×30 pixels .* patches of 4; set backbone\.size=16\.$"):
        ViT((3, 30, 30), 5, where).to(CPU)
    with pytest.raises(PromptFedError, match=r"^Images of 18×18 pixels .*; set backbone\.size=16\.$"):
        ViT((3, 30, 30), 5, where, size=18).to(CPU)


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(PromptFedError, match=r"^heads=3 does not divide width=16\.$"):
        ViT.random(SHAPE, 5, width=16, depth=1, heads=3, patch=4)
