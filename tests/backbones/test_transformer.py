"""The shared forward: prompts of every layer, per client and per sample, and what may be left out without a change."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from promptfed.backbones import transformer
from promptfed.backbones.transformer import Arch
from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.tree import Tree

ARCH = Arch(width=8, depth=3, heads=2, patch=2, mlp=12, grid=(2, 3))
KINDS = {"plain": ARCH, "scaled": replace(ARCH, layer_scale=True), "gated": replace(ARCH, swiglu=True)}


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def weights(arch: Arch = ARCH, seed: int = 0) -> Tree:
    return {
        name: 0.4 * normal(*shape, seed=seed + 97 * number)
        for number, (name, shape) in enumerate(transformer.shapes(arch).items())
    }


def images(*lead: int) -> Tensor:
    return normal(*lead, 3, 4, 6, seed=5)


def block(arch: Arch, own: Tree, number: int, z: Tensor) -> Tensor:
    """Return all tokens after one block."""
    return transformer._block(arch, transformer._own(own, number), z, alone=False, flash=False)


def test_number_of_weights_of_the_base_size() -> None:
    # patches 16·16·3·768 + 768, class token 768, positions 197·768, last norm 2·768,
    # 12 × (norms 4·768, attention 4·(768² + 768), MLP 2·768·3072 + 3072 + 768)
    base = Arch(width=768, depth=12, heads=12, patch=16, mlp=3072, grid=(14, 14))
    made = {name: torch.empty(shape, device="meta") for name, shape in transformer.shapes(base).items()}
    each = 4 * 768 + 4 * (768**2 + 768) + 2 * 768 * 3072 + 3072 + 768
    assert tree.floats(made) == 590_592 + 768 + 197 * 768 + 2 * 768 + 12 * each == 85_798_656


def test_number_of_weights_of_the_scaled_and_the_gated() -> None:
    def count(arch: Arch) -> int:
        return tree.floats(
            {name: torch.empty(shape, device="meta") for name, shape in transformer.shapes(arch).items()}
        )

    assert count(KINDS["scaled"]) - count(ARCH) == 3 * 2 * 8
    assert count(KINDS["gated"]) - count(ARCH) == 3 * (12 * 8 + 12)


def test_one_block_by_hand() -> None:
    # one token of width 1: attention returns its value, so z = 2 + 3·(value 5) = 17, and normed tokens are their biases
    own = {
        "block0.norm1.weight": [1.0], "block0.norm1.bias": [1.0],
        "block0.qkv.weight": [[1.0], [1.0], [4.0]], "block0.qkv.bias": [0.0, 0.0, 1.0],
        "block0.out.weight": [[3.0]], "block0.out.bias": [0.0],
        "block0.norm2.weight": [1.0], "block0.norm2.bias": [2.0],
        "block0.mlp1.weight": [[0.0], [3.0]], "block0.mlp1.bias": [1.0, 0.0],
        "block0.mlp2.weight": [[10.0]], "block0.mlp2.bias": [-1.0],
        "block0.scale1": [0.5], "block0.scale2": [2.0],
    }  # fmt: skip
    arch = Arch(width=1, depth=1, heads=1, patch=1, mlp=1, grid=(1, 1), swiglu=True)
    tensors = {name: torch.tensor(value, dtype=torch.float64) for name, value in own.items()}
    z = torch.full((1, 1, 1), 2.0, dtype=torch.float64)
    silu = 1 / (1 + torch.e**-1.0)  # of the gate 1; it multiplies the hidden 3·2 = 6
    assert block(arch, tensors, 0, z).item() == pytest.approx(17 + 10 * silu * 6 - 1)
    scaled = block(replace(arch, layer_scale=True), tensors, 0, z).item()
    assert scaled == pytest.approx(2 + 0.5 * 15 + 2 * (10 * silu * 6 - 1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("counts", [(), (2,), (2, 2, 2), (1, 3, 2), (2, 1)])
def test_prompts_of_every_layer_replace_those_before(kind: str, counts: tuple[int, ...]) -> None:
    arch, own, x = KINDS[kind], weights(KINDS[kind]), images(2)
    prompts = [normal(count, 8, seed=count + 10 * at) for at, count in enumerate(counts)]
    z = transformer.embed(arch, own, x, None)
    for number in range(arch.depth):
        if number < len(prompts):
            before = len(prompts[number - 1]) if number else 0
            z = torch.stack([torch.cat([one[:1], prompts[number], one[1 + before :]]) for one in z])
        z = block(arch, own, number, z)
    wanted = torch.nn.functional.layer_norm(z[:, 0], (8,), own["norm.weight"], own["norm.bias"], 1e-6)
    for thrifty in (False, True):
        found = transformer.features(arch, own, x, prompts or None, thrifty=thrifty)
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


def test_one_tensor_of_prompts_is_a_sequence_of_one() -> None:
    own, x, prompts = weights(), images(2), normal(2, 8, seed=1)
    assert transformer.features(ARCH, own, x, prompts).equal(transformer.features(ARCH, own, x, [prompts]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("deep", [False, True])
def test_a_stack_is_one_by_one(kind: str, deep: bool) -> None:
    arch, x = KINDS[kind], images(3, 2)
    stacked = tree.stack([weights(arch, seed) for seed in range(3)])
    prompts = [normal(3, 2, 8, seed=at) for at in range(3 if deep else 1)]
    together = transformer.features(arch, stacked, x, prompts)
    for client in range(3):
        alone = transformer.features(arch, tree.row(stacked, client), x[client], [one[client] for one in prompts])
        torch.testing.assert_close(together[client], alone, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("deep", [False, True])
def test_every_sample_may_have_its_own_prompts(deep: bool) -> None:
    own, x = weights(), images(3, 2)
    prompts = [normal(3, 2, 4, 8, seed=at) for at in range(3 if deep else 1)]
    together = transformer.features(ARCH, own, x, prompts)
    unstacked = transformer.features(ARCH, own, x[1], [one[1] for one in prompts])
    torch.testing.assert_close(together[1], unstacked, rtol=1e-10, atol=1e-10)
    for client in range(3):
        for sample in range(2):
            chosen = [one[client, sample] for one in prompts]
            alone = transformer.features(ARCH, own, x[client, sample : sample + 1], chosen)
            torch.testing.assert_close(together[client, sample], alone[0], rtol=1e-10, atol=1e-10)


def test_leaving_out_what_nobody_reads_keeps_the_gradients() -> None:
    own, x = tree.map(torch.Tensor.requires_grad_, weights(KINDS["scaled"])), images(2)
    prompts = normal(2, 8, seed=1).requires_grad_()
    pulls = [
        torch.autograd.grad(
            transformer.features(KINDS["scaled"], own, x, prompts, thrifty=thrifty).pow(3).sum(),
            [prompts, *own.values()],
        )
        for thrifty in (False, True)
    ]
    torch.testing.assert_close(pulls[0], pulls[1], rtol=1e-9, atol=1e-9)


def test_more_prompts_than_layers_are_refused() -> None:
    with pytest.raises(PromptFedError, match=r"^There are prompts for 4 layers, but the backbone has 3\.$"):
        transformer.features(ARCH, weights(), images(2), [normal(1, 8)] * 4)
