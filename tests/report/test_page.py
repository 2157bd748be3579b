"""The page: what it says, that it stands alone, and that it is written whole."""

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from promptfed.errors import PromptFedError
from promptfed.report import write_report

MakeRun = Callable[..., Path]
VOID = {"meta", "link", "img", "br", "rect", "circle", "path"}


class Outline(HTMLParser):
    """Collects section ids and text, and complains about tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sections: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "section":
            self.sections.append(dict(attrs)["id"] or "")
        # A bar carries its tooltip inside, so only those that close at once are void.
        if tag not in VOID or tag in ("rect", "circle"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        """All words, single-spaced."""
        return " ".join(" ".join(self.words).split())


def read(path: Path) -> Outline:
    """Parse a written report."""
    return Outline(path.read_text(encoding="utf-8"))


def test_one_run_reports_next_to_itself(make_run: MakeRun) -> None:
    folder = make_run("a", pictures=4)
    path = write_report([folder])
    assert path == folder / "report.html"
    page = read(path)
    figures = ["curves", "clients", "holdings", "prompts", "traffic", "measures"]
    assert page.sections == ["numbers", *figures, "run", "reading"]
    assert "79.50 % best 79.50 % in round 6" in page.text
    assert "76.00 % client 0; p10 76.00 %" in page.text
    assert "61.4 kB 30.7 kB down, 30.7 kB up" in page.text
    assert f"promptfed run {folder / 'recipe.toml'}" in page.text
    assert 'name = "pfedpt"' in page.text
    assert "unfinished" not in page.text


def test_several_runs_report_in_their_common_parent(make_run: MakeRun, tmp_path: Path) -> None:
    dirs = [make_run("x/a"), make_run("x/b", method="fedavg", level=0.7), make_run("y/c", method="pfedpg", level=0.9)]
    path = write_report(dirs)
    assert path == tmp_path / "report.html"
    page = read(path)
    assert "prompts" not in page.sections
    assert "pfedpt, fedavg, pfedpg on fashion-shops" in page.text
    assert "89.50 % best of all: pfedpg, seed 0" in page.text
    assert "<strong>89.50" in path.read_text(encoding="utf-8")


def test_a_method_has_one_colour_everywhere(make_run: MakeRun) -> None:
    text = write_report([make_run("a"), make_run("b", method="fedavg", level=0.7)]).read_text(encoding="utf-8")
    for kind in ("line", "bar", "load down", "load up"):
        found = set(re.findall(rf'class="{kind} +(s\d)"', text))
        assert found == {"s0", "s1"}, kind
    assert re.search(r'class="bar s1"[^>]*><title>fedavg', text)
    assert re.search(r'class="dot s1"><circle[^>]*/><circle[^>]*/><title>fedavg', text)


def test_the_same_folder_twice_is_one_run(make_run: MakeRun) -> None:
    folder = make_run("a")
    assert write_report([folder, folder / "." / ""]) == folder / "report.html"


def test_the_page_is_the_same_each_time(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run("a", pictures=2)
    first, second = (write_report([folder], tmp_path / "out" / name) for name in ("1.html", "2.html"))
    assert first.read_bytes() == second.read_bytes()


def test_the_page_stands_alone(make_run: MakeRun) -> None:
    text = write_report([make_run("a", pictures=2)]).read_text(encoding="utf-8")
    assert not re.search(r'(src|href)="(?!data:)', text)
    assert "http" not in text
    assert "<script" not in text
    assert "@import" not in text
    assert text.count('src="data:image/png;base64,iVBOR') == 2


def test_what_others_wrote_is_escaped(make_run: MakeRun) -> None:
    folder = make_run("a")
    for name in ("recipe.toml", "summary.json", "partition.json"):
        old = (folder / name).read_text(encoding="utf-8")
        new = old.replace("pfedpt", "<script>x</script>").replace("Trouser", "<b>&")
        (folder / name).write_text(new, encoding="utf-8")
    path = write_report([folder])
    assert "<script" not in path.read_text(encoding="utf-8")
    assert "<b>&<" not in path.read_text(encoding="utf-8")
    assert "<script>x</script> on fashion-shops" in read(path).text


def test_an_unfinished_run_says_so(make_run: MakeRun) -> None:
    page = read(write_report([make_run("a", done=4)]))
    assert "unfinished, 4 of 6 rounds" in page.text
    assert "4 rounds" in page.text


def test_a_run_without_any_evaluation_still_reports(make_run: MakeRun) -> None:
    folder = make_run("a", done=3)
    lines = (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
    (folder / "rounds.jsonl").write_text(lines[2] + "\n", encoding="utf-8")
    (folder / "partition.json").unlink()
    page = read(write_report([folder]))
    assert page.sections == ["numbers", "traffic", "measures", "run", "reading"]


def test_prompts_are_captioned_by_client_and_classes(make_run: MakeRun) -> None:
    page = read(write_report([make_run("a", pictures=2)]))
    assert "client 1 Trouser, Pullover, Dress" in page.text
    many = read(write_report([make_run("b", pictures=26, clients=26)]))
    assert "2 more in the run folder" in many.text


def test_settings_that_differ_have_figures_of_their_own(make_run: MakeRun) -> None:
    page = read(write_report([make_run("a"), make_run("b", dataset="office", clients=6)]))
    assert "office, dirichlet, cnn, 6 clients. Test accuracy" in page.text
    assert "best of all" not in page.text


def test_writing_is_whole_and_leaves_nothing_behind(make_run: MakeRun) -> None:
    folder = make_run("a")
    before = {path.name for path in folder.iterdir()}
    (folder / "report.html").write_text("old", encoding="utf-8")
    write_report([folder])
    assert {path.name for path in folder.iterdir()} == before | {"report.html"}
    assert (folder / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_mistakes_are_sentences(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run("a")
    with pytest.raises(PromptFedError, match="at least one run folder"):
        write_report([])
    with pytest.raises(PromptFedError, match="a folder; name a file"):
        write_report([folder], tmp_path)
    with pytest.raises(PromptFedError, match="cannot be written to"):
        write_report([folder], folder / "recipe.toml" / "report.html")
