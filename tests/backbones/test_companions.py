"""Low-rank pairs, side adapters, deeper contexts and patches: the same as what other weights would give."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from promptfed.backbones import text, transformer
from promptfed.backbones.cached import Cached, behind, seen
from promptfed.backbones.clip import LoadedCLIP
from promptfed.backbones.pretrained import LoadedViT, ViT
from promptfed.core import ops, tree
from promptfed.core.errors import PromptFedError
from promptfed.core.method import Task, adaptable, dense
from promptfed.core.tree import Tree
from support.toy_clip import NAMES, NET, SHAPE, assert_close, normal
from support.toys import task

VIT = ViT.random(SHAPE, 3, width=16, depth=2, heads=2, patch=4, precision="fp32")
WIDTHS = {"": 16, "text.": 12}


def pair(name: str, seed: int = 0, rank: int = 2, net: LoadedCLIP | LoadedViT = NET) -> Tree:
    """Return a pair beside a matrix, large enough to be seen."""
    out, into = net.matrices[name]
    return {f"{name}.lora_a": normal(rank, into, seed=seed), f"{name}.lora_b": 0.2 * normal(out, rank, seed=seed + 9)}


def side(block: str, width: int, seed: int = 0, *, mid: bool = True) -> Tree:
    """Return an adapter beside a block, 3 numbers wide."""
    shapes = {"down": (3, width), **({"mid": (3, 3)} if mid else {}), "up": (width, 3)}
    found: Tree = {}
    for number, (part, shape) in enumerate(shapes.items()):
        found[f"{block}.side.{part}.weight"] = normal(*shape, seed=seed + number)
        found[f"{block}.side.{part}.bias"] = normal(shape[0], seed=seed + 5 + number)
    return found


def product(own: Tree, name: str) -> Tensor:
    return own[f"{name}.lora_b"] @ own[f"{name}.lora_a"]


# -- the image tower ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["qkv", "out", "mlp1", "mlp2"])
@pytest.mark.parametrize("block", [0, 1])  # the last one computes the class token alone
def test_a_pair_is_the_matrix_with_its_product_added(part: str, block: int) -> None:
    name, x = f"block{block}.{part}", normal(2, *SHAPE)
    own = pair(name)
    moved = {f"{name}.weight": NET.image.frozen[f"{name}.weight"] + product(own, name)}
    found = NET.features(own, x)
    assert_close(found, NET.features(moved, x), 1e-4)
    assert not torch.allclose(found, NET.features({}, x), atol=1e-2)


@pytest.mark.parametrize("part", ["qkv", "q", "out", "mlp1", "mlp2"])
@pytest.mark.parametrize("tower", ["", "text."])
@pytest.mark.parametrize("paired", [False, True])
def test_a_whole_matrix_is_as_a_pair_of_full_rank(part: str, tower: str, paired: bool) -> None:
    name, x, context = f"{tower}block0.{part}", normal(2, *SHAPE), normal(3, WIDTHS["text."])
    own = pair(name, rank=min(NET.matrices[name]))
    whole = {f"{name}.rest": product(own, name)}
    if paired:  # beside a pair that takes a half of it away
        whole[f"{name}.rest"] = 1.5 * whole[f"{name}.rest"]
        whole |= {f"{name}.lora_a": own[f"{name}.lora_a"], f"{name}.lora_b": -0.5 * own[f"{name}.lora_b"]}

    def seen_with(weights: Tree) -> Tensor:
        return NET.text(context, per_class=False, weights=weights) if tower else NET.features(weights, x)

    assert_close(seen_with(whole), seen_with(own), 1e-4)
    assert not torch.allclose(seen_with(whole), seen_with({}), atol=1e-3)


@pytest.mark.parametrize("parts", ["q", "k", "v", "qv", "qkv"])
@pytest.mark.parametrize("block", [0, 1])
def test_queries_keys_and_values_have_pairs_of_their_own(parts: str, block: int) -> None:
    x, own = normal(2, *SHAPE), Tree()
    whole = NET.image.frozen[f"block{block}.qkv.weight"].clone()
    for number, part in enumerate(parts):
        own |= pair(f"block{block}.{part}", seed=number)
        whole[16 * "qkv".index(part) :][:16] += product(own, f"block{block}.{part}")
    assert_close(NET.features(own, x), NET.features({f"block{block}.qkv.weight": whole}, x), 1e-4)


@pytest.mark.parametrize("mid", [True, False])
@pytest.mark.parametrize("alone", [True, False])
def test_a_side_adapter_is_added_to_its_block(mid: bool, alone: bool) -> None:
    arch, own, z = NET.image.form, transformer._own(side("block1", 16, mid=mid), 1), normal(2, 5, 16)
    frozen = transformer._own(NET.image.frozen, 1)
    made = ops.layer_norm(z, frozen["norm1.weight"], frozen["norm1.bias"], arch.eps)
    for part in ("down", "mid", "up") if mid else ("down", "up"):
        made = made @ own[f"side.{part}.weight"].T + own[f"side.{part}.bias"]
        made = made if part == "up" else made.relu()
    plain, found = (transformer._block(arch, w, z, alone=alone, flash=False) for w in (frozen, frozen | own))
    assert_close(found, plain + (made[:, :1] if alone else made))


# -- the text tower -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["qkv", "out", "mlp1", "mlp2"])
@pytest.mark.parametrize("block", [0, 2])
@pytest.mark.parametrize("per_class", [False, True])
def test_pairs_of_the_text_tower(part: str, block: int, per_class: bool) -> None:
    name, context = f"block{block}.{part}", normal(2, *((3,) if per_class else ()), 4, 12)
    own = pair(f"text.{name}")
    found = NET.text(context, per_class=per_class, weights=own)
    moved = NET.spelled | {f"{name}.weight": NET.spelled[f"{name}.weight"] + product(own, f"text.{name}")}
    wanted = text.features(NET.text_arch, moved, context if per_class else context.unsqueeze(-3))
    assert_close(found, wanted, 1e-4)
    assert not torch.allclose(found, NET.text(context, per_class=per_class), atol=1e-2)


def test_names_of_the_other_tower_change_nothing() -> None:
    context, x = normal(4, 12), normal(2, *SHAPE)
    image, words = pair("block0.qkv") | side("block1", 16), pair("text.block0.qkv") | side("text.block1", 12)
    assert NET.text(context, per_class=False, weights=image).equal(NET.text(context, per_class=False))
    assert NET.features(words, x).equal(NET.features({}, x))


def test_pairs_of_zeros_change_nothing() -> None:
    own = tree.map(torch.zeros_like, pair("block0.q") | pair("text.block1.mlp1") | side("text.block0", 12))
    assert_close(NET.features(own, normal(2, *SHAPE)), NET.features({}, normal(2, *SHAPE)), 1e-6)
    assert_close(NET.text("a photo of a", per_class=False, weights=own), NET.zero_shot, 1e-6)


# -- both -----------------------------------------------------------------------------------------------------------


def everything(seed: int) -> Tree:
    own = pair("block0.q", seed) | pair("block1.v", seed + 1) | pair("block1.mlp2", seed + 2) | side("block0", 16, seed)
    own |= pair("text.block0.k", seed) | pair("text.block2.out", seed + 3) | pair("text.block1.mlp1", seed + 4)
    return tree.map(lambda value: 0.3 * value, own | side("text.block2", 12, seed) | side("text.block0", 12, seed + 1))


@pytest.mark.parametrize("chunk", [0, 3])
def test_a_stack_of_companions_is_one_by_one(chunk: int) -> None:
    net = NET if not chunk else LoadedCLIP(**{**vars(NET), "chunk": chunk})
    singles = [everything(seed) for seed in (1, 2, 3)]
    together, x = tree.stack(singles), normal(3, 2, *SHAPE)
    images, context = net.features(together, x), normal(3, 4, 12)
    patches = net.patches(together, x)
    calls: list[Callable[[Tree, Tensor], Tensor]] = [
        lambda own, given: net.text(given, per_class=False, weights=own),
        lambda own, given: net.text(
            given.unsqueeze(-3).expand(*given.shape[:-2], 3, -1, -1), per_class=True, weights=own
        ),
        lambda own, given: net.text("red photo of", per_class=False, weights=own),
    ]
    for client, single in enumerate(singles):
        assert_close(images[client], net.features(single, x[client]), 1e-4)
        assert_close(patches[client], net.patches(single, x[client]), 1e-4)
    for call in calls:
        stacked = call(together, context)
        for client, single in enumerate(singles):
            assert_close(stacked[client], call(single, context[client]), 1e-4)


def test_every_companion_gets_a_gradient() -> None:
    own = tree.map(lambda value: value.requires_grad_(), tree.stack([everything(1), everything(2)]))
    x = normal(2, 2, *SHAPE)
    value = NET.features(own, x).square().sum() + NET.text("photo of", per_class=False, weights=own).pow(3).sum()
    pulls = torch.autograd.grad(value, list(own.values()))
    assert all(pull.flatten(1).abs().sum(-1).min() > 0 for pull in pulls)


def test_which_matrices_may_have_a_pair() -> None:
    found = adaptable(Task(NET, NAMES, 2)).matrices
    assert found["block1.qkv"] == (48, 16)
    assert found["block1.k"] == (16, 16)
    assert found["text.block2.mlp1"] == (24, 12)
    assert len(found) == 2 * 7 + 3 * 7
    # CLIP-LoRA's setting on ViT-B/16: rank 2 beside q, k and v of all blocks of both towers
    assert 12 * 3 * 2 * 2 * (768 + 512) == 184_320
    with pytest.raises(PromptFedError, match=r"^This method needs a frozen transformer; set backbone\.name=vit, "):
        adaptable(task())


# -- contexts of deeper blocks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("per_class", [False, True])
def test_deeper_contexts_shared_or_not(per_class: bool) -> None:
    first, second, third = (normal(2, 4, 12, seed=seed) for seed in range(3))
    shared = NET.text(first, per_class=False, deep=[second, third])

    def spread(one: Tensor) -> Tensor:
        return one.unsqueeze(-3).expand(2, 3, 4, 12)

    if per_class:
        found = NET.text(spread(first), per_class=True, deep=[spread(second), spread(third)])
        assert_close(found, shared, 1e-5)
    assert not torch.allclose(shared, NET.text(first, per_class=False), atol=1e-2)
    again = NET.text(first, per_class=False, deep=[second])
    assert not torch.allclose(shared, again, atol=1e-3)
    for client in range(2):
        alone = NET.text(first[client], per_class=False, deep=[second[client], third[client]])
        assert_close(alone, shared[client], 1e-5)


def test_a_deeper_context_takes_the_place_of_what_became_of_the_first() -> None:
    """With the states of the first block's own context in its place nothing changes."""
    first = normal(4, 12)
    arch, words = NET.quick_arch, NET.frozen
    stem = torch.cat([words["start"][None], first]) + words["position"][:5]
    block = text._Block(arch, words, "block0")
    query, key, value = block.heads(stem[None])
    mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    after = block.finished(stem[None], mixed)[0, 1:]
    assert_close(NET.text(first, per_class=False, deep=[after]), NET.text(first, per_class=False), 1e-5)


def test_more_contexts_than_blocks() -> None:
    one = normal(4, 12)
    with pytest.raises(PromptFedError, match=r"^There are contexts for 4 layers, but the text tower has 3\.$"):
        NET.text(one, per_class=False, deep=[one, one, one])


# -- patches --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [None, 3])
def test_the_first_patch_is_the_class_token(tokens: int | None) -> None:
    x = normal(2, *SHAPE)
    prompt = None if tokens is None else normal(tokens, 16)
    for net in (NET, VIT):
        found = net.patches({}, x, tokens=prompt)
        assert found.shape == (2, 17, 10 if net is NET else 16)
        assert_close(found[:, 0], net.features({}, x, tokens=prompt))
    raw = NET.patches({}, x, tokens=prompt, project=False)
    assert_close(raw @ NET.image.frozen["projection.weight"].T, NET.patches({}, x, tokens=prompt), 1e-4)


def test_a_patch_is_where_its_pixels_are() -> None:
    x = normal(1, *SHAPE)
    moved = x.clone()
    moved[..., 4:8, 8:12] += 3  # the second row of patches, the third column
    change = (VIT.patches({}, moved) - VIT.patches({}, x)).norm(dim=-1)[0, 1:]
    assert change.argmax() == 1 * 4 + 2


def test_kept_patches_stand_for_the_images() -> None:
    x, whole = normal(2, *SHAPE), Task(NET, NAMES, 2)
    kept = seen(NET, "patches", x)
    own = dense(Task(behind(NET, "patches"), NAMES, 2))
    assert own.patches({}, kept) is kept
    assert_close(own.features({}, kept), NET.features({}, x))
    assert seen(NET, "pixels", x) is x
    assert behind(NET, "pixels") is NET
    assert_close(seen(NET, "features", x), NET.features({}, x), 0)
    assert dense(whole) is NET
    with pytest.raises(PromptFedError, match=r'^A method that looks at projected patches has reads="patches"'):
        Cached(NET).patches({}, kept)
    with pytest.raises(PromptFedError, match=r"^This method needs a transformer's patches; set backbone\.name=vit"):
        dense(task())


# -- tokens that come and stay --------------------------------------------------------------------------------------


def test_tokens_that_enter_first_are_prompts() -> None:
    x, tokens = normal(2, *SHAPE), normal(3, 16, seed=1)
    for net in (NET, VIT):
        assert_close(net.grown({}, x, tokens={}), net.features({}, x))
    assert_close(VIT.grown({}, x, tokens={0: tokens}), VIT.features({}, x, tokens=tokens))


def test_later_tokens_enter_behind_the_class_token_and_stay() -> None:
    x, first, later = normal(2, *SHAPE), normal(1, 16, seed=1), normal(2, 2, 16, seed=2)  # the later ones per sample
    arch, own = VIT.form, VIT.frozen
    z = transformer.embed(arch, own, x, first)
    z = transformer._block(arch, transformer._own(own, 0), z, alone=False, flash=False)
    z = torch.cat([z[:, :1], later, z[:, 1:]], 1)  # the newest first
    z = transformer._block(arch, transformer._own(own, 1), z, alone=False, flash=False)
    wanted = ops.layer_norm(z, own["norm.weight"], own["norm.bias"], arch.eps)
    given = {0: first, 1: later}
    assert_close(VIT.grown({}, x, tokens=given), wanted[:, 0])
    assert_close(VIT.grown({}, x, tokens=given, nearest=2), wanted[:, :3].mean(1))
    half = transformer.embed(arch, own, x, None)
    half = transformer._block(arch, transformer._own(own, 0), half, alone=False, flash=False)
    assert_close(
        VIT.grown({}, x, tokens={}, upto=1), ops.layer_norm(half, own["norm.weight"], own["norm.bias"], arch.eps)[:, 0]
    )


def test_a_stack_of_growing_sequences_is_one_by_one() -> None:
    x, tokens = normal(3, 2, *SHAPE), {0: normal(3, 1, 16), 1: normal(3, 2, 16, seed=4)}
    together = NET.grown({}, x, tokens=tokens, nearest=1)
    for client in range(3):
        own = {number: value[client] for number, value in tokens.items()}
        assert_close(together[client], NET.grown({}, x[client], tokens=own, nearest=1))


@pytest.mark.parametrize(("tokens", "upto", "number"), [({2: 1}, 0, 2), ({}, 3, 3)])
def test_there_are_only_so_many_blocks(tokens: dict[int, int], upto: int, number: int) -> None:
    given = {block: normal(count, 16) for block, count in tokens.items()}
    with pytest.raises(PromptFedError, match=rf"^The backbone has 2 blocks, and there is none {number}\.$"):
        VIT.grown({}, normal(1, *SHAPE), tokens=given, upto=upto)


# -- contexts of different lengths ----------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [0, 3])
def test_the_name_follows_right_behind_a_shorter_context(chunk: int) -> None:
    net = LoadedCLIP(**{**vars(NET), "chunk": chunk})
    context = normal(3, 6, 12).requires_grad_()
    lengths = torch.tensor([2, 6, 0])
    found = net.text(context, per_class=False, length=lengths)
    for client, count in enumerate(lengths.tolist()):
        assert_close(found[client], net.text(context[client, :count], per_class=False))
        assert_close(net.text(context[client], per_class=False, length=lengths[client]), found[client])
    (pull,) = torch.autograd.grad(found.pow(3).sum(), context)
    assert pull[0, 2:].abs().max() == pull[2].abs().max() == 0
    assert pull[0, :2].abs().min() > 0


def test_a_stack_of_contexts_may_have_a_length_for_each_client() -> None:
    context, lengths = normal(2, 5, 12), torch.tensor([[3], [5]])
    both = NET.text(torch.stack([context, 2 * context], 1), per_class=False, length=lengths)
    assert_close(both[0, 1], NET.text(2 * context[0, :3], per_class=False))
    assert_close(both[1, 0], NET.text(context[1], per_class=False))
    with pytest.raises(
        PromptFedError, match=r"^Contexts of different lengths are shared by all classes; give them per_"
    ):
        NET.text(normal(3, 5, 12), per_class=True, length=torch.tensor(2))
