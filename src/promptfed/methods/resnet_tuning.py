"""ResNet-tuning: a linear classifier on the features of a frozen ResNet, averaged; a baseline of FedAPT.

ViT-tuning with another backbone, pretrained on ImageNet's classes.
Symbol -> name: H -> head.*.
"""

from dataclasses import dataclass
from typing import ClassVar

from promptfed.methods.vit_tuning import ViTTuning


@dataclass(frozen=True)
class ResNetTuning(ViTTuning):
    """Average a linear head on the features of a frozen ResNet."""

    name: ClassVar[str] = "resnet-tuning"
    backbone: ClassVar[str] = "resnet"
