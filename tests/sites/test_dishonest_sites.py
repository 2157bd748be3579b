"""Real sites that boast, poison, and spoil sums: how far each of it goes in a real federation."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from support.hostile_site import BOAST, POISON, POISONED, SPOIL_SUMS, UNDER_MASKS, Harm
from support.loopback import Loopback, promptfed
from support.three_sites import SETTINGS, furthest, lines, server_tree, simulate

pytestmark = [pytest.mark.slow, pytest.mark.real_processes, pytest.mark.timeout(900)]

SHARE = 12 / (11 + 8 + 12)  # of west in the mean


class Dishonest:
    """A federation in which south and west do as they are told."""

    def __init__(self, federation: Loopback) -> None:
        self.federation, self.folder = federation, federation.folder
        self.south, self.west = (Harm(self.folder / f"harm of {site}") for site in ("south", "west"))

    def start(self) -> None:
        """Start all parties."""
        self.federation.start("server", "start")
        self.federation.join("north")
        self.federation.join("south", **self.south.environment)
        self.federation.join("west", **self.west.environment)

    @contextmanager
    def doing(self, south: str = "", west: str = "") -> Iterator[None]:
        """Let both do this in the meantime."""
        self.south.do(south)
        self.west.do(west)
        yield
        self.south.do("")
        self.west.do("")

    def run(self, name: str, *more: str) -> "CompletedProcess[str]":
        """Run a few rounds over all sites."""
        words = ("fedavg", "device=cpu", *SETTINGS["fedavg"], "evaluate.after=false", *more)
        return promptfed("sites", "run", *words, "--out", name, cwd=self.folder)


@pytest.fixture(scope="module")
def dishonest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dishonest]:
    federation = Loopback(tmp_path_factory.mktemp("dishonest"), "min_sites = 2", "patience_seconds = 60")
    try:
        made = Dishonest(federation)
        made.start()
        yield made
    finally:
        federation.close()


def test_a_site_cannot_own_the_mean_by_what_it_declares(dishonest: Dishonest) -> None:
    with dishonest.doing(west=BOAST):
        done = dishonest.run("boast", "rounds=1")
    assert done.returncode == 2, done.stdout
    said = " ".join(done.stderr.split())
    assert "west: it declares 1,000,000,000,000 training images, more than max_images=10,000,000" in said
    assert not (dishonest.folder / "boast" / "sites.json").exists()


def test_under_masks_spoilt_shares_only_delay_and_absurd_numbers_count(dishonest: Dishonest) -> None:
    with dishonest.doing(west=SPOIL_SUMS):
        done = dishonest.run("sums", "rounds=2", "guards.secure=true")
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = lines(dishonest.folder / "sums")
    told: Any = [first["sites"], second["sites"]]
    assert (first["clients"], told[0]["refused"]) == ([0, 1], {"west": ["the others cannot open its shares"]})
    assert (second["clients"], told[1]["refused"]) == ([0, 1, 2], {})  # nobody sees whose numbers are absurd
    assert max(float(value.abs().max()) for value in server_tree(dishonest.folder / "sums").values()) > UNDER_MASKS / 10


def test_poison_moves_the_mean_but_no_robust_rule_unless_most_sites_are_poisoned(
    dishonest: Dishonest, tmp_path: Path
) -> None:
    short = ("rounds=1", "method.lr=0.001")  # honest sites move less than a twentieth as far
    honest = server_tree(simulate(tmp_path, "fedavg", *short))
    moved: dict[str, float] = {}
    for name, south, rule in (("mean", "", "mean"), ("median", "", "median"), ("together", POISON, "median")):
        with dishonest.doing(south, POISON):
            done = dishonest.run(name, *short, f"guards.robust={rule}")
        assert done.returncode == 0, done.stdout + done.stderr
        moved[name] = furthest(server_tree(dishonest.folder / name), honest)
    assert moved["mean"] == pytest.approx(POISONED * SHARE, rel=1e-3)
    assert moved["median"] < POISONED / 10
    assert moved["together"] > POISONED * 0.9
