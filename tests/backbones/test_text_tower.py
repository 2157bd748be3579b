"""The text tower: contexts in place of words, texts in parts and groups, and the gradients of both."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from promptfed.backbones import text
from promptfed.backbones.clip import CLIP
from promptfed.backbones.text import TextArch
from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.tree import Tree
from support.toy_clip import ARCH, NET, SHAPE, assert_close, normal


@pytest.mark.parametrize("per_class", [False, True])
def test_what_follows_the_end_token_changes_nothing(per_class: bool) -> None:
    context = normal(3, 4, 12) if per_class else normal(4, 12)
    ending = NET.frozen["ending"]
    rest = normal(3, 77 - 1 - 4 - ending.shape[1], 12, seed=1)
    whole = NET.frozen | {"ending": torch.cat([ending, rest], 1)}
    flat = context if per_class else context[None]
    assert_close(text.features(NET.quick_arch, whole, flat), NET.text(context, per_class=per_class), 1e-6)


def test_a_shared_context_is_the_same_one_for_every_class() -> None:
    context = normal(2, 4, 12).requires_grad_()
    repeated = context.detach()[:, None].repeat(1, 3, 1, 1).requires_grad_()
    pull = normal(2, 3, 10, seed=1)
    shared, each = NET.text(context, per_class=False), NET.text(repeated, per_class=True)
    assert_close(shared, each, 1e-6)
    (first,), (second,) = (
        torch.autograd.grad((found * pull).sum(), given) for found, given in ((shared, context), (each, repeated))
    )
    assert_close(first, second.sum(1))


@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 7, 100])
@pytest.mark.parametrize("per_class", [False, True])
def test_parts_are_the_whole_and_so_are_their_gradients(chunk: int, per_class: bool) -> None:
    small = dataclasses.replace(NET, chunk=chunk)
    context = normal(5, *((3,) if per_class else ()), 4, 12).requires_grad_()
    pull = normal(5, 3, 10, seed=1)
    found, wanted = (net.text(context, per_class=per_class) for net in (small, NET))
    assert_close(found, wanted, 1e-6)
    pulls = [torch.autograd.grad((made * pull).sum(), context)[0] for made in (found, wanted)]
    assert pulls[1].abs().sum() > 0
    assert_close(pulls[0], pulls[1], 1e-6)
    with torch.no_grad():
        assert_close(small.text(context, per_class=per_class), wanted, 1e-6)


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
    whole = CLIP.random((3, 8, 8), names, ARCH)
    monkeypatch.setattr(text, "MANY", 2)
    parted = CLIP.random((3, 8, 8), names, ARCH)
    assert (len(whole.groups), len(parted.groups)) == (1, 2)
    context = normal(2, *((5,) if per_class else ()), 4, 12).requires_grad_()
    found, wanted = (net.text(context, per_class=per_class) for net in (parted, whole))
    assert_close(found, wanted, 1e-6)
    pull = normal(2, 5, 10, seed=1)
    pulls = [torch.autograd.grad((made * pull).sum(), context)[0] for made in (found, wanted)]
    assert pulls[1].abs().sum() > 0
    assert_close(pulls[0], pulls[1], 1e-6)


@pytest.mark.parametrize("quick", [True, False])
def test_silu_takes_the_place_of_quick_gelu(quick: bool) -> None:
    arch = dataclasses.replace(ARCH.text, quick_gelu=quick)
    plain = NET.spelled | {"block0.mlp1.bias": normal(24, seed=2)}
    context = normal(2, 3, 4, 12)
    form, weights = text.with_silu(arch, plain)
    assert form.silu is quick
    if quick:
        assert_close(weights["block0.mlp1.bias"], 1.702 * plain["block0.mlp1.bias"], 1e-6)
        assert_close(weights["block2.mlp2.weight"], plain["block2.mlp2.weight"] / 1.702, 1e-6)
        assert text.with_silu(form, weights) == (form, weights)
    assert weights["block1.mlp2.bias"] is plain["block1.mlp2.bias"]
    assert_close(text.features(form, weights, context), text.features(arch, plain, context), 1e-6)


@pytest.mark.parametrize("per_class", [False, True])
def test_the_end_tokens_alone_are_enough_in_the_last_block(per_class: bool) -> None:
    context, full = normal(2, 3 if per_class else 1, 4, 12), ARCH.text
    identity = tree.map(torch.zeros_like, tree.pick(NET.spelled, [n for n in NET.spelled if n.startswith("block0.")]))
    longer = NET.spelled | {name.replace("block0", "block3"): value for name, value in identity.items()}
    # a fourth block of zeros adds nothing, and makes of the third one that computes all tokens
    assert_close(
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

    def counted(arch: TextArch, spelled: Tree, contexts: Sequence[Tensor], *rest: Any) -> Tensor:
        parts.append(len(contexts[0]))
        return original(arch, spelled, contexts, *rest)

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
            assert_close(together[client, image], NET.text(context[client, image], per_class=per_class), 1e-6)
    assert_close(together.norm(dim=-1), torch.ones(2, 4, 3))


def test_without_a_context_there_is_the_name_alone() -> None:
    assert_close(NET.text(torch.zeros(0, 12), per_class=False), NET.text(torch.zeros(3, 0, 12), per_class=True), 1e-6)


def test_the_only_class() -> None:
    net = CLIP.random(SHAPE, ("cat",), ARCH)
    context = normal(2, 4, 12)
    assert net.text(context, per_class=False).shape == (2, 1, 10)
    assert_close(net.text(context[:, None], per_class=True), net.text(context, per_class=False), 1e-6)


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
