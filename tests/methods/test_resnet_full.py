"""ResNet-full: ViT-full on a ResNet; all but the statistics of its batch norms is trained and sent."""

import torch

from promptfed.backbones.residual import ResNetArch, trained
from promptfed.backbones.resnet import ResNet
from promptfed.core import options, tree
from promptfed.core.method import Task
from promptfed.methods.resnet_full import ResNetFull
from promptfed.methods.vit_full import ViTFull
from support.toys import BLACK, WHITE, dataset, rng, shards


def test_it_is_vit_full_with_another_backbone() -> None:
    assert (ResNetFull.name, ResNetFull.backbone, ResNetFull().traits.reads) == ("resnet-full", "resnet", "pixels")
    assert options.defaults(ResNetFull) == options.defaults(ViTFull)
    assert ResNetFull.presets == ViTFull.presets


def test_everything_but_statistics_moves_and_travels() -> None:
    net = ResNet.random((3, 2, 2), 2, ResNetArch(4, (4,), (1,), bottleneck=False), precision="fp32")
    task, method = Task(net, ("black", "white"), 2), ResNetFull(lr=0.1, batch=2)
    server = method.init_server(task, rng())
    down = method.download(task, server, torch.arange(2))
    own = shards(dataset([WHITE, BLACK, WHITE, BLACK], [1, 0, 1, 0]), [2, 2])
    up, personal = method.fit(task, down, {}, own.data([0, 1], 0, stacked=True))
    assert personal == {}
    assert up.keys() == {name for name in net.pretrained if trained(name)} | {"head.weight", "head.bias"}
    assert tree.floats(up) == 2 * tree.floats(server)
    assert not up["stem.norm.weight"].equal(down["stem.norm.weight"])
    assert not up["stem.weight"].equal(down["stem.weight"])
