"""Zero-shot CLIP learns nothing, sends nothing, and answers."""

import torch

from promptfed.methods.clip_zs import CLIPZS
from support.toys import TinyDual, featured, rng, task

TASK = task(TinyDual(sharpness=10.0))
METHOD = CLIPZS()


def test_answers_are_scaled_cosines_with_class_names() -> None:
    found = METHOD.predict(TASK, {}, {"x": torch.tensor([[3.0, 4.0]])})
    torch.testing.assert_close(found, torch.tensor([[6.0, 8.0]]))


def test_nothing_is_learned_and_nothing_travels() -> None:
    data = featured(torch.eye(2), [0, 1], [2]).data([0], 0, stacked=False)
    server = METHOD.init_server(TASK, rng())
    assert server == METHOD.download(TASK, server, torch.arange(2)) == METHOD.init_client(TASK, data, rng(0)) == {}
    assert METHOD.fit(TASK, {}, {}, data) == ({}, {})
    assert METHOD.aggregate(TASK, server, torch.arange(2), {}, torch.ones(2)) == {}
    assert not METHOD.traits.learns


def test_the_server_has_a_model_to_test() -> None:
    torch.testing.assert_close(METHOD.deploy(TASK, {}), {"text": torch.eye(2)})
