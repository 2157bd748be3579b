"""What a notebook shows of a run."""

import re
from html.parser import HTMLParser

import promptfed
from promptfed.results import read_run
from promptfed.results.report.notebook import card, describe
from support.reports import MakeRun


class Tags(HTMLParser):
    """Checks that every element is closed, and collects the names."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)
        self.seen.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_card_is_a_table_and_a_curve_that_need_nothing_else(make_run: MakeRun) -> None:
    shown = card(read_run(make_run("one", rounds=4)))
    tags = Tags()
    tags.feed(shown)
    assert tags.open == []
    assert {"table", "svg", "style", "path"} <= set(tags.seen)
    assert "<td>80.50</td><td>76.00</td>" not in shown
    assert "<td>79.50</td><td>76.00</td>" in shown, "the mean of 76, 80, 84 and 78 percent, and the worst"
    assert not re.search(r"https?://|<script|@import|src=", shown)
    rules = shown.split("<style>")[1].split("</style>")[0].strip().splitlines()
    assert all(rule.startswith(".promptfed-run ") for rule in rules), "nothing else on the page changes"


def test_a_card_is_escaped(make_run: MakeRun) -> None:
    shown = card(read_run(make_run("<one>", rounds=2, dataset="<script>alert(1)</script>", method="a<b")))
    assert "<script" not in shown
    assert "a&lt;b" in shown
    assert "&lt;one&gt;" in shown


def test_a_line_says_how_far_and_how_good(make_run: MakeRun) -> None:
    folder = make_run("one", rounds=4)
    assert describe(read_run(folder)) == (
        f"{folder}: pfedpt on fashion-shops, seed 0, 4 rounds, mean 79.50 %, worst client 76.00 %"
    )


def test_a_loaded_run_shows_itself(make_run: MakeRun) -> None:
    run = promptfed.load(make_run("one", rounds=2))
    assert run._repr_html_() == card(run.details)
    assert run._repr_markdown_().startswith("| method | mean |")
    assert repr(run) == f"<{describe(run.details)}>"
