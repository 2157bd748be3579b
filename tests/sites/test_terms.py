"""A site's owner has terms: a recipe beyond them is refused before anything is read or trained."""

from pathlib import Path

import pytest

from promptfed.core.errors import PromptFedError
from promptfed.sites import coordinator, wire
from promptfed.sites.terms import FILE, Limits, Terms, read_terms
from promptfed.sites.wire import Message, Refused
from support.faults import ignore
from support.three_sites import begin, exchange, recipe, workers

STRICT = """
methods = ["fedavg", "pfedpg"]

[guards]
clip = 1.0
noise = 4.0
delta = 1e-5
budget = 8.0
secure = true
"""
KEPT = (
    "guards.clip=0.5",
    "guards.noise=4",
    "guards.budget=8",
    "guards.secure=true",
    "guards.entropy=system",
)


def written(folder: Path, text: str) -> Path:
    (folder / FILE).write_text(text)
    return folder / FILE


def test_what_is_within_the_terms_is_allowed(tmp_path: Path) -> None:
    terms = read_terms(written(tmp_path, STRICT))
    assert terms == Terms(("fedavg", "pfedpg"), guards=Limits(1.0, 4.0, 1e-5, 8.0, secure=True))
    terms.check(recipe("fedavg", *KEPT))
    terms.check(recipe("fedavg", *KEPT, "guards.noise=9", "guards.delta=1e-6", "guards.budget=2"))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("guards.secure=false",), "guards.secure=true"),
        (("guards.noise=3.9",), "guards.noise=4 at least, not 3.9"),
        (("guards.place=central",), "noise at the site, not guards.place=central"),
        (("guards.clip=2",), "guards.clip=1 at most, not 2"),
        (("guards.budget=0",), "guards.budget=8 at most, not 0"),
        (("guards.budget=9",), "guards.budget=8 at most, not 9"),
        (("guards.delta=1e-4",), "guards.delta=1e-05 at most, not 0.0001"),
    ],
)
def test_what_is_beyond_them_is_named(words: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    terms = read_terms(written(tmp_path, STRICT))
    with pytest.raises(Refused, match=f"its owner's terms ask for {sentence}"):
        terms.check(recipe("fedavg", *KEPT, *words))


def test_another_method_is_refused() -> None:
    with pytest.raises(Refused, match="terms allow fedper, pfedpg, not fedavg"):
        Terms(("fedper", "pfedpg")).check(recipe("fedavg"))
    Terms().check(recipe("fedavg"))  # who asks for nothing refuses nothing


@pytest.mark.parametrize(
    ("terms", "words", "sentence"),
    [
        (Terms(backbones=("vit",)), (), "allow vit, not cnn"),
        (Terms(backbones=("vit",)), ("backbone.name=vit", "backbone.weights=facebook/dino"), "not vit:facebook/dino"),
        (Terms(split="test"), ("evaluate.split=val",), "ask for evaluate.split=test, not val"),
        (Terms(max_rounds=2), (), "allow 2 rounds, not 3"),
        (Terms(max_rounds=3), ("newcomers=1", "join_rounds=2"), "allow 3 rounds, not 5"),
    ],
)
def test_what_is_trained_and_tested_can_be_fixed(terms: Terms, words: tuple[str, ...], sentence: str) -> None:
    method = "pfedpg" if "backbone.name=vit" in words else "fedavg"
    with pytest.raises(Refused, match=f"its owner's terms {sentence}|{sentence}$"):
        terms.check(recipe(method, *words))


def test_backbones_on_the_list_are_allowed() -> None:
    terms = Terms(backbones=("cnn", "vit", "vit:facebook/dino"), split="test", max_rounds=3)
    terms.check(recipe("fedavg"))
    terms.check(recipe("pfedpg"))
    terms.check(recipe("pfedpg", "backbone.weights=facebook/dino"))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("backbones = ['vitt']", 'Unknown backbone "vitt" in .*; did you mean "vit"?'),
        ("evaluation = 'vague'", "evaluation"),
        ("min_test = -1", "min_test"),
        ("method = ['fedavg']", 'Unknown key "method" in .*; did you mean "methods"?'),
        ("methods = ['fedavgg']", 'Unknown method "fedavgg" in .*; did you mean "fedavg"?'),
        ("methods = 'fedavg'", "methods"),
        ("[guards]\nnoize = 1", 'Unknown key "noize" in .*; did you mean "noise"?'),
        ("[guards]\nnoise = -1", "guards.noise"),
        ("[guards]\nsecure = 1", "guards.secure"),
        ("guards = 4", "guards in .* is not a table"),
        ("methods = [", "are not valid TOML"),
    ],
)
def test_a_term_that_would_protect_nobody_is_refused(text: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(PromptFedError, match=sentence):
        read_terms(written(tmp_path, text))


def test_terms_that_are_not_there_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(PromptFedError, match="cannot be read: No such file"):
        read_terms(tmp_path / FILE)


def test_a_site_answers_no_request_beyond_its_terms(tmp_path: Path) -> None:
    north = workers(tmp_path)["north"]
    written(north.home, "[guards]\nnoise = 4.0")
    head = {"run": "x", "round": 0, "nonce": "0", "kind": "hello", "site": "north", "client": 0, "classes": []}
    bare = Message(head | {"recipe": recipe("fedavg").to_toml()}, {})
    told = wire.unpack(north.answer(wire.pack(bare)), 2**30)
    assert told.head["error"] == "its owner's terms ask for guards.noise=4 at least, not 0"
    assert told.tree == {}
    noisy = recipe("fedavg", "guards.clip=1", "guards.noise=4", "guards.entropy=system")
    again = Message(head | {"run": "y", "recipe": noisy.to_toml()}, {})
    assert "error" not in wire.unpack(north.answer(wire.pack(again)), 2**30).head


def test_broken_terms_let_nothing_through(tmp_path: Path) -> None:
    north = workers(tmp_path)["north"]
    written(north.home, "secret = 'the owner typed this'")
    head = {"run": "x", "round": 0, "nonce": "0", "kind": "hello", "site": "north", "client": 0, "classes": []}
    answer = north.answer(wire.pack(Message(head | {"recipe": recipe("fedavg").to_toml()}, {})))
    assert wire.unpack(answer, 2**30).head["error"] == "PromptFedError; the site's own log has the details"


def test_the_coordinator_is_told(tmp_path: Path) -> None:
    out, federation = begin(tmp_path, "fedavg", "rounds=1")
    (tmp_path / "home" / "south").mkdir(parents=True)
    written(tmp_path / "home" / "south", "methods = ['pfedpg']")
    with pytest.raises(PromptFedError, match=r"south.*terms allow pfedpg, not fedavg"):
        coordinator.conduct(out, federation, exchange(tmp_path), ignore)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"clients": 10**9}, "the recipe has 1,000,000,000 clients, and no federation has more than 10,000 sites"),
        ({"client": 10**9}, "the request does not say which client this site is"),
        ({"client": "0"}, "the request does not say which client this site is"),
    ],
)
def test_absurd_numbers_of_clients_are_refused_before_memory_is_taken(
    change: dict[str, object], sentence: str, tmp_path: Path
) -> None:
    text = recipe("fedavg").to_toml().replace("clients = 3", f"clients = {change.pop('clients', 3)}")
    head = {"run": "x", "round": 0, "nonce": "0", "kind": "hello", "site": "north", "client": 0, "classes": []}
    asked = Message(head | {"recipe": text} | change, {})
    answer = wire.unpack(workers(tmp_path)["north"].answer(wire.pack(asked)), 2**30)
    assert answer.head["error"] == sentence
