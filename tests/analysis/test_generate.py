"""Pictures from a run's word: whose word it is, that starts do not depend on it, and the grid."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from promptfed.analysis.generate import Sampler, generate, global_word, grid, save_picture, spoken, starts
from promptfed.backbones.painter import Painter
from promptfed.core.errors import PromptFedError
from promptfed.core.files import unsealed_toml
from promptfed.runs.finished import FinishedRun, open_run, open_words
from promptfed.runs.reevaluating import reevaluate
from support.command import promptfed
from support.inverted_runs import SIDE, classified, inverted, painted, painting


@pytest.fixture(autouse=True, scope="module")
def with_a_painter() -> Iterator[None]:
    with painting():
        yield


@pytest.fixture(scope="module")
def relic(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return open_run(inverted("relic", tmp_path_factory.mktemp("relic")))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return open_run(inverted("ti-local", tmp_path_factory.mktemp("alone")))


def size(path: Path) -> tuple[int, int]:
    with Image.open(path) as picture:
        return picture.size


def test_the_global_word_is_the_servers(relic: FinishedRun, tmp_path: Path) -> None:
    pictures = generate(relic, Sampler(count=3), tmp_path / "grid.png")
    assert list(pictures) == ["global"]
    for picture in pictures["global"]:
        torch.testing.assert_close(picture, painted(relic.loop.server["word"]))
    assert size(tmp_path / "grid.png") == (3 * (SIDE + 2) + 2, SIDE + 4)


def test_the_word_of_every_round_is_kept(relic: FinishedRun, tmp_path: Path) -> None:
    pictures = generate(relic, Sampler(count=1), tmp_path / "grid.png", rounds=(1, 2))
    assert list(pictures) == ["global after round 1", "global after round 2"]
    first, last = (row[0] for row in pictures.values())
    torch.testing.assert_close(last, painted(relic.loop.server["word"]))
    shorter = open_run(inverted("relic", tmp_path / "shorter", "rounds=1"))
    torch.testing.assert_close(first, painted(shorter.loop.server["word"]), rtol=0, atol=0)
    assert not first.equal(last)
    assert size(tmp_path / "grid.png") == (SIDE + 4, 2 * (SIDE + 2) + 2)


def test_a_run_that_is_read_again_keeps_the_words_of_its_rounds(relic: FinishedRun, tmp_path: Path) -> None:
    reevaluate(relic.folder, relic.plan.recipe, tmp_path / "read")
    again = open_run(tmp_path / "read")
    for finished in (1, 2):
        torch.testing.assert_close(again.words.word(finished), relic.words.word(finished), rtol=0, atol=0)


def test_the_servers_words_need_neither_images_nor_clients(relic: FinishedRun, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(relic.folder, folder)
    recipe = folder / "recipe.toml"
    recipe.write_text(unsealed_toml(recipe.read_text()).replace("colours.npz", "gone.npz"))
    shutil.rmtree(folder / "checkpoint")
    (folder / "partition.json").unlink()
    (folder / "federation.json").write_text("{}")  # as where sites have trained
    words = open_words(folder)
    assert global_word(words).equal(relic.loop.server["word"])
    for after in (0, 1, 2):
        assert global_word(words, after).equal(global_word(relic, after))
    here, there = (generate(run, Sampler(count=2), tmp_path / "grid.png") for run in (words, relic))
    # a painter's pictures are as large as the images, which are not there
    torch.testing.assert_close(here["global"].mean((-1, -2)), there["global"].mean((-1, -2)))
    for asked in ({"client": 1}, {"kind": "client"}):
        with pytest.raises(PromptFedError, match=r"Only the server's words of .* are open"):
            generate(words, Sampler(count=1), tmp_path / "grid.png", **asked)
    assert promptfed("export", folder, "--out", tmp_path / "word.safetensors").code == 0
    assert promptfed("generate", folder, "--count", 1, "--out", tmp_path / "one.png").code == 0
    done = promptfed("generate", folder, "--client", 1, "--out", tmp_path / "one.png")
    assert "is the coordinator's folder of a run over sites; it has neither images nor" in done.err
    (folder / "summary.json").unlink()
    assert f"resume it with promptfed sites run --resume {folder}." in promptfed("generate", folder).err
    assert f"resume it with promptfed sites run --resume {folder}." in promptfed("run", "--resume", folder).err


def test_a_word_sees_nothing_in_an_image(relic: FinishedRun, tmp_path: Path) -> None:
    done = promptfed("predict", relic.folder, tmp_path / "photo.png", "--client", 0)
    assert done.code == 2
    assert "is a run of relic, which learns a word, not classes; use promptfed generate or export." in done.err


def test_a_clients_word_is_made_its_own_by_its_branches(relic: FinishedRun, tmp_path: Path) -> None:
    pictures = generate(relic, Sampler(count=1), tmp_path / "grid.png", client=2)
    down, personal = relic.own(2)
    word = spoken(relic, down | personal, "a photo of a {}")
    torch.testing.assert_close(pictures["client 2"][0], painted(word))
    assert not torch.allclose(word, down["word"])
    assert spoken(relic, down, "a photo of a {}").equal(down["word"])  # no branches: u itself


def test_the_scale_is_that_of_the_prompt(relic: FinishedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def length(self: Painter, templates: tuple[str, ...]) -> torch.Tensor:
        return torch.tensor([[float(len(template))] * 12 for template in templates])

    monkeypatch.setattr(Painter, "context", length)
    down, personal = relic.own(0)
    params = {name: torch.zeros_like(value) for name, value in (down | personal).items()} | {"word": torch.ones(1, 12)}
    params |= {"scale1.weight": torch.full((32, 12), 1 / 12), "scale2.weight": torch.full((12, 32), 1 / 32)}
    for prompt in ("{}", "an oil painting of {}"):
        torch.testing.assert_close(spoken(relic, params, prompt), torch.full((1, 12), 1.0 + len(prompt)))


def test_every_client_has_a_row(alone: FinishedRun, tmp_path: Path) -> None:
    pictures = generate(alone, Sampler(count=2), tmp_path / "deep" / "grid.png", kind="client")
    assert list(pictures) == ["client 0", "client 1", "client 2"]
    assert size(tmp_path / "deep" / "grid.png") == (2 * (SIDE + 2) + 2, 3 * (SIDE + 2) + 2)
    # alone, each client's word has become its colour: the largest channel is its own
    assert [int(row[0].mean((1, 2)).argmax()) for row in pictures.values()] == [0, 1, 2]


def test_starts_depend_on_seed_and_number_alone() -> None:
    model, cpu = Painter((3, SIDE, SIDE), 3), torch.device("cpu")
    few, many = (starts(model, Sampler(count=count, seed=5), cpu) for count in (2, 4))
    assert many.shape == (4, 3, 2, 2)
    assert many[:2].equal(few)
    assert not many[0].equal(many[1])
    assert not starts(model, Sampler(count=2, seed=6), cpu).equal(few)
    assert abs(float(starts(model, Sampler(count=500), cpu).std()) - 1) < 0.05


def test_a_grid_by_hand() -> None:
    sheet = grid([torch.full((2, 3, 1, 1), -1.0), torch.zeros(1, 3, 1, 1)])
    assert sheet.shape == (3, 8, 8)
    assert sheet[0].tolist()[2] == [1, 1, -1, 1, 1, -1, 1, 1]
    assert sheet[0].tolist()[5] == [1, 1, 0, 1, 1, 1, 1, 1]


def test_pixels_are_bytes(tmp_path: Path) -> None:
    save_picture(torch.tensor([-1.0, 0.0, 1.0, 7.0]).expand(3, 1, 4), tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as picture:
        assert np.asarray(picture)[0, :, 0].tolist() == [0, 128, 255, 255]


def test_what_cannot_be_drawn_is_said(relic: FinishedRun, alone: FinishedRun, tmp_path: Path) -> None:
    out = tmp_path / "grid.png"
    for run, kind, client, sentence in (
        (relic, "global", 1, "belongs to no client"),
        (relic, None, 3, "has clients 0 to 2, not 3"),
        (alone, None, None, "every client has a word of its own"),
    ):
        with pytest.raises(PromptFedError, match=sentence):
            generate(run, Sampler(count=1), out, kind=kind, client=client)  # type: ignore[arg-type]
    with pytest.raises(PromptFedError, match="has the words of rounds 0 to 2, not of round 3"):
        generate(relic, Sampler(count=1), out, rounds=(3,))
    with pytest.raises(PromptFedError, match="Only the global word is kept"):
        generate(relic, Sampler(count=1), out, client=1, rounds=(1,))
    with pytest.raises(PromptFedError, match="does not end like a picture file"):
        generate(relic, Sampler(count=1, steps=0), tmp_path / "grid.nothing")  # said before anything is drawn
    with pytest.raises(PromptFedError, match="--guidance must be a finite number, not nan"):
        Sampler(guidance=float("nan"))
    with pytest.raises(PromptFedError, match='Unknown device "foo"'):
        open_run(relic.folder, "foo")
    with pytest.raises(PromptFedError, match="is a run of fedavg, which learns no word"):
        global_word(open_run(classified("fedavg", tmp_path / "other")))


def test_only_finished_runs_are_opened(relic: FinishedRun, tmp_path: Path) -> None:
    with pytest.raises(PromptFedError, match="is not a run folder"):
        open_run(tmp_path)
    (tmp_path / "recipe.toml").write_text((relic.folder / "recipe.toml").read_text())
    with pytest.raises(PromptFedError) as caught:
        open_run(tmp_path)
    assert str(caught.value) == f"{tmp_path} is not finished; resume it with promptfed run --resume {tmp_path}."
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(PromptFedError, match="has no checkpoint"):
        open_run(tmp_path)


def test_the_command(relic: FinishedRun, tmp_path: Path) -> None:
    out = tmp_path / "grid.png"
    done = promptfed("generate", relic.folder, "an oil painting of {}", "--client", 1, "--out", out, "--count", 2)
    assert (done.code, done.err) == (0, "")
    assert done.out == f"{out}: 2 pictures of client 1\n"
    assert out.is_file()
