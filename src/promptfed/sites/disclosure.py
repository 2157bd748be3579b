"""What a site tells about its tests, and from how many models it trains: limits that no coordinator can lift.

    HOME/tests.json              how many test results have left this site, in all its runs
    HOME/rounds.json             how many models it has trained from, in all its runs
    HOME/runs/RUN/tests.json     the last result for each purpose, with a digest of the model that was tested
    HOME/runs/RUN/models.json    digests of the models it has trained from

A coordinator chooses the models that a site tests. So a round has one test for each purpose; whoever asks again about
the same model gets the same result, and about another one nothing.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from promptfed.core.files import write_json
from promptfed.core.tree import Tree
from promptfed.sites.wire import Refused

Detail = Literal["exact", "coarse", "none"]
Purpose = Literal["received", "trained", "adapted", "after"]
ONCE = ("adapted", "after")  # in a run; the others are once in a round
STEPS = 20  # a coarse accuracy is a multiple of about 5 %
SPARE = 8  # models beyond one for each round: a coordinator that crashed may have lost a round
FILE, MODELS, ROUNDS = "tests.json", "models.json", "rounds.json"


def digest(*trees: Tree) -> str:
    """Return a fingerprint of names and numbers."""
    found = hashlib.sha256()
    for tree in trees:
        for name, value in tree.items():
            about = f"{name} {value.dtype} {list(value.shape)}\n".encode()
            found.update(about + value.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
        found.update(b"\n")
    return found.hexdigest()


def coarse(sums: Tree) -> Tree:
    """Return the counts alone, the correct answers to the nearest of about 20 steps."""
    count = float(sums["count"])
    step = max(1.0, -(-count // STEPS))
    correct = min(count, step * ((float(sums["correct"]) / step + 0.5) // 1))
    return {"correct": torch.full_like(sums["correct"], correct), "count": sums["count"]}


@dataclass(frozen=True)
class Disclosure:
    """The limits of one run at a site."""

    home: Path
    folder: Path  # of the run
    detail: Detail
    most: int  # results that may leave the site in its life; 0: any number
    rounds: int  # of the run
    life: int = 0  # models it may train from in all its runs, one a round; 0: any number

    def test(self, round: int, purpose: Purpose, model: str, fresh: Callable[[], Tree]) -> Tree:  # noqa: A002
        """Return what may leave of a test's sums: the stored result, one from `fresh`, or nothing."""
        if self.detail == "none":
            return {}
        known: dict[str, dict[str, Any]] = _read(self.folder / FILE, {})
        last = known.get(purpose)
        if last is not None and (last["round"], last["model"]) == (round, model):
            return {name: torch.tensor(value) for name, value in last["sums"].items()}
        if last is not None and (round <= last["round"] or purpose in ONCE):
            return {}
        given = _read(self.home / FILE, 0)
        if self.most and given >= self.most:
            return {}
        write_json(self.home / FILE, given + 1)  # first: a crash may cost a result, but gives none away
        sums = {name: value.float() for name, value in fresh().items()}
        sums = sums if self.detail == "exact" else coarse(sums)
        entry = {"round": round, "model": model, "sums": {name: value.tolist() for name, value in sums.items()}}
        write_json(self.folder / FILE, known | {purpose: entry})
        return sums

    def train(self, model: str) -> None:
        """Refuse to train from more different models than the run needs: every one may be made to tell something."""
        known: list[str] = _read(self.folder / MODELS, [])
        if model in known:
            return
        if len(known) >= self.rounds + SPARE:
            raise Refused(
                f"it has trained from {len(known)} models in this run of {self.rounds} rounds, and trains from no other"
            )
        trained = _read(self.home / ROUNDS, 0)
        if self.life and trained >= self.life:
            raise Refused(f"its owner's terms allow {self.life} rounds for life, and this would be another one")
        write_json(self.home / ROUNDS, trained + 1)  # first: a crash may cost a round, but gives none away
        write_json(self.folder / MODELS, [*known, model])


def _read(path: Path, otherwise: Any) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else otherwise
