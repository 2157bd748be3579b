"""Features by name: the embedded encoder's, an Inception network's from a file or of torchmetrics, and mistakes."""

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from promptfed.analysis.picture_features import find_features
from promptfed.backbones.clip_checkpoint import EMBEDDED
from promptfed.core.errors import PromptFedError
from promptfed.data.shops import CLASSES, load_shops

CPU = torch.device("cpu")


def test_the_embedded_dual_encoder_knows_clothes() -> None:
    shops = load_shops()
    rows = np.flatnonzero(shops.test & (shops.domains == 0) & np.isin(shops.labels, (1, 8)))[::10]
    found = find_features("clip", CLASSES, CPU)
    features = found(torch.from_numpy(shops.images[rows]).movedim(-1, -3) / 127.5 - 1)
    texts = found.texts()
    assert texts is not None
    assert found.name == "clip embedded"
    said = (torch.nn.functional.normalize(features, dim=-1) @ texts.mT)[:, [1, 8]].argmax(1)
    assert (said == torch.from_numpy(shops.labels[rows] == 8)).float().mean() > 0.9


def test_a_folder_of_weights_is_called_by_its_name(tmp_path: Path) -> None:
    shutil.copytree(EMBEDDED, tmp_path / "mine")
    assert find_features(f"clip:{tmp_path / 'mine'}", CLASSES, CPU).name == "clip mine"


class Doubles(torch.nn.Module):
    def forward(self, x: Tensor, return_features: bool = False) -> Tensor:
        means = x.float().mean((2, 3))
        return means * 2 if return_features else means


class Sums(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.float().sum((2, 3))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("network", "expected"), [(Doubles(), [510.0, 0, 0]), (Sums(), [1020.0, 0, 0])])
def test_torchscript_sees_bytes_and_returns_features(
    network: torch.nn.Module, expected: list[float], tmp_path: Path
) -> None:
    path = tmp_path / "inception.pt"
    torch.jit.save(torch.jit.script(network), path)
    found = find_features(f"inception:{path}", ("a",), CPU)
    red = torch.tensor([1.0, -1, -1]).view(1, 3, 1, 1).expand(2, 3, 2, 2)
    assert found(red).tolist() == [expected, expected]
    assert (found.name, found.texts()) == ("inception inception.pt", None)


def test_torchmetrics_own_network_is_used_if_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def network(*words: Any) -> torch.nn.Module:
        asked.append(words)
        return Sums()

    monkeypatch.setitem(sys.modules, "torchmetrics.image.fid", SimpleNamespace(NoTrainInceptionV3=network))
    found = find_features("torchmetrics", ("a",), CPU)
    assert asked == [("inception-v3-compat", ["2048"])]
    assert found(torch.ones(1, 3, 1, 1)).tolist() == [[255, 255, 255]]


def test_bad_features_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.pt").write_text("no network")
    monkeypatch.setitem(sys.modules, "torchmetrics.image.fid", None)
    for name, sentence in (
        ("clop", 'Unknown features "clop"; did you mean "clip"?'),
        ("inception", "Unknown features"),
        (f"inception:{tmp_path / 'none.pt'}", "There is no file"),
        (f"inception:{tmp_path / 'text.pt'}", "is not a TorchScript network"),
        ("torchmetrics", "needs: pip install torchmetrics"),
    ):
        with pytest.raises(PromptFedError, match=sentence.replace("?", r"\?")):
            find_features(name, ("a",), CPU)
