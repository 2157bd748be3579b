"""ResNet-full: a whole ResNet and a linear classifier, averaged; a baseline of FedAPT.

ViT-full with another backbone, pretrained on ImageNet's classes. Its batch norms keep their pretrained statistics,
which are not sent: so the paper counts, 24,214,937 numbers for ResNet-50 and 345 classes.
Symbol -> name: H -> head.*, the network's weights under their own names.
"""

from dataclasses import dataclass
from typing import ClassVar

from promptfed.methods.vit_full import ViTFull


@dataclass(frozen=True)
class ResNetFull(ViTFull):
    """Average a whole pretrained ResNet and its head, every client counting once."""

    name: ClassVar[str] = "resnet-full"
    backbone: ClassVar[str] = "resnet"
