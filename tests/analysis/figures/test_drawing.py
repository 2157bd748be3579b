"""A figure's files: where they cannot be, one sentence."""

from pathlib import Path

import pytest

from promptfed.analysis.figures.drawing import Drawing, check_place, save
from promptfed.analysis.figures.plotting import blank
from promptfed.core.errors import PromptFedError


def test_a_place_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    drawing = Drawing("t", "c", {}, blank(1, 1))
    with pytest.raises(PromptFedError, match="The figure cannot be written to"):
        save(drawing, "prior", tmp_path / "file" / "a.png")
    with pytest.raises(PromptFedError, match='Unknown picture format "" in'):
        check_place(tmp_path / "prior")
