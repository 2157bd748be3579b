"""Features of pictures, by which they are compared: a dual encoder's, or an Inception network's."""

import importlib
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from promptfed.backbones.clip import CLIP, LoadedCLIP
from promptfed.core.errors import PromptFedError, choice

FEATURES = ("clip", "clip:WEIGHTS", "inception:FILE", "torchmetrics")
AT_ONCE = 64  # pictures whose features are computed together


class Features(Protocol):
    """What turns pictures into features; its name stands beside every number."""

    @property
    def name(self) -> str:
        """Return what a reader needs to compare numbers."""
        ...

    def __call__(self, pictures: Tensor) -> Tensor:
        """Return the features [N, D] of pictures [N, 3, H, W] in −1 … 1, on the host."""
        ...

    def texts(self) -> Tensor | None:
        """Return the unit features [classes, D] of "a photo of a {class}.", if it reads texts."""
        ...


@dataclass(frozen=True, eq=False)
class DualFeatures:
    """The features of a dual encoder, of images and of texts."""

    name: str
    encoder: LoadedCLIP
    device: torch.device

    def __call__(self, pictures: Tensor) -> Tensor:
        """Return the image tower's features."""
        statistics = self.encoder.statistics or ((0.5,) * 3, (0.5,) * 3)
        mean, std = (torch.tensor(part, device=self.device).view(3, 1, 1) for part in statistics)
        with torch.no_grad():
            parts = [
                self.encoder.features({}, ((some.to(self.device) + 1) / 2 - mean) / std).cpu()
                for some in pictures.split(AT_ONCE)
            ]
        return torch.cat(parts)

    def texts(self) -> Tensor | None:
        """Return the text tower's features of the classes."""
        return self.encoder.zero_shot.cpu()


@dataclass(frozen=True, eq=False)
class ByteFeatures:
    """The features of a network that takes pictures as bytes, as the usual Inception networks do."""

    name: str
    network: Any
    device: torch.device

    def __call__(self, pictures: Tensor) -> Tensor:
        """Return what the network makes of the pictures' bytes."""
        whole = ((pictures.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
        with torch.no_grad():
            found = [self.network(some.to(self.device)).float().cpu() for some in whole.split(AT_ONCE)]
        return torch.cat(found)

    def texts(self) -> Tensor | None:
        """Return nothing: it reads no texts."""
        return None


def find_features(name: str, classes: tuple[str, ...], device: torch.device) -> Features:
    """Return the features called "clip", "clip:WEIGHTS", "inception:FILE" or "torchmetrics"."""
    kind, _, where = name.partition(":")
    if kind == "clip":
        return _dual(where or "embedded", classes, device)
    if kind == "inception" and where:
        return ByteFeatures(f"inception {Path(where).name}", _script(Path(where), device), device)
    if name == "torchmetrics":
        return ByteFeatures("inception of torchmetrics", _torchmetrics(device), device)
    raise choice("features", name, FEATURES)


def _dual(weights: str, classes: tuple[str, ...], device: torch.device) -> DualFeatures:
    try:
        bare = CLIP((3, 1, 1), len(classes), classes, weights)
    except PromptFedError as error:
        raise PromptFedError(f"--features clip:{weights} cannot be loaded: {error}") from error
    image = bare.arch.image
    side = image.patch * image.grid[0]  # pictures are resized to what the encoder was trained on
    encoder = replace(bare, size=side, precision="fp32").to(device)
    shown = Path(weights).name if Path(weights).is_dir() else weights  # a path would tell about the machine
    return DualFeatures(f"clip {shown}", encoder, device)


def _script(path: Path, device: torch.device) -> Any:
    """Return the TorchScript network in a file; one that can return features instead of classes is asked to."""
    if not path.is_file():
        raise PromptFedError(f"There is no file {path} for --features inception:FILE.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # newer versions of torch announce the end of TorchScript
            network = torch.jit.load(str(path), map_location=device).eval()
    except RuntimeError as error:
        raise PromptFedError(f"{path} is not a TorchScript network.") from error
    if any(argument.name == "return_features" for argument in network.forward.schema.arguments):
        return lambda x: network(x, return_features=True)
    return network


def _torchmetrics(device: torch.device) -> Any:
    try:
        found = importlib.import_module("torchmetrics.image.fid")  # not at the top: few have it
        return found.NoTrainInceptionV3("inception-v3-compat", ["2048"]).to(device).eval()
    except ImportError as error:
        raise PromptFedError(
            '--features torchmetrics needs: pip install torchmetrics torch-fidelity; or give "inception:FILE".'
        ) from error
    except OSError as error:
        raise PromptFedError(f"torchmetrics cannot fetch its Inception network: {error}.") from error
