"""What a dual encoder is taught: features kept small, classes made round, and looks carried over between texts."""

import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from PIL import Image

from support.scripts import ROOT, load_script

HALF = float(np.log(2))  # the kernel of two unlike texts is a half under this width


@pytest.fixture
def features(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "tools")
    return load_script("tools/lit_features.py")


@pytest.fixture
def targets(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "tools")
    return load_script("tools/lit_targets.py")


def put(file: Path, grey: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (8, 8), grey).save(file)


def test_albums_are_folders_of_classes_split_or_not_or_captioned_images(features: ModuleType, tmp_path: Path) -> None:
    for number, file in enumerate(
        ("plain/n1/a.jpg", "plain/n2/b.jpg", "split/train/cat/a.jpg", "split/test/dog/b.jpg")
    ):
        put(tmp_path / file, 10 * number)
    (tmp_path / "plain/classes.json").write_text(json.dumps({"n1": "red_fox"}), "utf-8")
    plain, split = features.read_album(tmp_path / "plain"), features.read_album(tmp_path / "split")
    assert (plain.classes, plain.labels.tolist(), plain.test.tolist()) == (["red fox", "n2"], [0, 1], [False, False])
    assert (split.classes, split.labels.tolist(), split.test.tolist()) == (["cat", "dog"], [0, 1], [False, True])
    put(tmp_path / "said/images/b.jpg", 50)
    (tmp_path / "said/captions.json").write_text(json.dumps({"b.jpg": ["A dog .", "One dog ."]}), "utf-8")
    said = features.read_album(tmp_path / "said")
    assert (said.classes, said.captions, len(said.files)) == ([], [["A dog .", "One dog ."]], 1)
    (batch,) = features.batches(said, 4, 1)
    assert batch.shape == (1, 3, 4, 4)
    assert batch.mean().item() == pytest.approx(50 / 255, abs=0.01)


def test_features_come_back_to_a_254th_of_their_largest(features: ModuleType, tmp_path: Path) -> None:
    put(tmp_path / "pets/cat/a.jpg", 0)
    put(tmp_path / "pets/cat/b.jpg", 0)
    album = features.read_album(tmp_path / "pets")
    exact = torch.tensor([[1.0, -2.54, 0.013], [100.0, 3.0, 0.0]])
    features.keep(tmp_path / "pets.npz", album, exact)
    kept = features.read_features(tmp_path / "pets.npz")
    assert (kept.name, kept.classes, kept.labels.tolist()) == ("pets", ["cat"], [0, 0])
    assert torch.allclose(kept.features[0], torch.tensor([1.0, -2.54, 0.02]), atol=1e-3)  # in steps of 2.54 / 127
    assert torch.allclose(kept.features[1], torch.tensor([100.0, 3.15, 0.0]), atol=0.03)  # in steps of 100 / 127


def test_whitening_makes_classes_round_around_unit_prototypes(features: ModuleType, targets: ModuleType) -> None:
    x = torch.tensor([[6.0, 1.0], [6.0, -1.0], [-4.0, 1.0], [-4.0, -1.0]])
    album = features.Features("two", x, torch.tensor([0, 0, 1, 1]), torch.zeros(4), ["left", "right"], [])
    seen = targets.gather([album], None, torch.device("cpu"))
    whitening, prototypes = targets.whiten(seen)
    assert torch.equal(whitening.mean, torch.tensor([1.0, 0.0]))
    # within classes (0, 1); shrinkage adds half of their mean to both: (1/4, 5/4), whose inverse roots are 2 and 0.894
    assert torch.allclose(whitening.root, torch.tensor([[2.0, 0.0], [0.0, 0.8**0.5]]))
    assert torch.allclose(prototypes, torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
    assert torch.allclose(whitening(torch.tensor([1.0, 3.0])), torch.tensor([0.0, 1.0]))


def test_classes_of_one_name_are_one_class_and_synonyms_are_names_of_it(
    features: ModuleType, targets: ModuleType, tmp_path: Path
) -> None:
    one = features.Features("one", torch.ones(2, 3), torch.tensor([0, 1]), torch.zeros(2), ["mouse", "cat"], [])
    two = features.Features("two", torch.zeros(1, 3), torch.tensor([0]), torch.zeros(1), ["mouse"], [])
    said = features.Features("said", torch.ones(1, 3), torch.zeros(0), torch.zeros(1), [], [["A cat .", "Cat ."]])
    (tmp_path / "synonyms.json").write_text(json.dumps({"mouse": ["computer mouse"]}), "utf-8")
    seen = targets.gather([one, two, said], tmp_path / "synonyms.json", torch.device("cpu"))
    assert seen.classes == ["cat", "mouse"]
    assert seen.labels.tolist() == [1, 0, 1]
    assert seen.names == [(0, "cat"), (1, "mouse"), (1, "computer mouse")]
    assert (seen.captions, len(seen.captioned)) == (["A cat ."], 1)


def test_a_regression_without_a_ridge_goes_through_what_it_was_given_and_with_one_between(targets: ModuleType) -> None:
    texts, looks = torch.eye(2), torch.eye(2)
    exact = targets.fit(texts, looks, HALF, 0.0)
    assert torch.allclose(exact(texts), looks, atol=1e-6)
    # K + 0.5 = [[1.5, 0.5], [0.5, 1.5]], whose inverse is [[0.75, -0.25], [-0.25, 0.75]]; the kernel is [1, 0.5]
    soft = targets.fit(texts, looks, HALF, 0.5)(texts[:1])
    expected = torch.tensor([0.75 - 0.125, -0.25 + 0.375])
    assert torch.allclose(soft[0], expected / expected.norm())
