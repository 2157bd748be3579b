"""What is read off a backbone: exact maps of networks of a few weights."""

import pytest
import torch
from torch import Tensor

from promptfed.analysis.figures.inspection import class_attention, enlarged, grad_cam, look, pixel_saliency, share_on
from promptfed.backbones.cnn import ConvNet
from promptfed.backbones.vit import TinyViT
from promptfed.core.errors import PromptFedError
from promptfed.core.method import Task
from promptfed.core.tree import Tree
from promptfed.methods.fedavg import FedAvg
from promptfed.methods.fedvpt import FedVPT
from promptfed.methods.pfedpt import PFedPT
from support.toys import Linear, rng, task

# One 1×1 convolution that keeps the red channel, and a head on the four places.
CONV = ConvNet((3, 2, 2), 2, channels=(1,), kernel=1, hidden=(), pool_after=())
CONV_WEIGHTS: Tree = {
    "conv1.weight": torch.tensor([1.0, 0, 0]).view(1, 3, 1, 1),
    "conv1.bias": torch.zeros(1),
    "head.weight": torch.tensor([[-1.0, -1, -1, -1], [2, 0, 0, 2]]),
    "head.bias": torch.zeros(2),
}
RED = torch.zeros(1, 3, 2, 2)
RED[0, 0] = torch.tensor([[1.0, 2], [3, -1]])

# Two patches; with no query or key the attention is even.
VIT = TinyViT((3, 4, 8), 2, patch=4, width=4, depth=2, heads=2)


def vit_weights() -> Tree:
    found = VIT.init(rng())
    return found | {name: torch.zeros_like(value) for name, value in found.items() if ".qkv." in name}


def seen_by_conv(classes: list[int], x: Tensor = RED) -> Tensor:
    return grad_cam(look(FedAvg(), Task(CONV, ("a", "b"), 2), CONV_WEIGHTS, {"x": x}), torch.tensor(classes))


def test_grad_cam_weighs_maps_by_their_mean_slope() -> None:
    # the slopes of class 1 are 2, 0, 0, 2 with mean 1, so the map is the feature map itself, after ReLU
    assert seen_by_conv([1]).tolist() == [[[1, 2], [3, 0]]]
    assert seen_by_conv([0]).tolist() == [[[0, 0], [0, 0]]], "what speaks against a class is left out"


def test_grad_cam_takes_every_image_by_itself() -> None:
    both = seen_by_conv([1, 0], torch.cat([RED, RED]))
    assert both.tolist() == [[[1, 2], [3, 0]], [[0, 0], [0, 0]]]


def test_a_pixel_prompt_can_be_taken_away() -> None:
    method = PFedPT(prompt="patch", size=1)
    params = CONV_WEIGHTS | {"prompt.patch": torch.full((3, 1, 1), 5.0)}
    one = Task(CONV, ("a", "b"), 2)
    seen, bare = (look(method, one, params, {"x": RED}, bare=bare) for bare in (False, True))
    assert (seen.prompted, bare.prompted) == (True, False)
    assert seen.images[0, 0].tolist() == [[6, 2], [3, -1]]
    assert grad_cam(seen, torch.tensor([1])).tolist() == [[[6, 2], [3, 0]]]
    assert grad_cam(bare, torch.tensor([1])).tolist() == [[[1, 2], [3, 0]]]
    assert seen.logits.tolist() == [[-11, 12]]
    assert bare.logits.tolist() == [[-6, 2]]
    assert seen.features().tolist() == [[6, 2, 3, 0]]


def test_saliency_is_the_slope_at_every_pixel_of_what_the_backbone_saw() -> None:
    method = PFedPT(prompt="patch", size=1)
    params = CONV_WEIGHTS | {"prompt.patch": torch.full((3, 1, 1), 5.0)}
    one = Task(CONV, ("a", "b"), 2)
    seen = look(method, one, params, {"x": RED})
    # only red is seen, the last place is off, and class 1 has slopes 2, 0, 0, 2; class 0 has -1 everywhere
    assert pixel_saliency(seen, torch.tensor([1])).tolist() == [[[2, 0], [0, 0]]]
    seen = look(method, one, params, {"x": RED})
    assert pixel_saliency(seen, torch.tensor([0])).tolist() == [[[1, 1], [1, 0]]]


def test_a_method_without_a_prompt_has_none_to_take_away() -> None:
    assert not look(FedAvg(), Task(CONV, ("a", "b"), 2), CONV_WEIGHTS, {"x": RED}).prompted


def test_even_attention_is_shared_by_all_tokens() -> None:
    seen = look(FedAvg(), Task(VIT, ("a", "b"), 2), vit_weights(), {"x": torch.ones(3, 3, 4, 8)})
    patches, prompts = class_attention(seen)
    assert patches.shape == (3, 1, 2)
    assert torch.allclose(patches, torch.tensor(1 / 3))
    assert prompts.tolist() == [0, 0, 0]


def test_prompt_tokens_take_their_share_and_can_be_taken_away() -> None:
    method = FedVPT(tokens=2)
    params = vit_weights() | method.init_server(Task(VIT, ("a", "b"), 2), rng())
    batch = {"x": torch.ones(1, 3, 4, 8)}
    seen, bare = (look(method, Task(VIT, ("a", "b"), 2), params, batch, bare=bare) for bare in (False, True))
    patches, prompts = class_attention(seen)
    assert patches.flatten().tolist() == pytest.approx([0.2, 0.2])
    assert prompts.tolist() == pytest.approx([0.4])
    assert (seen.prompted, bare.prompted) == (True, False)
    assert class_attention(bare)[0].flatten().tolist() == pytest.approx([1 / 3, 1 / 3])


def test_attention_follows_the_class_token_alone() -> None:
    weights = vit_weights()
    last = weights["block1.qkv.weight"].clone()
    last[:8] = torch.eye(4).repeat(2, 1) * 30  # queries and keys are the tokens themselves
    weights |= {"block1.qkv.weight": last}
    seen = look(FedAvg(), Task(VIT, ("a", "b"), 2), weights, {"x": torch.randn(2, 3, 4, 8)})
    assert seen.attention is not None
    patches, _ = class_attention(seen)
    assert torch.equal(patches[:, 0], seen.attention[:, :, 0, 1:].mean(1))


def test_a_network_of_the_other_kind_is_refused() -> None:
    conv = look(FedAvg(), Task(CONV, ("a", "b"), 2), CONV_WEIGHTS, {"x": RED})
    with pytest.raises(PromptFedError, match="Attention needs a vision transformer"):
        class_attention(conv)
    vit = look(FedAvg(), Task(VIT, ("a", "b"), 2), vit_weights(), {"x": torch.ones(1, 3, 4, 8)})
    with pytest.raises(PromptFedError, match="Grad-CAM needs a convolutional network"):
        grad_cam(vit, torch.tensor([0]))
    linear = look(FedAvg(), task(Linear()), Linear().init(rng()), {"x": RED})
    with pytest.raises(PromptFedError, match="Grad-CAM needs"):
        grad_cam(linear, torch.tensor([0]))


def test_enlarged_maps_end_at_one() -> None:
    maps = enlarged(torch.tensor([[[0.0, 4.0]], [[0.0, 0.0]]]), 2, 4)
    assert maps[0].tolist() == [[0, 0.25, 0.75, 1]] * 2
    assert maps[1].tolist() == [[0, 0, 0, 0]] * 2


def test_the_share_on_a_mask() -> None:
    maps = torch.tensor([[[1.0, 3.0]], [[0.0, 0.0]]])
    assert share_on(maps, torch.tensor([[[0.0, 1.0]]])).tolist() == [0.75, 0]
