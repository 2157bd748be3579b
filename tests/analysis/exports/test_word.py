"""A learned word as a file: diffusers loads it, and its rows are the word's, bit for bit."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from promptfed.analysis.exports.word import export_word
from promptfed.analysis.generate import client_word
from promptfed.backbones.pipeline import libraries
from promptfed.core.errors import PromptFedError
from promptfed.runs.finished import FinishedRun, open_run
from support.command import promptfed
from support.inverted_runs import inverted, painting
from support.tiny_diffusion import tiny


@pytest.fixture(autouse=True, scope="module")
def with_a_painter() -> Iterator[None]:
    with painting():
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return open_run(inverted("relic", tmp_path_factory.mktemp("relic"), "method.vectors=2"))


def test_the_file_holds_the_word_under_its_token(run: FinishedRun, tmp_path: Path) -> None:
    out = tmp_path / "learned_embeds.safetensors"
    word = export_word(run, out, token="<clematis>")
    assert word.equal(run.loop.server["word"])
    found = load_file(out)
    assert list(found) == ["<clematis>"]
    assert (found["<clematis>"].shape, found["<clematis>"].dtype) == ((2, 12), torch.float32)
    assert found["<clematis>"].equal(word)


def test_a_clients_word_is_the_one_of_its_prompt(run: FinishedRun, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "learned_embeds.safetensors"
    word = export_word(run, out, token="<mine>", client=1, prompt="a photo of the {}")
    assert word.equal(client_word(run, 1, "a photo of the {}"))
    assert not word.equal(run.loop.server["word"])
    assert load_file(out)["<mine>"].equal(word)


@pytest.mark.parametrize("vectors", [1, 3])
def test_a_pipeline_of_diffusers_loads_it(
    run: FinishedRun, vectors: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    diffusers, _ = libraries()
    parts = tiny()
    pipe = diffusers.StableDiffusionPipeline(
        parts.vae, parts.text, parts.tokenizer, parts.unet, parts.scheduler, None, None, requires_safety_checker=False
    )
    word = torch.randn(vectors, 16, generator=torch.Generator().manual_seed(0))  # as wide as this model's words
    monkeypatch.setitem(run.loop.server, "word", word)
    export_word(run, tmp_path / "learned_embeds.safetensors", token="<clematis>")
    before = len(pipe.tokenizer)
    pipe.load_textual_inversion(str(tmp_path))
    assert len(pipe.tokenizer) == before + vectors
    names = ["<clematis>", *(f"<clematis>_{number}" for number in range(1, vectors))]
    rows = pipe.text_encoder.get_input_embeddings().weight[pipe.tokenizer.convert_tokens_to_ids(names)]
    assert rows.equal(word)
    prompt = pipe.maybe_convert_prompt("a photo of a <clematis>", pipe.tokenizer)
    assert pipe.tokenizer(prompt).input_ids[-1 - vectors : -1] == pipe.tokenizer.convert_tokens_to_ids(names)


def test_bad_names_are_refused(run: FinishedRun, tmp_path: Path) -> None:
    for token in ("", " ", "two words"):
        with pytest.raises(PromptFedError, match="cannot be a token"):
            export_word(run, tmp_path / "a.safetensors", token=token)
    with pytest.raises(PromptFedError, match=r"must end in \.safetensors"):
        export_word(run, tmp_path / "a.bin", token="<a>")


def test_the_command(run: FinishedRun, tmp_path: Path) -> None:
    out = tmp_path / "learned_embeds.safetensors"
    done = promptfed("export", run.folder, "--out", out, "--client", 0, "--token", "<clematis>")
    assert (done.code, done.err) == (0, "")
    assert done.out == f"{out}: <clematis> has 2 × 12 numbers.\n"
