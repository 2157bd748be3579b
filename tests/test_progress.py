"""A progress bar is drawn for people and nobody else."""

import io

import pytest

from promptfed.progress import bar


class Terminal(io.StringIO):
    """A text stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    return screen


def test_silent_where_no_person_watches(capfd: pytest.CaptureFixture[str]) -> None:
    with bar("reading", 3) as advance:
        for _ in range(3):
            advance(1, "note")
    assert capfd.readouterr() == ("", "")


def test_a_terminal_sees_what_how_far_and_the_note(terminal: Terminal, capfd: pytest.CaptureFixture[str]) -> None:
    with bar("rounds", 4) as advance:
        advance(1, "")
        advance(2, "accuracy 0.5")
    shown = terminal.getvalue()
    assert "rounds" in shown
    assert "3/4" in shown
    assert "accuracy 0.5" in shown
    assert "eta" in shown
    assert capfd.readouterr().out == ""


def test_a_transfer_counts_bytes(terminal: Terminal) -> None:
    with bar("download", 4_000_000, unit="bytes") as advance:
        advance(2_000_000, "")
    assert "2.0/4.0 MB" in terminal.getvalue()


@pytest.mark.usefixtures("terminal")
def test_errors_pass_through() -> None:
    with pytest.raises(KeyError), bar("rounds", 4):
        raise KeyError
