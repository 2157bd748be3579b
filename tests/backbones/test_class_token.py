import pytest
import torch
from torch import Tensor

from promptfed.backbones import class_token, transformer
from promptfed.backbones.transformer import Arch
from promptfed.core.tree import Tree

ARCH = Arch(width=12, depth=1, heads=3, patch=2, mlp=16, grid=(2, 3), layer_scale=True)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def weights() -> Tree:
    known = transformer.shapes(ARCH)
    made = {name: 0.4 * normal(*shape, seed=number) for number, (name, shape) in enumerate(known.items())}
    return transformer._own(made, 0)


@pytest.mark.parametrize("lead", [(2,), (2, 3)])
def test_the_block_of_the_class_token_is_the_same_without_keys_and_values(lead: tuple[int, ...]) -> None:
    z, grad = normal(*lead, 5, 12, seed=98), normal(*lead, 1, 12, seed=99)
    found = []
    for lean in (False, True):
        leaf = z.clone().requires_grad_()
        out = transformer._block(ARCH, weights(), leaf, alone=True, flash=False, lean=lean)
        found.append((out, *torch.autograd.grad(out, leaf, grad)))
    for usual, lean_one in zip(*found, strict=True):
        torch.testing.assert_close(usual, lean_one, rtol=1e-10, atol=1e-10)


def test_a_token_that_all_scores_point_at_is_what_is_gathered() -> None:
    own = weights() | {"norm1.weight": torch.ones(12).double(), "norm1.bias": torch.zeros(12).double()}
    large, small = 1e4 * torch.eye(12).double(), torch.zeros(12).double()
    own |= {"qkv.weight": torch.cat([large, large, large / 1e4]), "qkv.bias": torch.cat([small, small, small + 2])}
    z = normal(1, 4, 12, seed=3)
    z[0, 2] = 3 * z[0, 0] + 1  # which the norm takes back
    first, mixed = class_token.gathered(z, own, 3, 1e-12)
    normed = (z[0, 0] - z[0, 0].mean()) / z[0, 0].std(correction=0)
    assert first.equal(z[:, :1])
    torch.testing.assert_close(mixed[0, 0], normed + 2)  # of itself and of its like


def test_in_half_precision_scores_are_added_up_in_float32() -> None:
    ones = torch.ones(1, 1, 601).bfloat16()
    assert class_token._exact(ones, ones.mT).item() == 601  # 600 in bf16
