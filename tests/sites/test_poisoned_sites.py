"""Ten sites, two of them poisoned: the plain mean breaks, trimmed mean and Krum do not."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from promptfed.core.errors import PromptFedError
from promptfed.runs import config
from promptfed.sites import coordinator, wire
from promptfed.sites.settings import Federation
from promptfed.sites.terms import FILE
from promptfed.sites.wire import Message
from promptfed.sites.worker import Worker
from support.faults import ignore
from support.sites_in_threads import Threads
from support.three_sites import OPEN, SETTINGS, SIDE, Ask, lines

NAMES = tuple(f"site-{number}" for number in range(10))
POISONED = NAMES[3], NAMES[8]
MARGIN = 0.05  # of the honest sites' accuracy


def write_site(folder: Path, number: int) -> Path:
    """Write 24 images of two classes, the second lighter in its upper half; the last 8 are for testing."""
    rng = np.random.default_rng(number)
    labels = np.arange(24) % 2
    images = rng.integers(0, 120, (24, SIDE, SIDE, 3))
    images[labels == 1, : SIDE // 2] += 100
    path = folder / f"{NAMES[number]}.npz"
    np.savez(
        path,
        x_train=images[:16].astype(np.uint8),
        x_test=images[16:].astype(np.uint8),
        y_train=labels[:16],
        y_test=labels[16:],
        class_names=np.array(["dark", "light"]),
    )
    return path


def poison(ask: Ask) -> Ask:
    """Return a site that sends −10 times its change."""

    def answer(request: bytes) -> bytes:
        asked, given = wire.unpack(request, 2**30), wire.unpack(ask(request), 2**30)
        if asked.head["kind"] != "fit" or not asked.head["keep"]:
            return wire.pack(given)
        turned = {f"up.{name}": value - 10 * (given.tree[f"up.{name}"] - value) for name, value in asked.tree.items()}
        return wire.pack(Message(given.head, given.tree | turned))

    return answer


def honest_accuracy(folder: Path, poisoned: bool, *guards: str) -> float:
    """Return the mean accuracy of the eight honest sites after the last round; none if the run has diverged."""
    folder.mkdir()
    for name in NAMES:
        (folder / name).mkdir()
        (folder / name / FILE).write_text(OPEN)
    asks: dict[str, Ask] = {
        name: Worker(name, folder / name, str(write_site(folder, number)), "cpu").answer
        for number, name in enumerate(NAMES)
    }
    asks |= {name: poison(asks[name]) for name in POISONED if poisoned}
    words = ["clients=10", "rounds=6", "device=cpu", *SETTINGS["fedavg"], *guards]
    out, federation = folder / "run", Federation(NAMES)
    coordinator.create(out, config.load_one("fedavg", words), federation)
    try:
        coordinator.conduct(out, federation, Threads(asks), ignore)
    except PromptFedError as error:
        return 0.0 if "diverged" in str(error) else float("nan")
    received: Any = lines(out)[-1]["received"]
    each = received["per_client"]
    return float(np.mean([each[number] for number, name in enumerate(NAMES) if name not in POISONED]))


@pytest.mark.slow
def test_two_poisoned_sites_of_ten_break_the_mean_and_no_robust_rule(tmp_path: Path) -> None:
    assert honest_accuracy(tmp_path / "clean", False) > 0.9
    assert honest_accuracy(tmp_path / "mean", True) < 0.6
    for rule in ("trimmed-mean", "krum"):
        guards = (f"guards.robust={rule}",)
        clean = honest_accuracy(tmp_path / f"{rule} clean", False, *guards)
        assert clean > 0.9
        assert honest_accuracy(tmp_path / rule, True, *guards) >= clean - MARGIN
