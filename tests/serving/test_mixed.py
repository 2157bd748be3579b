"""Mixed batches: many clients in one batch get the answers that each gets alone."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from promptfed.analysis import predict
from promptfed.analysis.bundle import contents
from promptfed.analysis.bundle.contents import open_bundle
from promptfed.analysis.bundle.making import make_bundle
from promptfed.core.errors import PromptFedError
from promptfed.core.method import Method
from promptfed.runs import runner
from promptfed.serving import mixed
from promptfed.serving.opened import open_served
from support.tiny_runs import tiny, write_images

CLIENTS = 4
FAST = ("device=cpu", "rounds=1", "evaluate.after=false")
TINY = ("fedavg", "pfedpt", "pfedpt random-patch", "pfedpt tokens", "fedbabu", "fedrep", "fedrod", "fedmtl", "moon",
        "moon+pt", "local")  # fmt: skip
CONVOLUTIONS = ("pfedpt cnn", "fedper cnn", "local cnn")
FROZEN = {"pfedpg": "vit", "fedvpt": "vit", "fedvpt-d": "vit", "head-probe": "vit", "vit-full": "vit",
          "promptfl": "clip", "fedapt": "clip", "fed-cocoop": "clip", "clip-zs": "clip"}  # fmt: skip


LONG = ("fedvpt", "fedvpt-d", "vit-full")


def words(name: str, base: Path) -> tuple[str, list[str]]:
    """Return the method of a case, and its recipe."""
    method, _, kind = name.removesuffix("+pt").partition(" ")
    if name in FROZEN:
        large = [f"data.name=npz:{base / 'large.npz'}", f"clients={CLIENTS}", "partition.name=iid"]
        epochs = [] if name == "clip-zs" else ["method.epochs=1"]
        return method, [*large, *FAST, f"backbone.name={FROZEN[name]}", *epochs]
    if kind == "cnn":
        large = [f"data.name=npz:{base / 'large.npz'}", f"clients={CLIENTS}", "partition.name=iid"]
        small = ["backbone.name=cnn", "backbone.channels=[4,6]", "backbone.hidden=[8]"]
        return method, [*large, *FAST, *small, "method.epochs=1"]
    prompt = ["prompt.kind=frame", "prompt.size=1"] if name.endswith("+pt") else []
    own = [f"method.prompt={kind}"] if kind else []
    return method, [*tiny(base / "small.npz"), *FAST, *prompt, *own]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mixed")
    write_images(folder / "small.npz")
    write_images(folder / "large.npz", count=20, side=32)
    return folder


def made(base: Path, name: str) -> Path:
    """Return the bundle of a case, made unless it is there."""
    out = base / f"{name}.bundle".replace(" ", "-")
    if not out.exists():
        method, recipe = words(name, base)
        runner.run(method, out=base / f"{out.name}.run", overrides=tuple(recipe))
        make_bundle(base / f"{out.name}.run", out, "cpu")
    return out


def noise(count: int, shape: tuple[int, int]) -> Any:
    return np.random.default_rng(7).integers(0, 256, (count, *shape, 3), np.uint8)


@pytest.mark.parametrize("name", [*TINY, *CONVOLUTIONS, *(name for name in FROZEN if name not in LONG)])
def test_a_mixed_batch_answers_as_predict_does(base: Path, name: str) -> None:
    check(base, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_a_mixed_batch_of_longer_runs_answers_as_predict_does(base: Path, name: str) -> None:
    check(base, name)


def check(base: Path, name: str) -> None:
    folder = made(base, name)
    served = open_served(folder, "cpu")
    mixed.rehearse(served)
    rows = [3, 0, 1, 0, 2, 3, 3]
    images = noise(len(rows), served.about.shape)
    models = {row: predict.load(folder, row, "cpu") for row in set(rows)}
    each = zip(rows, images, strict=True)
    right = torch.stack([predict.probabilities(models[row], image[None])[0] for row, image in each])
    for room in (mixed.ROOM, 1):
        together = mixed.answer(served, rows, images, room).softmax(-1)
        torch.testing.assert_close(together, right, atol=1e-5, rtol=1e-4)


def test_shared_weights_are_not_copied_for_a_batch(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = open_served(made(base, "pfedpt cnn"), "cpu")
    seen: list[dict[str, torch.Tensor]] = []
    real = type(served.method).predict

    def spy(self: Method, task: Any, params: Any, batch: Any) -> torch.Tensor:
        seen.append(params)
        return real(self, task, params, batch)

    monkeypatch.setattr(type(served.method), "predict", spy)
    mixed.answer(served, [0, 1, 2], noise(3, served.about.shape))
    (params,) = seen
    assert {name for name, value in served.shared.items() if params[name] is value} == set(served.shared)
    assert {len(params[name]) for name in served.rows} == {3}
    assert tuple(params) == served.about.order


def test_bundles_of_one_backbone_hold_it_once(base: Path) -> None:
    one = open_served(made(base, "pfedpg"), "cpu")
    other = open_served(made(base, "head-probe"), "cpu", known=[one])
    assert other.task.backbone is one.task.backbone
    assert open_served(made(base, "pfedpt"), "cpu", known=[one]).task.backbone is not one.task.backbone


def test_a_damaged_row_is_refused_and_the_others_answer(base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    shutil.copytree(made(base, "pfedpt"), folder)
    path = folder / contents.CLIENTS
    content = bytearray(path.read_bytes())
    place = content.index(contents.raw(contents.read_row(folder, open_bundle(folder), 3)["prompt.up"]))
    content[place] ^= 1
    path.write_bytes(content)
    served = open_served(folder, "cpu")
    assert mixed.answer(served, [2, 1], noise(2, (8, 8))).isfinite().all()
    with pytest.raises(PromptFedError, match="The bundle is damaged"):
        mixed.answer(served, [2, 3], noise(2, (8, 8)))


def test_a_method_that_mixes_clients_is_refused(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = open_served(made(base, "pfedpt"), "cpu")
    real = type(served.method).predict

    def mean(self: Method, task: Any, params: Any, batch: Any) -> torch.Tensor:
        out = real(self, task, params, batch)
        return out.mean(0, keepdim=True).expand_as(out) * 100

    monkeypatch.setattr(type(served.method), "predict", mean)
    with pytest.raises(PromptFedError, match="mixes up the clients of a batch"):
        mixed.rehearse(served)


def test_precision_is_for_frozen_backbones(base: Path) -> None:
    with pytest.raises(PromptFedError, match="--precision is for frozen backbones; vit-tiny computes"):
        open_served(made(base, "pfedpt"), "cpu", "bf16")
    served = open_served(made(base, "pfedpg"), "cpu", "bf16")
    mixed.rehearse(served)
    assert {value.dtype for value in served.task.backbone.frozen.values()} == {torch.bfloat16}  # type: ignore[attr-defined]
