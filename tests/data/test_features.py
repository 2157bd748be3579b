"""Features of a frozen backbone: computed once, kept, and computed anew when anything they depend on changes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from promptfed.backbones.cached import Cached
from promptfed.backbones.pretrained import LoadedViT, ViT
from promptfed.core.protocols import Tokens
from promptfed.core.tree import Tree
from promptfed.data.batches import Pool
from promptfed.data.features import features_of, views_of
from support.toys import dataset

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMPTFED_HOME", str(tmp_path))


def network(seed: int = 0) -> LoadedViT:
    return ViT.random((3, 8, 8), 2, width=8, depth=1, heads=2, patch=4, seed=seed)


IMAGES = dataset([0, 40, 80, 120, 255], [0, 1, 0, 1, 0], side=8)


def test_they_are_what_the_backbone_says() -> None:
    net, pool = network(), Pool(IMAGES, CPU)
    expected = net.features({}, pool.images(torch.arange(5)))
    torch.testing.assert_close(features_of(IMAGES, net, CPU), expected, rtol=1e-5, atol=1e-6)


def test_they_are_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = features_of(IMAGES, network(), CPU)

    def never(
        self: LoadedViT, weights: Tree, x: Tensor, *, tokens: Tokens | None = None, noise: Tree | None = None
    ) -> Tensor:
        raise AssertionError("computed again")

    monkeypatch.setattr(LoadedViT, "features", never)
    assert features_of(IMAGES, network(), CPU).equal(first)
    assert len(list((tmp_path / "features").iterdir())) == 1


def test_other_weights_images_or_statistics_are_another_matter(tmp_path: Path) -> None:
    lighter = replace(IMAGES, images=IMAGES.images + np.uint8(0))
    lighter.images[0, 0, 0, 0] = 7
    for images, net in ((IMAGES, network()), (IMAGES, network(1)), (lighter, network())):
        features_of(images, net, CPU)
    features_of(replace(IMAGES, mean=(0.1, 0.1, 0.1)), network(), CPU)
    assert len(list((tmp_path / "features").iterdir())) == 4


def test_a_damaged_file_is_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = features_of(IMAGES, network(), CPU)
    (kept,) = (tmp_path / "features").iterdir()
    for torn in (b"torn", b""):
        kept.write_bytes(torn)
        caplog.clear()
        assert features_of(IMAGES, network(), CPU).equal(first)
        assert "damaged" in caplog.text


def test_views_are_several_and_the_same_every_time() -> None:
    rng = np.random.default_rng(0)
    colourful = replace(IMAGES, images=rng.integers(0, 256, IMAGES.images.shape, np.uint8))
    views = views_of(colourful, network(), CPU, 2)
    assert views.shape == (5, 2, 8)
    assert not views[:, 0].equal(views[:, 1])
    assert views.equal(views_of(colourful, network(), CPU, 2))


def test_a_pool_of_features_hands_them_out_with_its_extras() -> None:
    values = torch.arange(10.0).view(5, 2)
    pool = Pool(IMAGES, CPU, values, {"views": values.unsqueeze(1)})
    assert pool.images(torch.tensor([[3, 0]])).tolist() == [[[6.0, 7.0], [0.0, 1.0]]]


def test_a_cached_backbone_returns_what_it_is_given() -> None:
    net = network()
    cached, x = Cached(net), torch.tensor([[1.0] * 8])
    head = {"head.weight": torch.ones(2, 8), "head.bias": torch.tensor([0.0, 1.0])}
    assert cached.features({}, x) is x
    assert cached(head, x).tolist() == [[8.0, 9.0]]
    assert cached.token_width == net.token_width
    assert cached.fingerprint == net.fingerprint


@pytest.mark.parametrize("kind", ["features", "views"])
def test_computing_them_goes_on_where_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def made() -> Tensor:
        return features_of(IMAGES, network(), CPU) if kind == "features" else views_of(IMAGES, network(), CPU, 1)

    monkeypatch.setattr("promptfed.data.features.BATCH", 1)
    monkeypatch.setattr("promptfed.data.features.NOTED", 2)
    straight = made()
    for path in (tmp_path / "features").iterdir():
        path.unlink()
    plain = LoadedViT.features
    calls: list[int] = []

    def counted(
        self: LoadedViT, weights: Tree, x: Tensor, *, tokens: Tokens | None = None, noise: Tree | None = None
    ) -> Tensor:
        calls.append(len(calls))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return plain(self, weights, x, tokens=tokens, noise=noise)

    monkeypatch.setattr(LoadedViT, "features", counted)
    with pytest.raises(KeyboardInterrupt):
        made()
    assert made().equal(straight)
    assert len(calls) == 4 + 1 + 3  # the first again, and what came after the first two
    assert [path.suffix for path in (tmp_path / "features").iterdir()] == [".npy"]


def test_large_ones_are_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    small = features_of(IMAGES, network(), CPU)
    monkeypatch.setattr("promptfed.data.features.MAPPED_BYTES", 0)
    opened: list[object] = []
    load = np.load

    def noted(path: Path, *, mmap_mode: Any) -> Any:
        opened.append(mmap_mode)
        return load(path, mmap_mode=mmap_mode)

    monkeypatch.setattr(np, "load", noted)
    assert features_of(IMAGES, network(), CPU).equal(small)
    assert opened == ["c"]
