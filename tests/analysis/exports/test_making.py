"""Exported graphs answer as PromptFed does where there is no PromptFed; refusals are sentences and leave nothing."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from promptfed.analysis import predict
from promptfed.analysis.bundle.making import make_bundle
from promptfed.analysis.exports import making
from promptfed.analysis.exports.checking import Changed, change, made_up
from promptfed.analysis.exports.graphs import Ask, read_pt2
from promptfed.analysis.exports.making import change_in_words, export_graph
from promptfed.core.errors import PromptFedError
from promptfed.runs import runner
from promptfed.runs.finished import open_run
from promptfed.runs.site_model import write_model
from support.command import promptfed, sentence
from support.exported import answer, expected
from support.tiny_runs import tiny, write_images

FAST = ("device=cpu", "rounds=1", "evaluate.after=false")
CNN = ("backbone.name=cnn", "backbone.channels=[4]", "backbone.pool_after=[1]", "backbone.hidden=[8]")
METHODS = {  # frozen backbones
    "pfedpg": ("vit", "method.tokens=2"),
    "pfedvpt": ("vit", "method.tokens=2"),
    "fedvpt": ("vit", "method.tokens=2", "backbone.size=16"),
    "head-probe": ("vit", "backbone.size=48"),
    "fedapt": ("clip",),
    "promptfl": ("clip",),
    "clip-fc": ("clip",),
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exports")
    write_images(folder / "small.npz")
    write_images(folder / "large.npz", count=48, side=32)
    pixels = np.random.default_rng(7).integers(0, 256, (20, 30, 3), np.uint8)
    Image.fromarray(pixels).resize((90, 60), Image.Resampling.BICUBIC).save(folder / "photo.png")
    return folder


def train(base: Path, method: str, *more: str) -> Path:
    """Return the folder of a finished run, trained unless it is there."""
    folder = base / method
    words = tiny(base / "small.npz", *FAST, *more)
    if method in METHODS:
        backbone, *rest = METHODS[method]
        words = [f"data.name=npz:{base / 'large.npz'}", "clients=4", "partition.name=iid", *FAST, "method.epochs=1"]
        words += [f"backbone.name={backbone}", *rest]
    if method == "pfedpt":
        data, number, rounds, divided, epochs = (
            words[0],
            "clients=4",
            "rounds=1",
            "partition.name=iid",
            "method.epochs=1",
        )
        words = [data, number, rounds, divided, epochs, *FAST, *CNN, "method.size=1"]
    if not folder.exists():
        runner.run(method, out=folder, overrides=tuple(words))
    return folder


def test_onnx_of_one_client(base: Path, tmp_path: Path) -> None:
    run, photo = train(base, "pfedpt"), base / "photo.png"
    done = promptfed("export", run, "--client", 3, "--format", "onnx", "--int8", "--out", tmp_path / "out")
    assert done.code == 0, done.err
    assert "pfedpt, the model of client 3" in done.out
    assert answer(tmp_path / "out", photo) == pytest.approx(expected(run, photo, 3), abs=1e-4)
    about = json.loads((tmp_path / "out" / "model.json").read_text())
    assert about["classes"] == ["0", "1", "2", "3"]
    assert about["images"]["shape"] == ["batch", 8, 8, 3]
    assert list(about["clients"]) == ["3"]
    assert about["largest_difference"] <= 1e-5
    assert about["int8"]["tested"] == about["int8"]["images"] > 0  # on the client's own test images
    assert f"answer for {about['int8']['same']} of {about['int8']['images']} test images" in done.out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "README.md", "model.int8.onnx", "model.json", "model.onnx",
    ]  # fmt: skip
    assert str(Path(making.__file__).parent).encode() not in (tmp_path / "out" / "model.onnx").read_bytes()
    assert str(base) not in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.slow
def test_pt2_of_all_clients(base: Path, tmp_path: Path) -> None:
    run, photo = train(base, "pfedpt"), base / "photo.png"
    make_bundle(run, tmp_path / "bundle", "cpu")
    made = export_graph(tmp_path / "bundle", tmp_path / "out", "pt2", together=True)
    assert (made.clients, made.changed) == (4, None)
    found = answer(tmp_path / "out", photo, **{"clients/0": "clients/3"})
    assert found == pytest.approx(expected(run, photo, 3), abs=1e-4)
    frames = [load_file(tmp_path / "out" / "clients" / f"{client}.safetensors") for client in range(4)]
    assert {name: tuple(value.shape) for name, value in frames[0].items()} == {
        "prompt.up": (3, 1, 8), "prompt.down": (3, 1, 8), "prompt.left": (3, 6, 1), "prompt.right": (3, 6, 1),
    }  # fmt: skip
    assert not torch.equal(frames[0]["prompt.up"], frames[3]["prompt.up"])
    assert "It is not recorded which images" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pt2", "onnx"])
@pytest.mark.parametrize("method", [*METHODS, "fedavg", "fedrep", "fedrod"])
def test_other_methods(base: Path, tmp_path: Path, method: str, kind: str) -> None:
    run, photo = train(base, method), base / "photo.png"
    out = tmp_path / "out"
    export_graph(run, out, kind, client=2)
    assert answer(out, photo) == pytest.approx(expected(run, photo, 2), abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["pfedpg", "pfedvpt", "fedrep"])
def test_onnx_of_all_clients_in_8_bits(base: Path, tmp_path: Path, method: str) -> None:
    run, photo, out = train(base, method), base / "photo.png", tmp_path / "out"
    made = export_graph(run, out, "onnx", together=True, int8=True)
    assert answer(out, photo, **{"clients/0": "clients/1"}) == pytest.approx(expected(run, photo, 1), abs=1e-4)
    assert made.changed is not None
    assert made.changed.same > made.changed.images / 2


@pytest.mark.slow
def test_a_random_patch_lies_where_it_does_in_testing(base: Path, tmp_path: Path) -> None:
    words = tiny(base / "small.npz", *FAST, "method.prompt=random-patch", "method.size=2", "method.lr=50")
    runner.run("pfedpt", out=base / "placed", overrides=tuple(words))
    export_graph(base / "placed", tmp_path / "out", "pt2", together=True)
    for client in (0, 2):
        found = answer(tmp_path / "out", base / "photo.png", **{"clients/0": f"clients/{client}"})
        assert found == pytest.approx(expected(base / "placed", base / "photo.png", client), abs=1e-4)


def test_refusals_are_sentences_and_leave_nothing(base: Path, tmp_path: Path) -> None:
    run, alike, out = train(base, "pfedpt"), train(base, "fedavg"), tmp_path / "out"
    for words, said in (
        ([run, "--format", "pt2"], "name it with --out"),
        ([run, "--format", "pt2", "--out", out], "choose one with --client 0 … 3, or give --all"),
        ([run, "--format", "pt2", "--out", out, "--client", 9], "has clients 0 to 3, not 9"),
        ([run, "--format", "pt2", "--out", out, "--client", 1, "--all"], "exclude each other"),
        ([run, "--format", "pt2", "--out", out, "--client", 1, "--int8"], "give --format onnx"),
        ([alike, "--format", "pt2", "--out", out, "--all"], "have the same model; export it with --client 0"),
        ([run, "--format", "pt2", "--out", tmp_path, "--client", 1], "exists already"),
        ([run, "--all", "--out", out], "give --format too"),
        ([run, "--client", 1, "--out", out], "for a classifier add --format, one of pt2, onnx, transformers, web."),
        ([tmp_path / "none", "--format", "pt2", "--out", out], "There is no "),
    ):
        assert said in sentence(promptfed("export", *words))
    assert list(tmp_path.iterdir()) == []


def test_a_sites_own_model(base: Path, tmp_path: Path) -> None:
    run = open_run(train(base, "fedrep"), "cpu")
    facts = {name: value.cpu() for name, value in run.facts(2).items()}
    (tmp_path / "site").mkdir()
    write_model(tmp_path / "site", run.deployed(2), run.recipe, run.dataset, facts, run.finished)
    made = export_graph(tmp_path / "site", tmp_path / "out", "pt2")
    assert (made.whose, made.clients) == ("client 2", 1)
    ask = read_pt2(tmp_path / "out" / "model.pt2")
    images = made_up((8, 8), 5)
    whole = predict.probabilities(predict.load(run.folder, 2, "cpu"), images).numpy()
    assert np.abs(ask(images, {}) - whole).max() < 1e-6
    with pytest.raises(PromptFedError, match="has the model of one site; leave out --client"):
        export_graph(tmp_path / "site", tmp_path / "again", "pt2", client=2)
    with pytest.raises(PromptFedError, match="has the model of one client; leave out --all"):
        export_graph(tmp_path / "site", tmp_path / "again", "pt2", together=True)


def test_an_export_that_answers_otherwise_is_not_kept(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = making.GRAPHS["pt2"].read

    def wrong(path: Path) -> Ask:
        ask = right(path)
        return lambda images, own: ask(images, own) + np.float32(0.001)

    monkeypatch.setitem(making.GRAPHS, "pt2", making._Format("model.pt2", making.GRAPHS["pt2"].write, wrong))
    with pytest.raises(PromptFedError, match=r"differ by up to 0\.001, and 0\.0001 is allowed; nothing was written"):
        export_graph(train(base, "fedavg"), tmp_path / "out", "pt2", client=0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(("method", "more"), [("fed-cocoop", ()), ("fedapt", ("method.inference=exact",))])
def test_a_text_tower_that_runs_for_every_image_is_refused(
    base: Path, tmp_path: Path, method: str, more: tuple[str, ...]
) -> None:
    words = (f"data.name=npz:{base / 'large.npz'}", "clients=4", "partition.name=iid", *FAST, "method.epochs=1")
    runner.run(method, out=base / f"each-{method}", overrides=(*words, *more))
    with pytest.raises(PromptFedError, match=f"{method} cannot be exported as a graph: its answer is computed image"):
        export_graph(base / f"each-{method}", tmp_path / "out", "pt2", client=0)
    assert list(tmp_path.iterdir()) == []


def test_the_change_by_8_bits_is_counted() -> None:
    before = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.3, 0.7]], np.float32)
    after = np.array([[0.8, 0.2], [0.4, 0.6], [0.2, 0.8], [0.3, 0.7]], np.float32)
    tested = change(before, after, np.array([0, 0, 1, 0]))
    assert (tested.images, tested.same, tested.tested, tested.right) == (4, 3, 4, (3, 2))
    assert tested.largest == pytest.approx(0.2, abs=1e-6)
    both = tested + Changed(6, 6, 0.5, 6, (4, 5))
    assert (both.images, both.same, both.largest, both.right) == (10, 9, 0.5, (7, 7))
    assert change_in_words(both) == (
        "In 8 bits it gives the same answer for 9 of 10 test images; its accuracy on them is 70.0 %, before 70.0 %; "
        "a probability changes by at most 0.5."
    )
    assert change_in_words(change(before, after, None)).startswith(
        "In 8 bits it gives the same answer for 3 of 4 made-up"
    )


def test_made_up_images_are_noise_and_areas() -> None:
    images = made_up((8, 12))
    assert images.shape == (8, 8, 12, 3)
    assert len(np.unique(images[1].reshape(-1, 3), axis=0)) == 16
    assert len(np.unique(images[0].reshape(-1, 3), axis=0)) > 90
