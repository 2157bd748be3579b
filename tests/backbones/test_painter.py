"""The painter draws the picture that a pseudo-word is."""

import pytest
import torch

from promptfed.backbones.painter import Painter
from promptfed.core.errors import PromptFedError

PAINTER = Painter((3, 4, 4), 2)


def test_a_row_is_quarters_mirrored_quarters_and_means() -> None:
    image = torch.zeros(1, 3, 4, 4)
    image[0, 0, :2, :2] = 1.0  # red, upper left
    latents, visual = PAINTER.unpack(PAINTER.features({}, image))
    assert latents[0, 0, 0].tolist() == [[1, 0], [0, 0]]
    assert latents[0, 1, 0].tolist() == [[0, 1], [0, 0]]
    assert visual.tolist() == [[0.25, 0, 0]]


def test_noise_is_found_where_the_picture_is_right() -> None:
    words = torch.full((2, 3, 1, 12), 0.3)
    chosen = torch.tensor([[0, 1, 2], [3, 4, 5]])
    states, own = PAINTER.encode(["{}"] * 6, chosen, words)
    torch.testing.assert_close(own[..., 0], 0.3 + 0.1 * chosen)
    noise, time = torch.randn(2, 3, 3, 2, 2), torch.tensor([[0, 1, 2], [3, 0, 1]])
    noisy, wanted = PAINTER.noised(own.unflatten(-1, (3, 2, 2)), noise, time)
    assert wanted is noise
    torch.testing.assert_close(PAINTER.denoise(noisy, time, states), noise, rtol=1e-4, atol=1e-5)


def test_drawings_are_the_pictures() -> None:
    states, _ = PAINTER.encode(["{}"], torch.zeros(2, dtype=torch.long), torch.full((2, 1, 12), 0.5))
    assert PAINTER.sample(states, torch.zeros(2, 3, 2, 2)).equal(torch.full((2, 3, 4, 4), 0.5))


def test_it_classifies_nothing() -> None:
    for use in (lambda: PAINTER({}, torch.zeros(1)), lambda: PAINTER.token_width, lambda: PAINTER.layers):
        with pytest.raises(PromptFedError, match="does not classify"):
            use()
    assert PAINTER.draws() == {}
    assert PAINTER.to(torch.device("cpu")) == PAINTER
