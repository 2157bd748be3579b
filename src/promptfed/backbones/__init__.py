"""Networks with prompts and, if trained, weights as arguments; found by name."""

from promptfed.backbones.cnn import CNN, PaperCNN, PflCNN
from promptfed.backbones.pretrained import ViT
from promptfed.backbones.vit import TinyViT

BACKBONES: dict[str, type[CNN] | type[PaperCNN] | type[PflCNN] | type[TinyViT] | type[ViT]] = {
    backbone.name: backbone for backbone in (CNN, PaperCNN, PflCNN, TinyViT, ViT)
}

__all__ = ["BACKBONES"]
