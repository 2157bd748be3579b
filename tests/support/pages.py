"""Reading a written report."""

from html.parser import HTMLParser
from pathlib import Path

VOID = {"meta", "link", "img", "br"}


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
        # SVG's shapes either close at once, which is another event, or carry a tooltip inside.
        if tag not in VOID:
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
