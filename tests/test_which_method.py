"""The decision page: every accuracy is one that advice rests on, and stands on the page that its line links to."""

import re
from pathlib import Path

import pytest

from promptfed.runs import config, registry
from promptfed.runs.evidence import EVIDENCE, SENT

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "which-method.md").read_text(encoding="utf-8")
BLOCKS = [block for block in re.split(r"\n\n|\n(?=[-|])", PAGE) if re.search(r"\d\d\.\d\d\b", block)]


def test_every_accuracy_is_evidence_and_all_evidence_is_used() -> None:
    told = set(re.findall(r"\b\d\d\.\d\d\b", PAGE))
    known = {f"{one.percent:.2f}" for one in EVIDENCE.values()}
    assert told <= known
    # the two at another rate only say which rate to begin with
    assert known - told == {f"{EVIDENCE[name].percent:.2f}" for name in ("people/rate", "office/rate")}


@pytest.mark.parametrize("block", BLOCKS)
def test_what_a_passage_says_stands_on_a_page_that_it_links_to(block: str) -> None:
    linked = "".join((DOCS / page).read_text(encoding="utf-8") for page in re.findall(r"\((results/\w+\.md)", block))
    assert linked
    for number in re.findall(r"\b\d\d\.\d\d\b", block):
        assert number in linked


def test_what_is_sent() -> None:
    assert set(re.findall(r"\b\d,\d{3}(?:,\d{3})?\b", PAGE)) == {f"{count:,}" for count in SENT.values()}


@pytest.mark.parametrize("order", [("shares", "head", "alone"), ("shares", "prompt", "alone", "fedavg")])
def test_the_order_that_it_argues_from(order: tuple[str, ...]) -> None:
    for setting in ("people", "office"):
        found = [EVIDENCE[f"{setting}/{row}"].percent for row in order]
        assert found == sorted(found, reverse=True)


def test_what_it_says_of_the_whole_tower() -> None:
    assert EVIDENCE["shops/whole"].percent > max(EVIDENCE[f"shops/{row}"].percent for row in ("head", "fedapt"))
    assert EVIDENCE["lit/whole"].percent < min(
        EVIDENCE[f"lit/{row}"].percent for row in ("head", "promptfl", "fedclip", "fedapt")
    )


def test_what_it_names_is_there() -> None:
    assert {"field/s3-novel", "field/shops-novel"} <= set(registry.tables())
    for words in re.findall(r"`((?:pfedvpt|promptfl|fedkgcoop|head-probe|vit-full)[^`]*)`", PAGE):
        method, *keys = words.split()
        assert config.load_one(method, keys).method["name"] == method
