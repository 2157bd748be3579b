"""Names from elsewhere at a terminal: no control characters, and no markup."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from promptfed.analysis.predict import Prediction, to_table
from promptfed.cli.terminal import complain, say
from promptfed.core.printable import printable


def test_control_characters_are_replaced_and_lines_stay() -> None:
    assert printable("a\x1b[2Jb\x07\udcff\r\n\tc é [/x]") == "a\ufffd[2Jb\ufffd\ufffd\ufffd\n\tc é [/x]"


def test_sentences_are_shown_without_control_characters_and_without_markup(capsys: pytest.CaptureFixture[str]) -> None:
    say("[/x].png \x1b]0;title\x07 [bold]b[/bold]")
    complain("[/y].png \x1b[2J")
    said = capsys.readouterr()
    assert said.out == "[/x].png \ufffd]0;title\ufffd [bold]b[/bold]\n"
    assert said.err == "[/y].png \ufffd[2J\n"


def test_a_table_of_predictions_takes_names_as_they_are() -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(to_table([Prediction(Path("[/x].png"), (("[red]cat", 0.9), ("\x1b[2Jdog", 0.1)))]))
    shown = console.export_text()
    assert "[/x].png" in shown
    assert "[red]cat" in shown
    assert "\x1b" not in shown
