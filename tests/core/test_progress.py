"""A progress bar is drawn for people and nobody else."""

import io
import re

import pytest

from promptfed.core.progress import bar


class Terminal(io.StringIO):
    """A text stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True

    def shown(self) -> str:
        """Return what was drawn without colours and cursor movements."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.getvalue())


def watch(patch: pytest.MonkeyPatch) -> Terminal:
    """Put a terminal in the place of standard error."""
    screen = Terminal()
    patch.setattr("sys.stderr", screen)
    patch.setenv("TERM", "xterm")
    patch.setenv("COLUMNS", "160")
    return screen


def test_silent_where_no_person_watches(capfd: pytest.CaptureFixture[str]) -> None:
    with bar("reading", 3) as advance:
        for _ in range(3):
            advance(1, "note")
    assert capfd.readouterr() == ("", "")


def test_a_terminal_sees_what_how_far_and_the_note(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    terminal = watch(monkeypatch)
    with bar("rounds", 4) as advance:
        advance(1, "")
        advance(2, "accuracy 0.5")
    for part in ("rounds", "3/4", "eta", "accuracy 0.5"):
        assert part in terminal.shown()
    assert capfd.readouterr().out == ""


def test_a_transfer_counts_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = watch(monkeypatch)
    with bar("download", 4_000_000, unit="bytes") as advance:
        advance(2_000_000, "")
    assert "2.0/4.0 MB" in terminal.shown()


def test_errors_pass_through(monkeypatch: pytest.MonkeyPatch) -> None:
    watch(monkeypatch)
    with pytest.raises(KeyError), bar("rounds", 4):
        raise KeyError


def test_parts_of_one_add_up_and_a_note_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = watch(monkeypatch)
    with bar("rounds", 4) as advance:
        advance(1, "accuracy 0.5")
        for _ in range(3):
            advance(1 / 3)
    last = terminal.shown().rstrip().splitlines()[-1]
    assert "2/4" in last
    assert "accuracy 0.5" in last
