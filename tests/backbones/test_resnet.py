"""ResNets: equal to transformers' ResNetModel from every layout, alone and stacked; bad files give a sentence."""

import json
import math
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from transformers import ResNetConfig, ResNetModel

from promptfed.backbones import residual, resnet_checkpoint
from promptfed.backbones.residual import FIFTY, ResNetArch
from promptfed.backbones.resizing import resized
from promptfed.backbones.resnet import LoadedResNet, ResNet
from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.tree import Tree
from support.toys import rng

SHAPE = (3, 40, 36)
BOTTLENECK = ResNetArch(8, (16, 24), (2, 2))
BASIC = ResNetArch(8, (8, 12), (1, 2), bottleneck=False)
CPU = torch.device("cpu")


def model(arch: ResNetArch) -> Any:
    """Return transformers' network of that form, with no two weights alike."""
    config = ResNetConfig(
        embedding_size=arch.stem,
        hidden_sizes=list(arch.widths),
        depths=list(arch.depths),
        layer_type="bottleneck" if arch.bottleneck else "basic",
    )
    made = ResNetModel(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, value in made.state_dict().items():
            if value.is_floating_point():
                noise = 0.2 * torch.randn(value.shape, generator=generator)
                value.add_(noise.abs() if name.endswith("running_var") else noise)
    return made.eval()


def images(count: int = 3, shape: tuple[int, int, int] = SHAPE) -> Tensor:
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(1))


def vision_name(name: str) -> str:
    """Return torchvision's name for one of transformers'."""
    kind = name.rpartition(".")[2]
    if name.startswith("embedder"):
        return f"{'conv1' if '.convolution.' in name else 'bn1'}.{kind}"
    _, _, stage, _, block, *rest = name.split(".")
    if rest[0] == "shortcut":
        part = f"downsample.{0 if rest[1] == 'convolution' else 1}"
    else:
        part = f"{'conv' if rest[2] == 'convolution' else 'bn'}{int(rest[1]) + 1}"
    return f"layer{int(stage) + 1}.{block}.{part}.{kind}"


def as_torchvision(one: Any) -> Tree:
    """Return the network's state under torchvision's names, a classifier included."""
    state = {vision_name(name): value.clone() for name, value in one.state_dict().items()}
    return state | {"fc.weight": torch.zeros(5, 3), "fc.bias": torch.zeros(5)}


# -- the same function ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", [BOTTLENECK, BASIC], ids=["bottleneck", "basic"])
@pytest.mark.parametrize("shape", [SHAPE, (3, 33, 47)], ids=["even", "odd"])
def test_features_are_those_of_transformers(arch: ResNetArch, shape: tuple[int, int, int], tmp_path: Path) -> None:
    theirs = model(arch)
    theirs.save_pretrained(tmp_path)
    net = ResNet(shape, 5, str(tmp_path)).to(CPU)
    x = images(shape=shape)
    with torch.no_grad():
        expected = theirs(x).pooler_output.flatten(1)
    torch.testing.assert_close(net.features({}, x), expected, atol=1e-5, rtol=1e-5)


def test_the_fifty_layers_of_microsoft_s_resnet() -> None:
    theirs = ResNetModel(ResNetConfig()).eval()
    state = {resnet_checkpoint._our_name(name, Path()): value for name, value in theirs.state_dict().items()}
    del state[""]  # counts of batches
    net = ResNet((3, 64, 64), 5, precision="fp32").loaded(FIFTY, state, CPU)
    x = images(2, (3, 64, 64))
    with torch.no_grad():
        torch.testing.assert_close(net.features({}, x), theirs(x).pooler_output.flatten(1), atol=1e-5, rtol=1e-5)


def test_resnet_full_sends_the_paper_s_number() -> None:
    trunk = sum(math.prod(shape) for name, shape in residual.shapes(FIFTY).items() if residual.trained(name))
    assert trunk + 2048 * 345 + 345 == 24_214_937


@pytest.mark.parametrize("kind", ["torchvision.pth", "torchvision.safetensors", "classifier", "pickled"])
def test_every_layout_gives_the_same_weights(kind: str, tmp_path: Path) -> None:
    theirs, hub = model(BOTTLENECK), tmp_path / "hub"
    theirs.save_pretrained(hub)
    expected = resnet_checkpoint.read_weights(str(hub))
    if kind == "torchvision.pth":
        torch.save(as_torchvision(theirs), place := tmp_path / "resnet.pth")
    elif kind == "torchvision.safetensors":
        save_file(as_torchvision(theirs), place := tmp_path / "resnet.safetensors")
    else:
        place = hub
        state = {f"resnet.{name}": value for name, value in load_file(hub / "model.safetensors").items()}
        state["classifier.1.weight"] = torch.zeros(5, 24)
        (hub / "model.safetensors").unlink()
        if kind == "classifier":
            save_file(state, hub / "model.safetensors")
        else:
            torch.save(state, hub / "pytorch_model.bin")
        resnet_checkpoint.read_arch.cache_clear()
    found = resnet_checkpoint.read_weights(str(place))
    assert found.keys() == expected.keys() == residual.shapes(BOTTLENECK).keys()
    assert all(value.equal(expected[name]) for name, value in found.items())
    arch = resnet_checkpoint.read_arch(str(place))
    assert (arch.widths, arch.depths, arch.bottleneck) == ((16, 24), (2, 2), True)
    assert arch.statistics == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def test_a_file_of_basic_blocks_shows_its_form(tmp_path: Path) -> None:
    torch.save(as_torchvision(model(BASIC)), tmp_path / "resnet18.pth")
    arch = resnet_checkpoint.read_arch(str(tmp_path / "resnet18.pth"))
    assert (arch.stem, arch.widths, arch.depths, arch.bottleneck) == (8, (8, 12), (1, 2), False)


# -- trained ----------------------------------------------------------------------------------------------------------


def small(precision: Any = "fp32") -> LoadedResNet:
    return ResNet.random(SHAPE, 3, BOTTLENECK, seed=3, precision=precision)


def test_training_starts_from_the_pretrained_weights_without_statistics() -> None:
    net = small()
    start = net.init(rng())
    assert start.keys() == {name for name in net.pretrained if residual.trained(name)} | {"head.weight", "head.bias"}
    assert start["head.weight"].shape == (3, 24)
    torch.testing.assert_close(net.features(start, images()), net.features({}, images()))


def test_a_stack_of_clients_is_each_by_itself() -> None:
    net = small()
    generator = torch.Generator().manual_seed(4)
    start = net.init(rng())
    each = [{n: v + 0.1 * torch.randn(v.shape, generator=generator) for n, v in start.items()} for _ in range(2)]
    x = torch.stack([images(), images().flip(0) + 1])
    expected = torch.stack([net(own, one) for own, one in zip(each, x, strict=True)])
    torch.testing.assert_close(net(tree.stack(each), x), expected, atol=1e-5, rtol=1e-5)


def test_an_image_s_features_do_not_depend_on_its_batch() -> None:
    net = small()
    start = net.init(rng())
    torch.testing.assert_close(net.features(start, images())[:1], net.features(start, images()[:1]))


def test_every_trained_weight_has_a_gradient_and_no_frozen_one() -> None:
    net = small()
    start = {name: value.clone().requires_grad_() for name, value in net.init(rng()).items()}
    grads = torch.autograd.grad(net(start, images()).square().sum(), list(start.values()))
    assert all(grad.abs().sum() > 0 for grad in grads)
    assert not any(value.requires_grad for value in net.frozen.values())


def test_norms_stay_in_float32_in_low_precision() -> None:
    net = small("bf16")
    assert net.frozen["stem.weight"].dtype == torch.bfloat16
    assert net.frozen["stem.norm.var"].dtype == torch.float32
    found = net.features({}, images())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, small().features({}, images()), atol=0.05, rtol=0.05)


def test_images_are_resized() -> None:
    net = ResNet.random(SHAPE, 3, BASIC, size=64, precision="fp32")
    same = replace(net, size=0, shape=(3, 64, 64))
    assert net.features({}, images()).equal(same.features({}, resized(images(), (64, 64))))
    assert net.fingerprint != ResNet.random(SHAPE, 3, BASIC, precision="fp32").fingerprint


def test_there_are_no_tokens() -> None:
    net = small()
    for ask in (lambda: net.token_width, lambda: net.layers, lambda: net.features({}, images(), tokens=images())):
        with pytest.raises(PromptFedError, match="takes no prompt tokens"):
            ask()


# -- bad input --------------------------------------------------------------------------------------------------------


def write(folder: Path, **changes: object) -> str:
    model(BASIC).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return str(folder)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model_type": "vit"}, "has model_type=vit; only model_type=resnet is supported."),
        ({"downsample_in_bottleneck": True}, "only downsample_in_bottleneck=False is supported."),
        ({"depths": [1, 2, 3]}, "has 2 hidden_sizes, but 3 depths."),
        ({"depths": 3}, "has depths=3; it must be a list of whole numbers."),
        ({"hidden_sizes": [8, 0]}, "has hidden_sizes=0; it must be a whole number of at least 1."),
        (
            {"hidden_sizes": [8, 16]},
            'the weight for "stage1.block0.unit0.weight" is 12×8×3×3; its architecture needs 16',
        ),
    ],
)
def test_a_configuration_that_does_not_fit(changes: dict[str, object], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(PromptFedError, match=re.escape(sentence)):
        ResNet(SHAPE, 5, write(tmp_path, **changes)).to(CPU)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "there is no such file."),
        (b"torn", "is not a complete PyTorch file"),
        ([1], "does not hold weights by name; save the network's state_dict()."),
        ({"a.weight": torch.zeros(1)}, "has neither torchvision's names of a ResNet nor the hub's."),
    ],
)
def test_a_file_that_is_none(content: Any, sentence: str, tmp_path: Path) -> None:
    place = tmp_path / "resnet.pth"
    if isinstance(content, bytes):
        place.write_bytes(content)
    elif content is not None:
        torch.save(content, place)
    with pytest.raises(PromptFedError, match=re.escape(sentence)):
        ResNet(SHAPE, 5, str(place)).to(CPU)


def test_a_file_without_its_last_unit(tmp_path: Path) -> None:
    state = as_torchvision(model(BASIC))
    del state["layer1.0.conv2.weight"]
    torch.save(state, tmp_path / "resnet.pth")
    with pytest.raises(PromptFedError, match=re.escape('it has no weight for "stage0.block0.unit1.weight"')):
        ResNet(SHAPE, 5, str(tmp_path / "resnet.pth")).to(CPU)


def test_none_is_embedded() -> None:
    with pytest.raises(PromptFedError, match="No ResNet is embedded"):
        ResNet(SHAPE, 5, "embedded").to(CPU)
