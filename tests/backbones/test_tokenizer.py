"""Our byte-pair encoding against that of transformers."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptfed.backbones.tokenizer import END, START, Tokenizer, letters, read_tokenizer, words
from promptfed.core.errors import PromptFedError
from support.tiny_clip import MERGES, VOCABULARY, theirs, write_tokenizer

OURS = Tokenizer(VOCABULARY, {tuple(merge.split()): rank for rank, merge in enumerate(MERGES)})  # type: ignore[misc]
THEIRS = theirs()
LETTERS = "abcdeghoprtvABCT '.,-/_!?#0129²½Äéßñ東京🙂\u0301İΣςﬁ\t\n\xa0\u2003\x85"


def test_pieces_by_hand() -> None:
    assert OURS.pieces("photo") == ["photo</w>"]
    assert OURS.pieces("cats") == ["cat", "s</w>"]
    assert OURS.pieces("cat") == ["cat</w>"]
    assert OURS.pieces("bat") == ["b", "at</w>"]
    assert OURS("dog.") == [VOCABULARY["dog</w>"], VOCABULARY[".</w>"]]
    assert OURS("") == OURS(" \n") == []


def test_words_by_hand() -> None:
    assert list(words("T-shirt/top")) == ["t", "-", "shirt", "/", "top"]
    assert list(words("It's 20 o'clock!?")) == ["it", "'s", "2", "0", "o", "'", "clock", "!?"]


def test_every_byte_has_a_letter_of_its_own() -> None:
    assert len(set(letters().values())) == 256
    assert (letters()[ord("a")], letters()[ord(" ")], letters()[0]) == ("a", "Ġ", "Ā")


@pytest.mark.parametrize(
    "text", ["a photo of a cat.", "The Tree's TREES, they'll'd", "Σίσυφος ΣΑΣ", "e\u0301t\u0113", ""]
)
def test_known_texts_are_those_of_transformers(text: str) -> None:
    assert [VOCABULARY[START], *OURS(text), VOCABULARY[END]] == THEIRS(text)["input_ids"]


@given(st.text(LETTERS, max_size=20))
def test_texts_are_those_of_transformers(text: str) -> None:
    assert OURS(text) == THEIRS(text)["input_ids"][1:-1]


def test_both_layouts_of_the_hub_give_the_same(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    write_tokenizer(old)
    THEIRS.save_pretrained(new)
    assert not (new / "vocab.json").exists()
    assert read_tokenizer(old) == read_tokenizer(new) == OURS


def test_what_is_not_in_the_vocabulary_is_the_end_token() -> None:
    small = Tokenizer({"a</w>": 0, START: 1, END: 2}, {})
    assert small("a ab") == [0, 2, 2]


def test_torn_files(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(PromptFedError, match=r"tokenizer\.json is not a CLIP vocabulary"):
        read_tokenizer(tmp_path)
    vocabulary = {START: 0, END: 1}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary, "merges": ["a b c"]}}))
    with pytest.raises(PromptFedError, match=r"a merge that is not a pair: 'a b c'\.$"):
        read_tokenizer(tmp_path)
