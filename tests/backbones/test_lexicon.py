"""Texts beside the classes' own: sentences, words, and other names for the same towers, against transformers' CLIP."""

import contextlib
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from promptfed.backbones.cached import Cached
from promptfed.backbones.clip import CLIP, LoadedCLIP
from promptfed.backbones.lexicon import Hashed, Lexicon
from promptfed.core.errors import PromptFedError
from promptfed.core.method import Task, dual, renamed
from promptfed.core.prompts.text import said
from support.tiny_clip import clip, saved
from support.tiny_clip import said as tokenised
from support.tiny_hub import Model
from support.toy_clip import NAMES, NET, SHAPE, assert_close, normal

CPU = torch.device("cpu")
TEXTS = ["a red tree", "dogs, cats and 9 trees in a car.", "a photo of a cat."]
OTHERS = ("tree", "cat", "old_car", "a very long name of a dog")


def loaded(folder: Path, model: Model | None = None) -> LoadedCLIP:
    return CLIP(SHAPE, len(NAMES), NAMES, saved(model or clip(), folder)).to(CPU)


def test_features_of_sentences_are_those_of_transformers(tmp_path: Path) -> None:
    model = clip()
    net = loaded(tmp_path, model)
    with torch.no_grad():
        wanted = torch.nn.functional.normalize(model.get_text_features(tokenised(TEXTS)).pooler_output, dim=-1)
    found = net.sentences(TEXTS)
    assert_close(found, wanted)
    assert not found.requires_grad
    assert net.sentences(tuple(TEXTS)) is found  # a recorded step reads it again from where it is
    assert_close(net.sentences(TEXTS[2:])[0], net.zero_shot[0])


@pytest.mark.parametrize("without_numbers", [FakeTensorMode(allow_non_fake_inputs=True), torch.device("meta")])
def test_sentences_asked_for_without_numbers_are_not_kept(without_numbers: Any, tmp_path: Path) -> None:
    net = loaded(tmp_path)
    fresh = CLIP(SHAPE, len(NAMES), NAMES, str(tmp_path)).to(CPU)
    with contextlib.suppress(RuntimeError, NotImplementedError), without_numbers:  # as a model's size is estimated
        net.sentences(TEXTS)
    assert net.sentences(TEXTS).equal(fresh.sentences(TEXTS))


@pytest.mark.parametrize("without_numbers", [FakeTensorMode(allow_non_fake_inputs=True), torch.device("meta")])
def test_an_opening_asked_for_without_numbers_is_not_kept(without_numbers: Any, tmp_path: Path) -> None:
    net = loaded(tmp_path)
    fresh = CLIP(SHAPE, len(NAMES), NAMES, str(tmp_path)).to(CPU)
    with contextlib.suppress(RuntimeError, NotImplementedError), without_numbers:
        net.text("a red photo of", per_class=False)
    assert net.text("a red photo of", per_class=False).equal(fresh.text("a red photo of", per_class=False))


def test_words_are_rows_of_the_embedding(tmp_path: Path) -> None:
    model = clip()
    net = loaded(tmp_path, model)
    with torch.no_grad():
        wanted = model.text_model.embeddings.token_embedding(tokenised(["a red photo of a"])[0, 1:6])
    found = net.words("a red photo of a")
    assert found.equal(wanted)
    assert net.words("").shape == (0, 12)
    context = net.words("red photo of")
    assert_close(net.text(context, per_class=False)[0], net.sentences(["red photo of cat."])[0])


@pytest.mark.parametrize("per_class", [False, True])
def test_other_names_for_the_same_towers(per_class: bool, tmp_path: Path) -> None:
    net, context = loaded(tmp_path), normal(2, *((4,) if per_class else ()), 3, 12)
    fresh = CLIP(SHAPE, 4, OTHERS, str(tmp_path)).to(CPU)
    found = net.named(OTHERS)
    assert found == fresh
    assert found.zero_shot.equal(fresh.zero_shot)
    assert found.text(context, per_class=per_class).equal(fresh.text(context, per_class=per_class))
    assert found.frozen["block0.qkv.weight"] is net.frozen["block0.qkv.weight"]
    assert found.named(NAMES).zero_shot.equal(net.zero_shot)
    moved = found.to(CPU)
    assert moved.zero_shot.equal(fresh.zero_shot)


def test_a_renamed_one_can_be_pickled_and_knows_its_words() -> None:
    again = pickle.loads(pickle.dumps(NET.named(OTHERS)))
    assert again.names == OTHERS
    assert again.words("cat").equal(NET.words("cat"))


def test_a_task_with_other_classes() -> None:
    whole = Task(NET, NAMES, 5, rounds=7)
    whole.captured["step"] = "recorded for three classes"
    other = renamed(whole, OTHERS)
    assert (other.classes, other.num_clients, other.rounds, other.captured) == (OTHERS, 5, 7, {})
    assert dual(other).zero_shot.shape == (4, 10)
    features = normal(6, 10)
    cached = renamed(Task(Cached(NET), NAMES, 5), OTHERS)
    assert dual(cached).zero_shot.equal(dual(other).zero_shot)
    assert cached.backbone.features({}, features) is features


def test_class_names_in_templates(tmp_path: Path) -> None:
    net = loaded(tmp_path)
    task = Task(net, NAMES, 1)
    assert_close(said(task, "a photo of a {}."), net.zero_shot)
    assert_close(said(task, "{}")[1], net.sentences(["red dog"])[0], 1e-6)
    both = said(task, "a photo of a {}.", "{}")
    wanted = torch.nn.functional.normalize((said(task, "a photo of a {}.") + said(task, "{}")) / 2, dim=-1)
    assert_close(both, wanted, 0)
    with pytest.raises(PromptFedError, match=r'^The template "a photo" has no place for a class name; write \{\}'):
        said(task, "a photo")


def test_a_text_without_a_place() -> None:
    lexicon = Lexicon(Hashed(10), normal(12, 4), 10, 11)
    # start, six words and the end are eight tokens
    assert lexicon.spell(["one two three four five six"], 8)["ending"].shape == (1, 7, 4)
    with pytest.raises(PromptFedError, match=r'^The text "1 2 3 4 5 6 7" has 9 tokens .* has positions for 8\.$'):
        lexicon.spell(["no", "1 2 3 4 5 6 7"], 8)


def test_what_follows_the_end_is_never_looked_at() -> None:
    lexicon = Lexicon(Hashed(10), normal(12, 4), 10, 11)
    words = lexicon.spell(["one", "one two three"], 8)
    assert words["end"].tolist() == [1, 3]
    assert words["ending"][0, 1].equal(lexicon.token[11])
    assert words["start"].equal(lexicon.token[10])
