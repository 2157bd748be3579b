"""A line per command: how many runs in how much time, and how busy the GPU was."""

import json
import subprocess
import threading
import time
from pathlib import Path

import pytest

from promptfed.core.errors import PromptFedError
from promptfed.papers import timing
from promptfed.papers.timing import gpu_load, read_timings, timed


def answer(monkeypatch: pytest.MonkeyPatch, said: str, code: int = 0) -> None:
    """Let the driver's program say this."""
    monkeypatch.setattr(timing, "SMI", ("sh", "-c", f"printf '{said}'; exit {code}"))


def test_the_mean_of_all_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, "90\\n60\\n")
    assert gpu_load() == 75.0


@pytest.mark.parametrize(("said", "code"), [("[N/A]", 0), ("", 0), ("No devices were found", 6), ("50", 1)])
def test_nobody_can_tell(said: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, said, code)
    assert gpu_load() is None


def test_no_driver_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "SMI", ("no-such-program",))
    assert gpu_load() is None


def test_a_driver_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*words: object, **more: object) -> None:
        raise subprocess.TimeoutExpired("nvidia-smi", 10)

    monkeypatch.setattr(subprocess, "run", hang)
    assert gpu_load() is None


def test_a_timing_by_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 190.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    with timed(tmp_path / "new", 3, None) as count:
        count()
        count()
    (line,) = read_timings([tmp_path / "new"])
    assert line == {
        "began": line["began"],
        "runs": 2,
        "workers": 3,
        "seconds": 90.0,
        "runs_per_hour": 80.0,
        "gpu_percent": None,
    }
    assert line["began"].endswith("+00:00")


def test_the_gpu_is_looked_at_while_it_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "EVERY", 0.001)
    loads = [100.0, 50.0, 60.0, None]  # a driver that stops answering ends the looking
    seen = iter(loads)
    stopped = threading.Event()

    def sample() -> float | None:
        value = next(seen)
        if value is None:
            stopped.set()
        return value

    with timed(tmp_path, 1, sample) as count:
        assert stopped.wait(60)
        count()
    assert read_timings([tmp_path])[0]["gpu_percent"] == 70.0


def test_the_looking_ends_with_the_block(tmp_path: Path) -> None:
    looks = []

    def sample() -> float:
        looks.append(1)
        return 10.0

    before = set(threading.enumerate())
    with timed(tmp_path, 1, sample):
        pass
    assert set(threading.enumerate()) == before, "nobody is left to look"
    assert len(looks) == 1
    assert read_timings([tmp_path])[0]["gpu_percent"] == 10.0


def test_a_stopped_command_counts_and_lines_add_up(tmp_path: Path) -> None:
    def stopped() -> None:
        with timed(tmp_path, 1, None) as count:
            count()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    with timed(tmp_path, 2, None):
        pass
    assert [(line["runs"], line["workers"]) for line in read_timings([tmp_path])] == [(1, 1), (0, 2)]


def test_timings_of_several_folders_in_their_order(tmp_path: Path) -> None:
    for name, began in (("a", "2026-02-01"), ("b", "2026-01-01")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "sittings.jsonl").write_text(json.dumps({"began": began}) + "\n")
    found = read_timings([tmp_path / "a", tmp_path / "b", tmp_path / "none"])
    assert [line["began"] for line in found] == ["2026-01-01", "2026-02-01"]


def test_a_damaged_file_gets_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "sittings.jsonl").write_text("{")
    with pytest.raises(PromptFedError, match="damaged; remove it"):
        read_timings([tmp_path])
