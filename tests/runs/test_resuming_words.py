"""A stopped run of RELIC goes on to the same rounds as one that never stopped, images seen included."""

import json
from pathlib import Path
from typing import Any

import pytest

from promptfed.core.tree import Tree
from promptfed.federation.loop import Loop
from promptfed.results.folder.record import Line
from promptfed.runs.resuming import resume
from support.inverted_runs import inverted, painting
from support.tiny_runs import plain


def rounds(folder: Path) -> list[dict[str, Any]]:
    return plain([json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()])


@pytest.mark.parametrize("finished", [0, 1])
def test_a_stopped_run_that_is_resumed_has_the_rounds_of_a_straight_one(
    finished: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = inverted("relic", tmp_path / "straight")
    whole = Loop.round

    def stop(self: Loop, t: int) -> tuple[Tree, Line]:
        if t == finished:
            raise KeyboardInterrupt
        return whole(self, t)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "round", stop)
        with pytest.raises(KeyboardInterrupt):
            inverted("relic", tmp_path / "stopped")
    folder = tmp_path / "stopped" / "relic"
    assert not (folder / "summary.json").exists()
    with painting():
        resume(folder)
    assert rounds(folder) == rounds(straight)
    assert rounds(folder)[0]["images"] > 0
