"""The last row of FedAPT's Table 1 and the sizes in its text: what each method sends in a round, from shapes alone."""

import pytest
import torch

from promptfed.core import tree
from promptfed.core.method import Method, Task
from promptfed.methods.clip_fc import CLIPFC
from promptfed.methods.clip_zs import CLIPZS
from promptfed.methods.fedapt import FedAPT
from promptfed.methods.fedclip import FedCLIP
from promptfed.methods.promptfl import PromptFL
from promptfed.methods.resnet_tuning import ResNetTuning
from promptfed.methods.vit_tuning import ViTTuning
from support.toys import TinyDual, featured, rng

CLASSES = 345  # of DomainNet


def domainnet(width: int) -> Task:
    """Return a task as large as DomainNet on features of `width` numbers."""
    return Task(TinyDual(CLASSES, width), tuple(f"class {number}" for number in range(CLASSES)), 6)


@pytest.mark.parametrize(
    ("method", "width", "expected"),
    [
        (PromptFL(), 512, 345 * 16 * 512),
        (FedAPT(domains=6), 512, 345 * 16 * 512 + 6 * 512),
        (PromptFL(csc=False), 512, 16 * 512),
        (FedAPT(mode="unsupervised", domains=6), 512, 16 * 512 + 6 * 512),
        (CLIPFC(), 512, 512 * 512 + 512),
        (FedCLIP(), 512, 2 * (512 * 512 + 512)),
        (CLIPZS(), 512, 0),
        (ViTTuning(), 512, 345 * 512 + 345),
        (ResNetTuning(), 2048, 345 * 2048 + 345),
    ],
    ids=[
        "promptfl",
        "fedapt",
        "promptfl-u",
        "fedapt-u",
        "clip-fc",
        "fedclip",
        "clip-zs",
        "vit-tuning",
        "resnet-tuning",
    ],
)
def test_numbers_each_way(method: Method, width: int, expected: int) -> None:
    where, views = domainnet(width), torch.zeros(1, 1, width)
    data = featured(torch.zeros(1, width), [CLASSES - 1], [1], views=views, draws=method.draws(where))
    own = data.data([0], 0, stacked=False)
    down = tree.row(method.download(where, method.init_server(where, rng()), torch.zeros(1, dtype=torch.long)), 0)
    up, _ = method.fit(where, down, method.init_client(where, own, rng(0)), own)
    assert tree.floats(up) == tree.floats(tree.drop(down, method.traits.once)) == expected


def test_they_are_the_paper_s_millions() -> None:
    assert [345 * 16 * 512, 345 * 16 * 512 + 6 * 512, 16 * 512, 16 * 512 + 6 * 512] == [2826240, 2829312, 8192, 11264]
    assert [512 * 512 + 512, 2 * (512 * 512 + 512), 345 * 2048 + 345] == [262656, 525312, 706905]
