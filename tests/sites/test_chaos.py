"""Kills without warning, at random moments, of whatever a run over sites consists of.

PROMPTFED_KILLS says how many in all, PROMPTFED_SEED which ones first. With `-s` every kill is printed, and how long it
took until two more rounds were finished.
"""

import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from promptfed.federation.store import read_tree
from promptfed.sites import coordinator
from promptfed.sites.audit_check import check_audit
from promptfed.sites.audit_log import Mark
from promptfed.sites.settings import Federation
from support.faults import away, ignore
from support.loopback import Loopback, loopback, rounds, until
from support.three_sites import NAMES, SETTINGS, begin, exchange, furthest, lines, server_tree

KILLS = int(os.environ.get("PROMPTFED_KILLS", "10"))
SEED = int(os.environ.get("PROMPTFED_SEED", "0"))
EACH = 10  # kills of one run
ROUNDS = 8  # of a run, for every kill
RECOVERY_SECONDS = 120.0  # on two busy cores; a job starts a process per party, each of which imports torch

SITE = {
    "worker": ("sites.worker", "homes/{}"),
    "job": ("client.worker_process", "homes/{}/engine"),
    "parent": ("client_train", "homes/{}/engine"),
}
COORDINATOR = {
    "the server's job": ("runner_process", "kits/coordinator"),
    "the server's parent": ("server_train", "kits/coordinator"),
}
VICTIMS = (*SITE, "watchdog", *COORDINATOR, "the server's watchdog", "the supervisor")


@dataclass(frozen=True)
class Kill:
    """One kill: whose end, after how many more rounds and seconds, and whether anyone waits for the recovery."""

    victim: str
    rounds: int
    seconds: float
    alone: bool


def plan(seed: int, count: int) -> list[Kill]:
    """Draw the kills of a run: every victim once before any of them again, every third on top of the one before."""
    draw = random.Random(seed)

    def victims() -> Iterator[str]:
        for some in repeat(VICTIMS):
            for kind in draw.sample(some, len(some)):
                yield f"{draw.choice(NAMES)}'s {kind}" if kind in SITE or kind == "watchdog" else kind

    names = victims()
    return [Kill(next(names), draw.randrange(3), draw.uniform(0, 1), alone=draw.random() > 1 / 3) for _ in range(count)]


def test_a_seed_draws_the_same_kills_and_all_kinds_of_them() -> None:
    kills = plan(3, 16)
    assert kills == plan(3, 16) != plan(4, 16)
    kinds = [kill.victim.rpartition("'s ")[2] for kill in kills]
    assert sorted(kinds[:8]) == sorted(kinds[8:])
    assert len(set(kinds)) == 5  # a site's and the server's job, parent and watchdog have the same last word


class Chaos:
    """A run over real sites, and what is done to it."""

    def __init__(self, federation: Loopback, out: Path) -> None:
        self.federation, self.out = federation, out
        self.kept: list[Any] = []  # rounds that were finished before the last kill
        self.longest = 0.0

    def strike(self, kill: Kill) -> None:
        """Wait for the moment, then kill; unless it stands alone, the next one comes before the run has recovered."""
        if kill.alone:
            wanted = self.saved() + kill.rounds
            until(lambda: self.saved() >= wanted, RECOVERY_SECONDS)
        time.sleep(kill.seconds)
        self._remember()
        self._kill(kill.victim)
        began, before = time.monotonic(), self.saved()
        if kill.alone:
            until(lambda: self.saved() >= before + 2, RECOVERY_SECONDS)
            self.longest = max(self.longest, time.monotonic() - began)
        print(f"  {kill.victim} after round {before}: {time.monotonic() - began:.0f} s")  # noqa: T201

    def _remember(self) -> None:
        saved = self.saved()
        found = [_settled(line) for line in lines(self.out)[:saved]]
        assert found[: len(self.kept)] == self.kept  # no finished round is lost or made anew
        self.kept = found

    def saved(self) -> int:
        """Return the rounds that are saved."""
        state = self.out / "checkpoint" / "state.json"
        return int(json.loads(state.read_text())["round"]) if state.exists() else 0

    def over(self) -> bool:
        """Say whether the run is finished."""
        return (self.out / "summary.json").exists()

    def _kill(self, victim: str) -> None:
        """Kill without warning; what nobody would start again is started again here."""
        assert not self.over(), "the run is over before all kills"
        federation, (owner, _, kind) = self.federation, victim.partition("'s ")
        if victim == "the supervisor":
            self._replace("run")
            federation.start("run", "run", "--resume", self.out)
        elif victim == "the server's watchdog":
            self._replace("server")
            federation.start("server", "start")
        elif kind == "watchdog":
            self._replace(owner)
            federation.join(owner)
        else:
            words = COORDINATOR.get(victim) or [word.format(owner) for word in SITE[kind]]
            until(lambda: federation.of_federation(*words), RECOVERY_SECONDS)  # the last kill may have ended it too
            for process in federation.of_federation(*words):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)

    def _replace(self, name: str) -> None:
        os.kill(self.federation.processes[name].pid, signal.SIGKILL)
        self.federation.processes[name].wait()


def _settled(line: dict[str, Any]) -> dict[str, Any]:
    return {key: line[key] for key in ("round", "clients", "received", "versions")}


RECIPES = (("pfedpt", ()), ("fedavg", ("guards.secure=true",)))
RUNS = [(SEED + number, min(EACH, KILLS - EACH * number)) for number in range(-(-KILLS // EACH))]


@pytest.mark.slow
@pytest.mark.real_processes
@pytest.mark.timeout(60 + EACH * 2 * RECOVERY_SECONDS)
@pytest.mark.parametrize(("seed", "count"), RUNS)
def test_a_run_survives_kills_at_random_moments(seed: int, count: int, tmp_path: Path) -> None:
    method, guards = RECIPES[seed % len(RECIPES)]
    words = [f"rounds={ROUNDS * count}", "method.epochs=10", *guards]
    out = tmp_path / "run"
    print(f"\nseed {seed}: {count} kills, {method} {' '.join(guards)}")  # noqa: T201
    with loopback(tmp_path, "min_sites = 2", "round_seconds = 20") as federation:
        chaos = Chaos(federation, out)
        federation.start("run", "run", method, "device=cpu", *SETTINGS[method], *words, "--out", out)
        until(lambda: rounds(out) >= 2, 2 * RECOVERY_SECONDS)  # all processes start at once
        for kill in plan(seed, count):
            chaos.strike(kill)
        until(chaos.over, ROUNDS * count * 2 + RECOVERY_SECONDS)
        homes = {site: next(federation.home(site).glob("runs/*/model.safetensors")) for site in NAMES}
    print(f"  at most {chaos.longest:.0f} s until two more rounds were finished")  # noqa: T201
    assert federation.left == []
    found: list[Any] = lines(out)
    assert [_settled(line) for line in found[: len(chaos.kept)]] == chaos.kept
    assert [line["round"] for line in found] == list(range(1, ROUNDS * count + 1))

    missed = {site: {n for n, line in enumerate(found) if i not in line["clients"]} for i, site in enumerate(NAMES)}
    print(f"  {sum(map(len, missed.values()))} answers missed in {len(found)} rounds")  # noqa: T201
    there = tmp_path / "reference"
    there.mkdir()
    rules = Federation(NAMES, min_sites=2)
    reference, _ = begin(there, method, *words, federation=rules)
    coordinator.conduct(reference, rules, exchange(there, away(missed)), ignore)
    assert furthest(server_tree(out), server_tree(reference)) <= 1e-6
    known = json.loads((tmp_path / "federation" / "audits.json").read_text())
    for site, model in homes.items():
        mark = Mark(known[site]["n"], known[site]["hash"])
        assert check_audit(federation.home(site), known=mark).problems == []  # no record that was told is lost
        own = next((there / "home" / site).glob("runs/*/model.safetensors"))
        assert furthest(read_tree(model), read_tree(own)) <= 1e-6
