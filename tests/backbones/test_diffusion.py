"""A frozen text-to-image model: its prompts, its denoiser and its drawings are diffusers' own."""

import contextlib
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from promptfed.backbones import pipeline
from promptfed.backbones.cached import Cached
from promptfed.backbones.diffusion import Diffusion, LoadedDiffusion
from promptfed.backbones.pipeline import read_prompts, word_pieces
from promptfed.core.errors import PromptFedError
from promptfed.core.method import Task, text_to_image
from promptfed.core.prompts.templates import OBJECT
from promptfed.methods.relic import RELIC
from support.tiny_diffusion import CPU, SIDE, loaded, saved, tiny


@pytest.fixture(scope="module")
def net() -> LoadedDiffusion:
    return loaded()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved(tmp_path_factory.mktemp("models") / "tiny", prediction="v_prediction")


def images(*lead: int) -> torch.Tensor:
    return torch.rand(*lead, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0)) * 2 - 1


# -- images -----------------------------------------------------------------------------------------------------------


def test_a_row_holds_both_latents_and_visual_features(net: LoadedDiffusion) -> None:
    x = images(2, 3)
    row = net.features({}, x)
    latents, visual = net.unpack(row)
    assert (net.latent_shape, net.visual_width) == ((4, 4, 4), 64)
    assert (latents.shape, visual.shape) == ((2, 3, 2, 4, 4, 4), (2, 3, 64))
    vae = net.parts.vae
    for number, image in enumerate((x, x.flip(-1))):
        expected = vae.encode(image.flatten(0, 1)).latent_dist.mode() * vae.config.scaling_factor
        torch.testing.assert_close(latents[:, :, number].flatten(0, 1), expected)
    torch.testing.assert_close(visual, latents[:, :, 0].flatten(-3))  # 4 × 4 latents are their own means


def test_images_are_resized_to_the_models_size(net: LoadedDiffusion) -> None:
    assert net.features({}, torch.rand(2, 3, 20, 12)).shape == (2, 2 * 64 + 64)
    twice = Diffusion((3, SIDE, SIDE), 2, size=16).loaded(net.parts, CPU)
    assert twice.latent_shape == (4, 8, 8)
    assert twice.unpack(twice.features({}, images(2)))[0].shape == (2, 2, 4, 8, 8)


def test_an_impossible_size_is_refused(net: LoadedDiffusion) -> None:
    with pytest.raises(PromptFedError, match=r"backbone\.size=10 must be a multiple of 4 pixels"):
        Diffusion((3, SIDE, SIDE), 2, size=10).loaded(net.parts, CPU)


def test_fingerprint_is_that_of_what_sees_images(net: LoadedDiffusion) -> None:
    assert net.fingerprint == loaded().fingerprint
    assert net.fingerprint != loaded(seed=1).fingerprint
    assert net.fingerprint != Diffusion((3, SIDE, SIDE), 2, size=16).loaded(net.parts, CPU).fingerprint


# -- text -------------------------------------------------------------------------------------------------------------


def test_every_known_word_is_one_token() -> None:
    tokenizer = tiny().tokenizer
    for word in {word for template in OBJECT for word in template.replace("{}", "").replace("-", " ").split()}:
        assert len(tokenizer(word, add_special_tokens=False).input_ids) == 1, word


def test_pieces_by_hand() -> None:
    vocabulary, merges = word_pieces(["ab abc"])
    assert merges == [("b", "c</w>"), ("a", "bc</w>"), ("a", "b</w>")]
    assert len(vocabulary) == 2 * 94 + 3 + 2


def test_words_and_templates_as_embeddings(net: LoadedDiffusion) -> None:
    table = net.parts.text.get_input_embeddings().weight
    number = net.parts.tokenizer.convert_tokens_to_ids
    assert net.word_width == 16
    assert net.word("flower").equal(table[number("flower</w>")])
    photo = torch.stack([table[number(f"{word}</w>")] for word in ("a", "photo", "of", "my")])
    torch.testing.assert_close(net.context(["a photo of my {}", "{}"]), torch.stack([photo.mean(0), torch.zeros(16)]))


def test_an_initialiser_must_be_one_token(net: LoadedDiffusion) -> None:
    with pytest.raises(PromptFedError, match=r'initialiser="clematis" is \d tokens .* must be one, as "thing" is\.'):
        net.word("clematis")


def test_more_steps_than_the_model_knows_are_refused(net: LoadedDiffusion) -> None:
    states, _ = net.encode(["{}"], torch.zeros(1, dtype=torch.long), net.word("flower")[None])
    for steps in (0, net.times + 1):
        with pytest.raises(PromptFedError, match=f"{steps} steps .* this model knows 1 to {net.times}"):
            net.sample(states, torch.zeros(1, *net.latent_shape), steps=steps)


def test_prompts_by_hand() -> None:
    tokenizer = tiny().tokenizer
    prompts = read_prompts(tokenizer, ["my {} photo"], 2, CPU)
    names = tokenizer.convert_ids_to_tokens(prompts.tokens[0].tolist())
    assert names[:2] + names[4:6] == ["<|startoftext|>", "my</w>", "photo</w>", "<|endoftext|>"]
    assert prompts.slots[0].nonzero().tolist() == [[2, 0], [3, 1]]
    assert prompts.words[0].nonzero().flatten().tolist() == [1, 4]


@pytest.mark.parametrize(
    ("template", "message"),
    [("a photo", "has 0"), ("{} {}", "has 2"), ("a photo of a {}" * 1 + " photo" * 20, "longer than 20 tokens")],
)
def test_impossible_templates_are_refused(template: str, message: str) -> None:
    with pytest.raises(PromptFedError, match=message):
        read_prompts(tiny().tokenizer, [template], 1, CPU)


@pytest.mark.parametrize("without_numbers", [FakeTensorMode(allow_non_fake_inputs=True), torch.device("meta")])
def test_prompts_asked_for_without_numbers_are_not_kept(without_numbers: Any) -> None:
    net, template = loaded(), ["a photo of a {}"]
    with contextlib.suppress(RuntimeError, NotImplementedError), without_numbers:  # as a model's size is estimated
        net.context(template)
    assert net.context(template).equal(loaded().context(template))


def test_a_known_word_in_place_of_the_pseudo_word_is_that_word(net: LoadedDiffusion) -> None:
    chosen = torch.tensor([[0, 9], [16, 26]])
    states, own = net.encode(OBJECT, chosen, net.word("flower")[None])
    texts = [OBJECT[number].format("flower") for number in chosen.flatten().tolist()]
    tokens = net.parts.tokenizer(texts, padding="max_length", return_tensors="pt").input_ids
    expected = net.parts.text(tokens).last_hidden_state
    torch.testing.assert_close(states.flatten(0, 1), expected)
    place = (tokens == net.parts.tokenizer.convert_tokens_to_ids("flower</w>")).nonzero()[:, 1]
    torch.testing.assert_close(own.flatten(0, 1), expected[torch.arange(4), place])


def test_words_of_several_clients_in_one_batch(net: LoadedDiffusion) -> None:
    words = torch.randn(2, 3, 2, 16, generator=torch.Generator().manual_seed(0))
    chosen = torch.tensor([[0, 1, 2], [3, 4, 5]])
    states, own = net.encode(OBJECT, chosen, words)
    assert (states.shape, own.shape) == ((2, 3, 20, 16), (2, 3, 16))
    for client in range(2):
        alone, its_own = net.encode(OBJECT, chosen[client], words[client])
        torch.testing.assert_close(states[client], alone)
        torch.testing.assert_close(own[client], its_own)


# -- denoising --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])
def test_noise_is_diffusers_own(prediction: str) -> None:
    import diffusers

    model = loaded(prediction=prediction)
    latents, noise, time = (
        torch.randn(2, 3, 4, 4, 4),
        torch.randn(2, 3, 4, 4, 4),
        torch.tensor([[0, 50, 99], [1, 2, 3]]),
    )
    noisy, wanted = model.noised(latents, noise, time)
    own = diffusers.DDPMScheduler.from_config(model.parts.scheduler.config)
    flat = latents.flatten(0, 1), noise.flatten(0, 1), time.flatten()
    torch.testing.assert_close(noisy.flatten(0, 1), own.add_noise(*flat))
    torch.testing.assert_close(
        wanted.flatten(0, 1), noise.flatten(0, 1) if prediction == "epsilon" else own.get_velocity(*flat)
    )


def test_a_stack_is_denoised_as_one_batch(net: LoadedDiffusion) -> None:
    noisy, time = torch.randn(2, 3, 4, 4, 4), torch.tensor([[0, 50, 99], [1, 2, 3]])
    states = torch.randn(2, 3, 20, 16)
    found = net.denoise(noisy, time, states)
    alone = torch.stack([net.denoise(noisy[client], time[client], states[client]) for client in range(2)])
    torch.testing.assert_close(found, alone, rtol=1e-4, atol=1e-5)


def test_many_images_are_denoised_in_parts(net: LoadedDiffusion, monkeypatch: pytest.MonkeyPatch) -> None:
    noisy, time, states = torch.randn(5, 4, 4, 4), torch.arange(5), torch.randn(5, 20, 16)
    whole = net.denoise(noisy, time, states)
    monkeypatch.setattr("promptfed.backbones.diffusion.LATENTS", 32)  # two images of 4 × 4
    with torch.no_grad():
        torch.testing.assert_close(net.denoise(noisy, time, states), whole, rtol=1e-4, atol=1e-5)


def test_only_the_word_gets_a_gradient(net: LoadedDiffusion) -> None:
    word = net.word("flower")[None].clone().requires_grad_()
    states, _ = net.encode(OBJECT, torch.tensor([0]), word)
    net.denoise(torch.randn(1, 4, 4, 4), torch.tensor([50]), states).square().sum().backward()
    assert word.grad is not None
    assert word.grad.abs().sum() > 0
    assert not any(p.requires_grad for part in (net.parts.text, net.parts.unet) for p in part.parameters())


@pytest.mark.parametrize("guidance", [1.0, 3.0])
def test_drawings_are_those_of_diffusers_pipeline(
    folder: str, guidance: float, caplog: pytest.LogCaptureFixture
) -> None:
    import diffusers

    with caplog.at_level(logging.CRITICAL):
        parts: dict[str, Any] = {"safety_checker": None, "low_cpu_mem_usage": False, "torch_dtype": torch.float32}
        whole = diffusers.StableDiffusionPipeline.from_pretrained(folder, **parts)
    whole.set_progress_bar_config(disable=True)
    model = Diffusion((3, SIDE, SIDE), 2, folder).to(CPU)
    start = torch.randn(2, 4, 4, 4, generator=torch.Generator().manual_seed(0))
    states, _ = model.encode(OBJECT[:1], torch.zeros(2, dtype=torch.long), model.word("flower")[None])
    drawn = model.sample(states, start, steps=4, guidance=guidance)
    expected = whole(
        "a photo of a flower",
        num_images_per_prompt=2,
        latents=start,
        num_inference_steps=4,
        guidance_scale=guidance,
        output_type="pt",
        height=SIDE,
        width=SIDE,
    ).images
    torch.testing.assert_close(drawn / 2 + 0.5, expected, rtol=1e-4, atol=1e-4)


# -- files ------------------------------------------------------------------------------------------------------------


def test_what_is_written_is_read_in_half_precision(folder: str) -> None:
    model, original = Diffusion((3, SIDE, SIDE), 2, folder).to(CPU), tiny(prediction="v_prediction")
    for name, value in original.unet.state_dict().items():
        assert model.parts.unet.state_dict()[name].equal(value.half().float())
    assert model.parts.scheduler.config.prediction_type == "v_prediction"
    assert model.to(CPU) is model


def test_a_clip_image_encoder_gives_the_visual_features(folder: str, tmp_path: Path) -> None:
    import transformers

    config = transformers.CLIPVisionConfig(
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        image_size=12,
        patch_size=4,
        projection_dim=5,
    )
    transformers.CLIPVisionModelWithProjection(config).save_pretrained(tmp_path)
    model = Diffusion((3, SIDE, SIDE), 2, folder, vision=str(tmp_path)).to(CPU)
    _, visual = model.unpack(model.features({}, images(3)))
    assert visual.shape == (3, model.visual_width) == (3, 5)
    torch.testing.assert_close(visual.norm(dim=-1), torch.ones(3))


def test_a_folder_without_a_part_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer").mkdir()
    with pytest.raises(
        PromptFedError, match="is not a text-to-image model in diffusers' layout: it has no text_encoder/"
    ):
        Diffusion((3, SIDE, SIDE), 2, str(tmp_path)).to(CPU)


def test_a_damaged_part_is_refused(tmp_path: Path) -> None:
    place = saved(tmp_path / "model")
    (tmp_path / "model" / "unet" / "diffusion_pytorch_model.safetensors").write_bytes(b"nothing")
    with pytest.raises(PromptFedError, match=r"unet cannot be read as a UNet2DConditionModel: .*\.$"):
        Diffusion((3, SIDE, SIDE), 2, place).to(CPU)


def test_other_predictions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PromptFedError, match="predicts sample; only epsilon or v_prediction is supported"):
        Diffusion((3, SIDE, SIDE), 2, saved(tmp_path / "model", prediction="sample")).to(CPU)


def test_without_diffusers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "diffusers", None)
    with pytest.raises(PromptFedError, match=r"needs the \[diffusion\] extra"):
        pipeline.libraries()


def test_it_classifies_nothing(net: LoadedDiffusion) -> None:
    for use in (lambda: net({}, images(1)), lambda: net.token_width, lambda: net.layers):
        with pytest.raises(PromptFedError, match="draws images and does not classify"):
            use()
    assert net.draws() == {}


# -- with a method ----------------------------------------------------------------------------------------------------


def test_relic_reads_cached_rows(net: LoadedDiffusion) -> None:
    task = Task(Cached(net), ("flower",), 1)
    assert text_to_image(task).unpack(net.features({}, images(2)))[1].shape == (2, 64)
    method = RELIC(first=3)
    params = method.init_server(task, lambda purpose, shared=False: torch.Generator()) | {}
    batch = {
        "x": net.features({}, images(2)),
        "mask": torch.ones(2),
        "noise": torch.randn(2, 4, 4, 4),
        "time": torch.tensor([0.1, 0.9]),
        "template": torch.tensor([0.0, 0.9]),
    }
    found = method.evaluate(task, params, batch)
    assert found["correct"].item() == 0  # it is still the word it started from
    assert found["count"].item() == 2
