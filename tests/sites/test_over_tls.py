"""With real processes and real TLS: FedAPT, secure aggregation, local noise, and a site that joins after training."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.loopback import Loopback, loopback, promptfed, rounds, until
from support.three_sites import NAMES, SETTINGS, furthest, lines, server_tree, simulate

pytestmark = [pytest.mark.slow, pytest.mark.real_processes]


def words(method: str, *more: str) -> list[str]:
    return [method, "rounds=3", "device=cpu", *SETTINGS[method], *more]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    with loopback(tmp_path_factory.mktemp("federation")) as federation:
        yield federation


@pytest.mark.parametrize(("method", "guards"), [("fedapt", ()), ("fedavg", ("guards.secure=true",))], ids=str)
def test_a_run_gives_the_numbers_of_the_simulation(
    method: str, guards: tuple[str, ...], running: Loopback, tmp_path: Path
) -> None:
    done = promptfed("sites", "run", *words(method, *guards), "--out", tmp_path / "run", cwd=running.folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert furthest(server_tree(tmp_path / "run"), server_tree(simulate(tmp_path, method, *guards))) <= 1e-6
    if guards:
        sent = [json.loads(line) for line in (running.home("south") / "audit.jsonl").read_text().splitlines()]
        left = {line["kind"]: set(line["tensors"]) for line in sent if line["run"].startswith("run-")}
        assert {"keys", "shares", "fit", "reveal"} <= left.keys()
        kept = [line for line in sent if line["kind"] == "fit" and "masked" in line["tensors"]]
        assert len(kept) == 3
        assert not [name for line in kept for name in line["tensors"] if name.startswith("up.")]


def test_noise_is_counted_at_the_site(running: Loopback, tmp_path: Path) -> None:
    guards = ("guards.clip=0.0001", "guards.noise=20.0", "guards.entropy=system", "guards.secure=true")
    done = promptfed("sites", "run", *words("fedavg", *guards), "--out", tmp_path / "noisy", cwd=running.folder)
    assert done.returncode == 0, done.stdout + done.stderr
    for site in NAMES:
        (count,) = running.home(site).glob("runs/noisy-*/answers.json")
        assert json.loads(count.read_text()) == 3


def test_a_site_joins_after_training(tmp_path: Path) -> None:
    federation, out = Loopback(tmp_path), tmp_path / "run"
    more = ("newcomers=1", "join_rounds=2")
    try:
        federation.start("server", "start")
        federation.join("north")
        federation.join("south")
        federation.start("run", "run", *words("pfedpg", *more), "--out", out)
        until(lambda: rounds(out) == 3, 120)
        federation.join("west")
        until(lambda: (out / "summary.json").exists(), 120)
    finally:
        federation.close()
    assert [line["clients"] for line in lines(out)] == [[0, 1], [0, 1], [0, 1], [2], [2]]
    found, expected = server_tree(out), server_tree(simulate(tmp_path, "pfedpg", *more))
    late, wanted = found["descriptor"][2], expected["descriptor"][2]
    found["descriptor"], expected["descriptor"] = found["descriptor"][:2], expected["descriptor"][:2]
    assert furthest(found, expected) <= 1e-6
    # it was fitted by many steps of Adam, which divide a rounding error by as small a gradient
    assert float((late - wanted).abs().max()) <= 1e-3
