"""`promptfed predict`: the model of a site or of a simulated client says of images what it said in testing."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from promptfed.analysis import predict
from promptfed.analysis.predict import Model, Prediction
from promptfed.core.errors import PromptFedError
from promptfed.core.method import Method, Task
from promptfed.data import open_dataset
from promptfed.runs import config, runner
from promptfed.runs.finished import open_run
from promptfed.runs.runner import Result
from promptfed.sites import coordinator
from promptfed.sites.settings import Federation
from promptfed.sites.worker import Worker
from support.command import promptfed, sentence
from support.sites_in_threads import Threads
from support.tiny_runs import tiny, write_images
from support.toys import BLACK, WHITE, Linear

VIT = ("backbone.name=vit-tiny", "backbone.width=8", "backbone.depth=1", "backbone.heads=2")
CLIP = ("backbone.name=clip", "method.batch=8", "method.epochs=1")
SITES = {
    "pfedpt": ("method.prompt_epochs=1", "method.epochs=1", *VIT),
    "pfedpg": ("method.epochs=1", "method.batch=8", "method.tokens=2"),
    "promptfl": CLIP,
}


def save(images: Any, folder: Path) -> list[Path]:
    """Write images as PNG files, which lose nothing."""
    folder.mkdir()
    files = [folder / f"{number:03d}.png" for number in range(len(images))]
    for file, image in zip(files, images, strict=True):
        Image.fromarray(np.asarray(image)).save(file)
    return files


def share(answers: list[Prediction], labels: list[int], classes: tuple[str, ...]) -> float:
    """Return the share of right answers."""
    right = [answer.classes[0][0] == classes[label] for answer, label in zip(answers, labels, strict=True)]
    return sum(right) / len(right)


# -- by hand ------------------------------------------------------------------------------------------------------


def linear() -> Model:
    """Return a model whose logits are the mean colour and zero."""
    weight = torch.zeros(2, 12)
    weight[0] = 1 / 12
    params = {"head.weight": weight, "head.bias": torch.zeros(2)}
    task = Task(Linear(), ("light", "dark"), 1)
    facts = {"client": torch.tensor(0)}
    return Model(Method(), task, params, (2, 2), (0, 0, 0), (1, 1, 1), facts, 0, 1, torch.device("cpu"))


def test_probabilities_are_the_softmax_of_the_logits() -> None:
    images = np.stack([np.full((2, 2, 3), value, np.uint8) for value in (WHITE, BLACK)])
    light = math.e / (math.e + 1)  # logits 1 and 0
    expected = torch.tensor([[light, 1 - light], [0.5, 0.5]])
    assert torch.allclose(predict.probabilities(linear(), images), expected)


def test_images_are_scaled_to_the_models_size_and_the_likeliest_class_comes_first(tmp_path: Path) -> None:
    files = save([np.full((7, 5, 3), WHITE, np.uint8), np.full((3, 3), BLACK, np.uint8)], tmp_path / "images")
    first, second = predict.predict(replace(linear(), mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)), files)
    assert [name for name, _ in first.classes] == ["light", "dark"]
    assert [name for name, _ in second.classes] == ["dark", "light"]
    assert [p for _, p in second.classes] == pytest.approx([p for _, p in first.classes])
    ((name, chance),) = predict.predict(linear(), files, top=1)[0].classes
    assert name == "light"
    assert chance == pytest.approx(math.e / (math.e + 1))


def test_more_images_than_a_batch_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict, "BATCH", 2)
    shades = [np.full((2, 2, 3), value, np.uint8) for value in (0, 51, 102, 153, 204)]
    answers = predict.predict(linear(), save(shades, tmp_path / "images"), top=2)
    light = [dict(answer.classes)["light"] for answer in answers]
    assert light == pytest.approx([1 / (1 + math.exp(-value / 5)) for value in range(5)])


# -- a client of a simulated run ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images") / "tiny.npz")


@pytest.fixture(scope="module")
def done(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Result:
    words = tiny(images, "method.prompt_epochs=1", "device=cpu")
    return runner.run("pfedpt", out=tmp_path_factory.mktemp("done") / "run", overrides=tuple(words))


@pytest.fixture(scope="module")
def own(done: Result, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], list[int]]:
    """Return the test images of client 2 as files, and their labels."""
    data = open_run(done.folder).plan
    rows = data.partition.test[2]
    return save(data.dataset.images[rows], tmp_path_factory.mktemp("own") / "png"), data.dataset.labels[rows].tolist()


def test_a_simulated_client_answers_as_it_was_tested(done: Result, own: tuple[list[Path], list[int]]) -> None:
    model = predict.load(done.folder, client=2, device="cpu")
    found = share(predict.predict(model, own[0]), own[1], model.task.classes)
    assert found == pytest.approx(done.summary["accuracy"]["per_client"][2])
    other = predict.load(done.folder, client=1, device="cpu")
    assert predict.predict(other, own[0]) != predict.predict(model, own[0])  # its frame is another one


def test_without_a_client_the_servers_own_model_answers(images: Path, tmp_path: Path) -> None:
    ran = runner.run("fedavg", out=tmp_path / "run", overrides=tuple(tiny(images, "device=cpu")))
    data = open_dataset(f"npz:{images}")
    model = predict.load(ran.folder, device="cpu")
    answers = predict.predict(model, save(data.images[data.test], tmp_path / "png"))
    wanted = ran.summary["accuracy"]["deployed"]["all"]
    assert share(answers, data.labels[data.test].tolist(), data.classes) == pytest.approx(wanted)


def test_asking_changes_nothing_in_the_run_folder(done: Result, own: tuple[list[Path], list[int]]) -> None:
    before = {path: path.read_bytes() for path in done.folder.rglob("*") if path.is_file()}
    predict.predict(predict.load(done.folder, client=0, device="cpu"), own[0][:1])
    assert {path: path.read_bytes() for path in done.folder.rglob("*") if path.is_file()} == before


# -- a site -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=list(SITES))
def home(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return what the site "south" holds after a run of two sites."""
    method, folder = str(request.param), tmp_path_factory.mktemp("sites")
    federation = Federation(("north", "south"))
    files = {name: write_images(folder / f"{name}.npz", count=24, side=32) for name in federation.sites}
    workers = {name: Worker(name, folder / name, str(files[name]), "cpu") for name in federation.sites}
    words = ["clients=2", "rounds=1", "device=cpu", "evaluate.after=false", *SITES[method]]
    coordinator.create(folder / "run", config.load_one(method, words), federation)
    exchange = Threads({name: worker.answer for name, worker in workers.items()})
    coordinator.conduct(folder / "run", federation, exchange, lambda line: None)
    return folder / "south"


def test_a_site_answers_as_it_was_tested(home: Path, tmp_path: Path) -> None:
    (run,) = (home / "runs").iterdir()
    report = json.loads((run / "report.json").read_text())
    data = open_dataset(f"npz:{home.parent / 'south.npz'}")
    files, labels = save(data.images[data.test], tmp_path / "png"), data.labels[data.test].tolist()
    answers = predict.predict(predict.load(run, device="cpu"), files)
    assert share(answers, labels, data.classes) == pytest.approx(report["accuracy"])
    moved = tmp_path / "moved"  # the two files are enough, wherever they are
    moved.mkdir()
    for name in ("model.safetensors", "model.json"):
        shutil.copy(run / name, moved / name)
    assert predict.predict(predict.load(moved / "model.safetensors", device="cpu"), files) == answers


# -- the command --------------------------------------------------------------------------------------------------


def test_the_command_prints_a_row_per_image(done: Result, own: tuple[list[Path], list[int]]) -> None:
    (answer, _) = predict.predict(predict.load(done.folder, client=2), own[0][:2])
    said = promptfed("predict", done.folder, *own[0][:2], "--client", 2, "--json")
    assert said.code == 0
    rows = json.loads(said.out)
    assert [Path(row["file"]).name for row in rows] == [file.name for file in own[0][:2]]
    assert rows[0]["classes"][0] == {"class": answer.classes[0][0], "probability": answer.classes[0][1]}
    assert [len(row["classes"]) for row in rows] == [3, 3]
    lines = promptfed("predict", done.folder, *own[0][:2], "--client", 2, "--top", 1).out.splitlines()
    assert lines[0].split() == ["file", "class", "probability"]
    assert len(lines) >= 3


def test_a_table_shows_the_other_classes_too() -> None:
    answers = [Prediction(Path("cat.jpg"), (("cat", 0.75), ("dog", 0.2), ("cow", 0.05)))]
    table = predict.to_table(answers)
    assert [str(column.header) for column in table.columns] == ["file", "class", "probability", "or", ""]
    assert [list(column.cells) for column in table.columns] == [
        ["cat.jpg"],
        ["cat"],
        ["75.0 %"],
        ["dog 20.0 %"],
        ["cow 5.0 %"],
    ]


# -- mistakes -----------------------------------------------------------------------------------------------------


def test_mistakes_get_one_sentence(done: Result, own: tuple[list[Path], list[int]], tmp_path: Path) -> None:
    image, word = own[0][0], tmp_path / "word.jpg"
    word.write_text("no image")

    def ask(*words: object) -> str:
        return sentence(promptfed("predict", *words))

    run = done.folder
    assert ask(tmp_path / "nowhere", image).endswith(f"There is no {tmp_path / 'nowhere'}.\n")
    (tmp_path / "here-b62fe227").mkdir()
    assert ask(tmp_path / "here", image).endswith(f'; did you mean "{tmp_path / "here-b62fe227"}"?\n')
    assert "neither bundle.json nor recipe.toml nor model.safetensors" in ask(tmp_path, image)
    assert "is not a model; give model.safetensors" in ask(run / "recipe.toml", image)
    assert "choose one with --client 0 … 3." in ask(run, image)
    assert "has clients 0 to 3, not 9." in ask(run, image, "--client", 9)
    assert "does not exist" in ask(run, tmp_path / "photo.jpg", "--client", 0)
    assert "is a folder, not an image" in ask(run, tmp_path, "--client", 0)
    assert "cannot be read as an image" in ask(run, word, "--client", 0)
    assert 'Unknown device "gpu"' in ask(run, image, "--client", 0, "--device", "gpu")
    started = tmp_path / "started"
    shutil.copytree(run, started)
    (started / "summary.json").unlink()
    assert "is not finished" in promptfed("predict", started, image, "--client", 0).err
    (started / "federation.json").write_text("{}")
    assert "the models are at the sites" in ask(started, image)


def test_a_sites_folder_that_is_not_whole_gets_one_sentence(tmp_path: Path) -> None:
    def fail(**more: Any) -> str:
        with pytest.raises(PromptFedError) as raised:
            predict.load(tmp_path, **more)
        return str(raised.value)

    (tmp_path / "versions").mkdir()
    assert fail() == f"{tmp_path} is not finished: it has no model.safetensors."
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert f"{tmp_path / 'model.json'} is missing" in fail()
    assert "leave out --client" in fail(client=1)
