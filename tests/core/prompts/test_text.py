"""Context vectors, and cosines worked out by hand."""

import math

import torch

from promptfed.core.prompts.text import init_context, init_map, match, match_each


def test_a_context_is_shared_or_per_class() -> None:
    draw = torch.Generator().manual_seed(0)
    assert init_context(8, 3, draw).shape == (3, 8)
    each = init_context(64, 4, draw, classes=100)
    assert each.shape == (100, 4, 64)
    assert abs(each.std().item() - 0.02) < 0.0005
    assert abs(each.mean().item()) < 0.0005


def test_cosines_by_hand() -> None:
    features, text = torch.tensor([[3.0, 4.0], [0.0, 0.1]]), torch.eye(2)
    torch.testing.assert_close(match(features, text, torch.tensor(10.0)), torch.tensor([[6.0, 8.0], [0.0, 10.0]]))


def test_every_image_may_have_its_own_texts() -> None:
    features, text = torch.tensor([[3.0, 4.0], [0.0, 0.1]]), torch.stack([torch.eye(2), torch.eye(2).flip(0)])
    torch.testing.assert_close(match_each(features, text, torch.tensor(10.0)), torch.tensor([[6.0, 8.0], [10.0, 0.0]]))


def test_a_stack_of_clients_shares_texts_or_has_its_own() -> None:
    draw = torch.Generator().manual_seed(0)
    features, text, scale = (
        torch.randn(3, 5, 4, generator=draw),
        torch.randn(3, 2, 4, generator=draw),
        torch.tensor(2.0),
    )
    shared, own = match(features, text[0], scale), match(features, text, scale)
    for client in range(3):
        torch.testing.assert_close(shared[client], match(features[client], text[0], scale))
        torch.testing.assert_close(own[client], match(features[client], text[client], scale))


def test_maps_start_within_one_over_the_root_of_their_inputs() -> None:
    made = init_map("adapter", (50, 16), torch.Generator().manual_seed(0))
    assert {name: value.shape for name, value in made.items()} == {"adapter.weight": (50, 16), "adapter.bias": (50,)}
    assert 0.9 / math.sqrt(16) < made["adapter.weight"].abs().max() <= 1 / math.sqrt(16)
