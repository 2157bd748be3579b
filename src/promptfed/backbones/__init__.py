"""Networks whose prompts and trained weights are arguments."""

from promptfed.backbones.clip import CLIP
from promptfed.backbones.cnn import CNN, PaperCNN, PflCNN
from promptfed.backbones.diffusion import Diffusion
from promptfed.backbones.pretrained import ViT
from promptfed.backbones.resnet import ResNet
from promptfed.backbones.vit import TinyViT

BackboneType = (
    type[CNN] | type[PaperCNN] | type[PflCNN] | type[TinyViT] | type[ViT] | type[ResNet] | type[CLIP] | type[Diffusion]
)

BACKBONES: dict[str, BackboneType] = {
    backbone.name: backbone for backbone in (CNN, PaperCNN, PflCNN, TinyViT, ViT, ResNet, CLIP, Diffusion)
}

__all__ = ["BACKBONES"]
