"""ResNet-tuning: ViT-tuning on the features of a ResNet."""

from promptfed.core import options
from promptfed.methods.resnet_tuning import ResNetTuning
from promptfed.methods.vit_tuning import ViTTuning


def test_it_is_vit_tuning_with_another_backbone() -> None:
    assert (ResNetTuning.name, ResNetTuning.backbone, ResNetTuning().traits.reads) == (
        "resnet-tuning",
        "resnet",
        "features",
    )
    assert options.defaults(ResNetTuning) == options.defaults(ViTTuning)
    assert ResNetTuning.presets == ViTTuning.presets
