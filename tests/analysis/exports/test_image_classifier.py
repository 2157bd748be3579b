"""A folder of transformers answers as PromptFed does; a model that has no stock class is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from promptfed.analysis.exports.image_classifier import export_pipeline
from promptfed.core.errors import PromptFedError
from promptfed.runs import runner
from support import tiny_hub
from support.command import promptfed, sentence
from support.exported import answer, expected
from support.tiny_runs import tiny, write_images

FAST = ("device=cpu", "rounds=1", "evaluate.after=false")
SORTED = """
found = classify("photo.jpg", top_k=99)
probabilities = [one["score"] for one in sorted(found, key=lambda one: int(one["label"]))]
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classifiers")
    write_images(folder / "small.npz")
    pixels = np.random.default_rng(7).integers(0, 256, (20, 30, 3), np.uint8)
    Image.fromarray(pixels).resize((90, 60), Image.Resampling.BICUBIC).save(folder / "photo.jpg")
    return folder


def answered(base: Path, folder: Path) -> list[float]:
    """Return what the pipeline answers for the photo, class by class."""
    photo = base / "photo.jpg"
    return answer(folder, photo, SORTED.replace("photo.jpg", str(photo)))


@pytest.mark.slow
def test_a_whole_model_with_a_head_of_its_own(base: Path, tmp_path: Path) -> None:
    run, out = base / "fedrep", tmp_path / "out"
    runner.run("fedrep", out=run, overrides=tuple(tiny(base / "small.npz", *FAST)))
    done = promptfed("export", run, "--client", 2, "--format", "transformers", "--out", out)
    assert done.code == 0, done.err
    assert "to within" in done.out
    assert answered(base, out) == pytest.approx(expected(run, base / "photo.jpg", 2), abs=1e-4)
    assert json.loads((out / "config.json").read_text())["architectures"] == ["ViTForImageClassification"]
    assert sentence(promptfed("export", run, "--all", "--format", "transformers", "--out", tmp_path / "b"))


def test_prompts_and_other_networks_are_refused(base: Path, tmp_path: Path) -> None:
    words = tiny(base / "small.npz", *FAST)
    runner.run("pfedpt", out=base / "pfedpt", overrides=(*words, "method.size=1"))
    with pytest.raises(PromptFedError, match=r"for pfedpt, whose model has prompt\.down, .*; use --format onnx or pt2"):
        export_pipeline(base / "pfedpt", tmp_path / "out", client=0)
    cnn = ["backbone.name=cnn", "backbone.channels=[4]", "backbone.pool_after=[1]", "backbone.hidden=[8]"]
    words = [word for word in words if not word.startswith("backbone.")]
    runner.run("fedavg", out=base / "cnn", overrides=(*words, *cnn))
    with pytest.raises(PromptFedError, match="no stock classifier for fedavg on backbone cnn; use --format onnx"):
        export_pipeline(base / "cnn", tmp_path / "out", client=0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_class_shares_are_in_the_bias(base: Path, tmp_path: Path) -> None:
    words = [f"data.name=npz:{write_images(base / 'large.npz', count=48, side=32)}", "clients=4", *FAST]
    skewed = ["partition.name=dirichlet", "partition.alpha=0.5", "method.tokens=0", "method.epochs=1"]
    runner.run("pfedvpt", out=base / "pfedvpt", overrides=(*words, *skewed))
    export_pipeline(base / "pfedvpt", tmp_path / "out", client=1)
    assert answered(base, tmp_path / "out") == pytest.approx(
        expected(base / "pfedvpt", base / "photo.jpg", 1), abs=1e-4
    )


@pytest.mark.slow
def test_a_network_that_scales_images_itself_is_refused(base: Path, tmp_path: Path) -> None:
    words = [f"data.name=npz:{base / 'small.npz'}", "clients=4", "partition.name=iid", *FAST, "method.epochs=1"]
    runner.run("head-probe", out=base / "scaled", overrides=(*words, "backbone.size=32"))
    with pytest.raises(PromptFedError, match="scales images of 8×8 pixels to 32×32, which"):
        export_pipeline(base / "scaled", tmp_path / "out", client=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("swiglu", [False, True])
def test_a_head_on_dinov2(base: Path, tmp_path: Path, swiglu: bool) -> None:
    weights = tiny_hub.saved(tiny_hub.dinov2(use_swiglu_ffn=swiglu), tmp_path / "dinov2")
    images = write_images(tmp_path / "images.npz", count=48, side=16)
    words = (f"data.name=npz:{images}", "clients=4", "partition.name=iid", *FAST, "method.epochs=1")
    backbone = ("backbone.name=vit", f"backbone.weights={weights}")
    runner.run("head-probe", out=tmp_path / "run", overrides=(*words, *backbone))
    made = export_pipeline(tmp_path / "run", tmp_path / "out", client=1)
    assert made.difference < 1e-4
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == ["Dinov2ForImageClassification"]
    assert str(tmp_path) not in (tmp_path / "out" / "README.md").read_text()
    assert str(tmp_path) not in (tmp_path / "out" / "model.json").read_text()
