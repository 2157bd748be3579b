"""The tiny vision transformer against a plain one built from torch's own layers."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from promptfed.backbones import BACKBONES, transformer
from promptfed.backbones.vit import TinyViT
from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.tree import Tree
from support.toys import rng

NET = TinyViT((3, 8, 12), 5, patch=4, width=16, depth=2, heads=4)  # 2 × 3 patches


def weights(seed: int = 0) -> Tree:
    """Return weights no two of which are alike: the zeros and ones of the start would hide mistakes."""
    generator = torch.Generator().manual_seed(seed)
    start = NET.init(rng(seed=seed))
    return tree.map(lambda value: value.double() + 0.1 * torch.randn(value.shape, generator=generator).double(), start)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def images(*lead: int) -> Tensor:
    return normal(*lead, 3, 8, 12)


def attend(own: Tree, block: str, z: Tensor) -> Tensor:
    """Run torch's own multi-head attention on a block's weights."""
    return F.multi_head_attention_forward(
        *(z.transpose(0, 1),) * 3, NET.width, NET.heads, own[f"{block}.qkv.weight"], own[f"{block}.qkv.bias"],
        None, None, False, 0.0, own[f"{block}.out.weight"], own[f"{block}.out.bias"], need_weights=False,
    )[0].transpose(0, 1)  # fmt: skip


def reference(own: Tree, x: Tensor, tokens: Tensor | None = None) -> Tensor:
    """Run the network by convolution, torch's own attention and layer norms."""

    def norm(name: str, z: Tensor) -> Tensor:
        return F.layer_norm(z, (NET.width,), own[f"{name}.weight"], own[f"{name}.bias"], 1e-6)

    patches = F.conv2d(x, own["patch.weight"].view(NET.width, 3, 4, 4), own["patch.bias"], stride=4)
    z = torch.cat([own["cls"].expand(len(x), 1, -1), patches.flatten(2).transpose(1, 2)], 1) + own["position"]
    if tokens is not None:
        z = torch.cat([z[:, :1], tokens.expand(len(x), -1, -1), z[:, 1:]], 1)
    for number in range(NET.depth):
        block = f"block{number}"
        z = z + attend(own, block, norm(f"{block}.norm1", z))
        hidden = F.gelu(F.linear(norm(f"{block}.norm2", z), own[f"{block}.mlp1.weight"], own[f"{block}.mlp1.bias"]))
        z = z + F.linear(hidden, own[f"{block}.mlp2.weight"], own[f"{block}.mlp2.bias"])
    return F.linear(norm("norm", z[:, 0]), own["head.weight"], own["head.bias"])


def test_number_of_weights() -> None:
    # patches (48 + 1)·128 = 6,272; class token and positions (1 + 65)·128 = 8,448;
    # 8 blocks: norms 512, attention (128 + 1)·384 + (128 + 1)·128 = 66,048, MLP (128 + 1)·256 + (256 + 1)·128 = 65,920;
    # last norm 256; head (128 + 1)·10 = 1,290
    by_hand = 6_272 + 8_448 + 8 * (512 + 66_048 + 65_920) + 256 + 1_290
    assert tree.floats(TinyViT((3, 32, 32), 10).init(rng())) == by_hand == 1_076_106


def test_the_name_finds_it() -> None:
    assert BACKBONES["vit-tiny"] is TinyViT
    assert (NET.token_width, NET.layers) == (16, 2)
    assert NET.draws() == {}


def test_it_is_trained_from_scratch() -> None:
    assert NET.statistics is None
    assert NET.to(torch.device("cpu")) is NET
    with pytest.raises(
        PromptFedError, match=r"^vit-tiny has no pretrained weights to freeze; set backbone\.name=vit\.$"
    ):
        NET(NET.head(rng()), images(2))


def test_a_head_alone_has_the_shape_of_the_whole_networks() -> None:
    whole, head = NET.init(rng()), NET.head(rng())
    assert {name: value.shape for name, value in head.items()} == {
        name: whole[name].shape for name in ("head.weight", "head.bias")
    }
    assert all(value.equal(NET.head(rng(1))[name]) for name, value in head.items())


def test_the_numbers_of_published_results_stay() -> None:
    net = TinyViT((3, 32, 32), 10)
    x = torch.arange(3 * 32 * 32).view(1, 3, 32, 32).remainder(7) / 7
    logits = net(net.init(rng()), x, tokens=torch.linspace(-1, 1, 256).view(2, 128))
    # printed by the version whose results are in docs/results
    before = torch.tensor([-0.0534098372, -0.0070188642, -0.5340069532, 0.0700393915, -0.2684271336])
    torch.testing.assert_close(logits[0, :5], before, rtol=0, atol=2e-6)


@pytest.mark.parametrize("count", [None, 1, 3])
def test_values_are_those_of_torch(count: int | None) -> None:
    tokens = None if count is None else normal(count, 16, seed=1)
    found = NET(weights(), images(4), tokens=tokens)
    torch.testing.assert_close(found, reference(weights(), images(4), tokens), rtol=1e-10, atol=1e-10)


def test_patches_are_read_as_unfold_reads_them() -> None:
    own = weights() | {"patch.weight": torch.eye(48, dtype=torch.float64), "patch.bias": torch.zeros(48).double()}
    own |= {"cls": torch.zeros(1, 48).double(), "position": torch.zeros(7, 48).double()}
    wide = TinyViT((3, 8, 12), 5, patch=4, width=48, depth=0, heads=4)
    embedded = transformer.embed(wide.arch, own, images(2), None)
    assert embedded[:, 1:].equal(nn.Unfold(4, stride=4)(images(2)).transpose(1, 2))
    assert embedded.shape == (2, 7, 48)


def test_the_first_weights_start_as_described() -> None:
    start = NET.init(rng())
    assert start["cls"].shape == (1, 16)
    assert start["position"].shape == (7, 16)
    for name in ("cls", "position", "norm.bias", "block1.norm2.bias"):
        assert (start[name] == 0).all()
    for name in ("norm.weight", "block0.norm1.weight"):
        assert (start[name] == 1).all()
    assert start["block0.qkv.weight"].abs().max() <= 1 / 4  # 1 / sqrt(16)


def test_first_weights_are_the_same_on_every_client() -> None:
    first, second = NET.init(rng(1)), NET.init(rng(2))
    assert all(first[name].equal(second[name]) for name in first)


@pytest.mark.parametrize("with_tokens", [False, True])
def test_a_stack_is_one_by_one(with_tokens: bool) -> None:
    stacked, x = tree.stack([weights(seed) for seed in range(3)]), images(3, 2)
    tokens = normal(3, 4, 16, seed=1) if with_tokens else None
    together = NET(stacked, x, tokens=tokens)
    for client in range(3):
        alone = NET(tree.row(stacked, client), x[client], tokens=None if tokens is None else tokens[client])
        torch.testing.assert_close(together[client], alone, rtol=1e-12, atol=1e-12)


def test_a_shared_network_takes_every_clients_own_tokens() -> None:
    x, tokens = images(3, 2), normal(3, 4, 16, seed=1)
    together = NET(weights(), x, tokens=tokens)
    for client in range(3):
        alone = NET(weights(), x[client], tokens=tokens[client])
        torch.testing.assert_close(together[client], alone, rtol=1e-12, atol=1e-12)


def test_tokens_change_the_answer_and_no_token_is_no_change() -> None:
    own, x = weights(), images(2)
    plain = NET(own, x)
    assert not torch.allclose(NET(own, x, tokens=normal(2, 16, seed=1)), plain, atol=1e-3)
    torch.testing.assert_close(
        NET(own, x, tokens=torch.zeros(0, 16, dtype=torch.float64)), plain, rtol=1e-12, atol=1e-12
    )


def test_tokens_have_no_position_and_so_no_order() -> None:
    own, x, tokens = weights(), images(2), normal(3, 16, seed=1)
    torch.testing.assert_close(NET(own, x, tokens=tokens), NET(own, x, tokens=tokens.flip(0)), rtol=1e-10, atol=1e-10)


def test_gradients_reach_tokens_and_every_weight() -> None:
    own = tree.map(torch.Tensor.requires_grad_, weights())
    tokens = normal(2, 16, seed=1).requires_grad_()
    pulls = torch.autograd.grad(NET(own, images(2), tokens=tokens).square().sum(), [tokens, *own.values()])
    assert all(pull.abs().sum() > 0 for pull in pulls)


def test_features_are_what_the_head_sees() -> None:
    own, x = weights(), images(2)
    features = NET.features(own, x)
    assert features.shape == (2, 16)
    torch.testing.assert_close(F.linear(features, own["head.weight"], own["head.bias"]), NET(own, x), rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(3, 30, 32), (3, 32, 30)])
def test_a_patch_must_divide_the_images(shape: tuple[int, int, int]) -> None:
    with pytest.raises(PromptFedError, match=rf"backbone\.patch=4 does not divide the images' {shape[1]}×{shape[2]}"):
        TinyViT(shape, 10)


def test_the_heads_must_divide_the_width() -> None:
    with pytest.raises(PromptFedError, match=r"backbone\.heads=3 does not divide backbone\.width=128"):
        TinyViT((3, 32, 32), 10, heads=3)
