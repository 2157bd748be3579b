"""Convolutional networks: their sizes by hand, their values against torch's own layers."""

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from promptfed.backbones import BACKBONES
from promptfed.backbones.cnn import CNN, ConvNet, PaperCNN, PflCNN
from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.protocols import Draw
from promptfed.core.tree import Tree
from support.toys import rng

CIFAR = (3, 32, 32)


def small() -> ConvNet:
    """Return a network small enough for double precision: 14 → 12 → 6 → 4 → 2, 4·2·2 = 16 features."""
    return ConvNet((3, 14, 14), 2, channels=(3, 4), kernel=3, hidden=(5,), dropout=(0.25, 0.5))


def weights(net: ConvNet, seed: int = 0) -> Tree:
    return tree.map(torch.Tensor.double, net.init(rng(seed=seed)))


def images(*lead: int, seed: int = 0) -> Tensor:
    return torch.randn(*lead, 3, 14, 14, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(
    ("net", "count"),
    [
        # (3·25 + 1)·32 + (32·25 + 1)·64 + (64·5·5 + 1)·512 + (512 + 1)·10 = 2,432 + 51,264 + 819,712 + 5,130
        (CNN(CIFAR, 10), 878_538),
        # (3·25 + 1)·64 + (64·25 + 1)·64 + (64·5·5 + 1)·394 + (394 + 1)·192 + (192 + 1)·10
        # = 4,864 + 102,464 + 630,794 + 75,840 + 1,930
        (PaperCNN(CIFAR, 10), 815_892),
        # (3·9 + 1)·32 + (32·9 + 1)·64 + (64·14·14 + 1)·128 + (128 + 1)·10 = 896 + 18,496 + 1,605,760 + 1,290
        (PflCNN(CIFAR, 10), 1_626_442),
    ],
)
def test_number_of_weights(net: ConvNet, count: int) -> None:
    assert tree.floats(net.init(rng())) == count


def test_larger_images_have_more_features() -> None:
    # 64 → 60 → 30 → 26 → 13: 64 · 13 · 13
    start = CNN((3, 64, 64), 200).init(rng())
    assert start["fc1.weight"].shape == (512, 10_816)
    assert start["head.weight"].shape == (200, 512)


def test_names_find_the_networks() -> None:
    assert {name: BACKBONES[name] for name in ("cnn", "cnn-paper", "cnn-pfl")} == {
        "cnn": CNN, "cnn-paper": PaperCNN, "cnn-pfl": PflCNN,
    }  # fmt: skip


def test_first_weights_are_uniform_within_one_over_root_fan_in() -> None:
    start = CNN(CIFAR, 10).init(rng())
    for name, fan_in in {"conv1": 75, "conv2": 800, "fc1": 1600, "head": 512}.items():
        bound = 1 / math.sqrt(fan_in)
        for part in ("weight", "bias"):
            assert start[f"{name}.{part}"].abs().max() <= bound
        assert start[f"{name}.weight"].abs().max() > 0.95 * bound
        assert math.isclose(float(start[f"{name}.weight"].std()), bound / math.sqrt(3), rel_tol=0.05)


def test_first_weights_are_the_same_on_every_client() -> None:
    first, second, other = (small().init(source) for source in (rng(1), rng(2), rng(1, seed=1)))
    assert all(first[name].equal(second[name]) for name in first)
    assert not any(first[name].equal(other[name]) for name in first)


def reference(own: Tree, x: Tensor) -> Tensor:
    """Run `small` by torch's own layers."""
    for name in ("conv1", "conv2"):
        x = F.max_pool2d(torch.relu(F.conv2d(x, own[f"{name}.weight"], own[f"{name}.bias"])), 2)
    x = torch.relu(F.linear(x.flatten(1), own["fc1.weight"], own["fc1.bias"]))
    return F.linear(x, own["head.weight"], own["head.bias"])


def test_values_are_those_of_torch() -> None:
    own, x = weights(small()), images(4)
    torch.testing.assert_close(small()(own, x), reference(own, x), rtol=1e-12, atol=1e-12)


def test_a_pooling_may_follow_only_the_second_convolution() -> None:
    net = PflCNN((3, 14, 14), 2)
    own, x = weights(net), images(2)
    features = F.max_pool2d(
        torch.relu(
            F.conv2d(
                torch.relu(F.conv2d(x, own["conv1.weight"], own["conv1.bias"])), own["conv2.weight"], own["conv2.bias"]
            )
        ),
        2,
    ).flatten(1)
    expected = torch.relu(F.linear(features, own["fc1.weight"], own["fc1.bias"]))
    torch.testing.assert_close(net.features(own, x), expected, rtol=1e-12, atol=1e-12)


def test_a_stack_is_one_by_one() -> None:
    net, x = small(), images(3, 4)
    stacked = tree.stack([weights(net, seed) for seed in range(3)])
    noise = {"dropout1": torch.rand(3, 4, 16), "dropout2": torch.rand(3, 4, 5)}
    for given in (None, noise):
        together = net(stacked, x, noise=given)
        for client in range(3):
            mine = None if given is None else tree.row(given, client)
            alone = net(tree.row(stacked, client), x[client], noise=mine)
            torch.testing.assert_close(together[client], alone, rtol=1e-12, atol=1e-12)


def test_gradients_of_a_stack_are_one_by_one() -> None:
    net, x = small(), images(2, 4)
    stacked = tree.map(torch.Tensor.requires_grad_, tree.stack([weights(net, seed) for seed in range(2)]))
    together = torch.autograd.grad(net(stacked, x).square().sum(), list(stacked.values()))
    for client in range(2):
        single = tree.map(lambda value, at=client: value[at].detach().requires_grad_(), stacked)
        alone = torch.autograd.grad(net(single, x[client]).square().sum(), list(single.values()))
        torch.testing.assert_close([part[client] for part in together], list(alone), rtol=1e-10, atol=1e-10)


# -- dropout ------------------------------------------------------------------------------------------------------


def test_dropout_asks_for_one_number_per_feature_and_sample() -> None:
    assert small().draws() == {"dropout1": Draw((16,)), "dropout2": Draw((5,))}
    assert PflCNN(CIFAR, 10).draws() == {"dropout1": Draw((12_544,)), "dropout2": Draw((128,))}
    assert CNN(CIFAR, 10).draws() == {}


def test_dropout_only_with_noise() -> None:
    own, x = weights(small()), images(2)
    kept = {"dropout1": torch.full((2, 16), 0.99), "dropout2": torch.full((2, 5), 0.99)}
    assert small()(own, x).equal(small()(own, x))
    # all kept: the features grow by 1 / (1 − 0.5) on top of what 1 / (1 − 0.25) does before
    gone = kept | {"dropout2": torch.full((2, 5), 0.49)}
    assert (small().features(own, x, noise=gone) == 0).all()
    assert not small().features(own, x, noise=kept).equal(small().features(own, x))


def test_dropout_drops_below_the_rate_and_rescales_the_rest() -> None:
    own, x = weights(small()), images(1)
    noise = {"dropout1": torch.ones(1, 16), "dropout2": torch.tensor([[0.1, 0.4999, 0.5, 0.6, 0.9]])}
    whole = small().features(own, x, noise=noise | {"dropout2": torch.ones(1, 5)})
    assert small().features(own, x, noise=noise).equal(whole * torch.tensor([0, 0, 1, 1, 1]))


def test_dropout_leaves_the_expectation() -> None:
    net = ConvNet((3, 14, 14), 2, channels=(3, 4), kernel=3, hidden=(), dropout=(0.25,))
    own, x, many = weights(net), images(1), 20_000
    generator = torch.Generator().manual_seed(0)
    noise = {"dropout1": torch.rand(many, 16, generator=generator)}
    plain = net.features(own, x)[0]
    mean = net.features(own, x.expand(many, -1, -1, -1), noise=noise).mean(0)
    # a kept feature is f / 0.75, so its variance is f² (1 / 0.75 − 1) = f² / 3
    assert ((mean - plain).abs() <= 5 * plain.abs() * math.sqrt(1 / 3 / many)).all()


# -- mistakes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 15, 32), (3, 32, 15), (3, 4, 4), (3, 1, 1)])
def test_images_too_small_are_refused(shape: tuple[int, int, int]) -> None:
    with pytest.raises(PromptFedError, match=rf"^Images of {shape[1]}×{shape[2]} pixels are too small .*data\.size\.$"):
        CNN(shape, 10)


def test_the_smallest_images_work() -> None:
    net = CNN((3, 16, 16), 10)  # 16 → 12 → 6 → 2 → 1
    assert net(net.init(rng()), torch.zeros(2, 3, 16, 16)).shape == (2, 10)


def test_there_are_no_tokens() -> None:
    with pytest.raises(PromptFedError, match=r"backbone\.name=vit"):
        _ = CNN(CIFAR, 10).token_width
