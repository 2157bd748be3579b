"""The steps of the field's methods side by side: which rows there are, and what a step sends through the towers."""

import math
import tomllib
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch

from promptfed.core.errors import PromptFedError
from promptfed.runs.registry import RECIPES
from support.scripts import load_script


def script() -> ModuleType:
    return load_script("benchmarks/field_steps.py")


def setting() -> Any:
    sizes = {"clients": 2, "classes": 8, "batch": 4, "long": 2, "short": 1}
    return script().Setting(torch.device("cpu"), "tiny", **sizes)


def test_every_row_that_learns_is_measured_after_those_it_is_compared_with() -> None:
    shared = tomllib.loads((RECIPES / "field" / "methods.rows.toml").read_text(encoding="utf-8"))["rows"]
    names = [row.name for row in script().rows_of([])]
    assert names[:3] == ["promptfl", "fedvpt", "fedvpt-dinov2"]
    assert sorted(names) == sorted(row["name"] for row in shared if row["name"] != "clip-zs")
    assert [row.name for row in script().rows_of(["fedpgp"])] == ["promptfl", "fedpgp"]
    assert [row.name for row in script().rows_of(["sgpt-dinov2"])] == ["promptfl", "fedvpt-dinov2", "sgpt-dinov2"]
    with pytest.raises(PromptFedError, match='Unknown row "fedpgpp" in --rows; did you mean "fedpgp"'):
        script().rows_of(["fedpgpp"])


def test_work_is_counted_in_tokens_of_texts_and_in_images() -> None:
    wanted = ("promptfl", "fedpha", "fedapt", "fedmgp", "sgpt-dinov2", "head-probe")
    rows = {row.name: row for row in script().rows_of(wanted)}
    found = {name: script().tried(setting(), rows[name]) for name in wanted}
    assert [step.problem for step in found.values()] == [""] * len(wanted)
    assert all(step.seconds > 0 and step.width == 2 and not step.recorded for step in found.values())
    # of each client: the start token and 16 of context, and eight endings as long as the longest, five words and two
    one = 17 + 8 * 7
    assert found["promptfl"].text == 2 * one
    assert found["fedpha"].text == 3 * 2 * one
    assert found["fedapt"].text == 2 * 8 * (17 + 7)  # every class has a context of its own
    assert found["fedmgp"].text == 2 * 5 * (3 + 8 * 7)  # five groups of two tokens
    assert found["fedmgp"].image == 2 * 5 * 4
    assert found["sgpt-dinov2"].image == 2 * 4  # in either of its two phases
    assert (found["head-probe"].text, found["head-probe"].image) == (0, 0)


def test_a_line_compares_a_step_with_as_much_of_promptfls_and_fedvpts() -> None:
    step, rows = script().Step, {row.name: row for row in script().rows_of([])}
    scale = script().Scale(step(100, 0, 10, True, 0.004), step(0, 320, 10, True, 0.1))
    told, times = script().line(
        replace(setting(), clients=10), rows["fedmgp"], step(50, 800, 5, True, 0.753, 90), scale
    )
    # five of ten clients at a time: 1 text and 5 images, 4 + 500 ms
    assert told == (
        "| FedMGP | both towers on pixels | stacked, 5 at a time, a CUDA graph | 753.00 | 1 text + 5 image | 188.25× "
        "| 7.53× | 1.49× | 90.0 |"
    )
    assert times == pytest.approx(753 / 504)
    told, times = script().line(setting(), rows["fedmgp"], step(problem="It broke."), scale)
    assert told == "| FedMGP | It broke. | | | | | | | |"
    assert math.isnan(times)


def test_a_row_that_memory_does_not_hold_is_measured_with_fewer_clients_at_a_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tried: list[tuple[str, int]] = []

    def timed(given: Any, row: Any, width: int) -> Any:
        tried.append((row.name, width))
        if row.name == "fedpgp":
            raise ValueError("cats\nand dogs")
        if width > 2:
            raise MemoryError
        return script().Step(100, 0, width, True, 0.01)

    monkeypatch.setattr(script(), "timed", timed)
    script().print_table(replace(setting(), clients=10), script().rows_of(["promptfl", "fedpgp", "fedotp"]))
    assert tried == [
        (name, n) for name, ns in (("promptfl", (10, 5, 2)), ("fedpgp", (10,)), ("fedotp", (10, 5, 2))) for n in ns
    ]
    told = capsys.readouterr().out
    assert "| FedPGP | ValueError: cats and dogs | | | | | | | |" in told
    assert "| FedOTP | text tower on cached features | stacked, 2 at a time, a CUDA graph | 10.00 | 1 text |" in told
    assert told.endswith("more than twice their work: none\n")
