"""The same numbers with real processes and real TLS on loopback, and a run that survives whatever is killed."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.loopback import Loopback, loopback, promptfed
from support.three_sites import NAMES, SETTINGS, furthest, server_tree, simulate


def run_words(method: str, *more: str) -> list[str]:
    return [method, "rounds=3", "device=cpu", *SETTINGS[method], *more]


@pytest.mark.slow
def test_a_run_over_tls_gives_the_numbers_of_the_simulation(tmp_path: Path) -> None:
    simulated = simulate(tmp_path, "pfedpt")
    with loopback(tmp_path) as federation:
        done = promptfed("sites", "run", *run_words("pfedpt"), "--out", "run", cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "round 3 · accuracy" in done.stdout
        status = promptfed("sites", "status", cwd=tmp_path)
        assert status.stdout.split("\n")[:4] == [
            "server: up",
            "north: connected",
            "south: connected",
            "west: connected",
        ]
        stopped = promptfed("sites", "stop", cwd=tmp_path)
        assert stopped.stdout == "The server has stopped.\n"
    assert furthest(server_tree(tmp_path / "run"), server_tree(simulated)) <= 1e-6
    for site in NAMES:
        assert list(federation.home(site).glob("runs/*/report.json"))
    assert federation.left == []
    connection = json.loads((tmp_path / "federation/kits/coordinator/startup/fed_server.json").read_text())
    assert connection["servers"][0]["connection_security"] == "mtls"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    folder = tmp_path_factory.mktemp("federation")
    with loopback(folder, "min_sites = 2", "round_seconds = 20") as federation:
        yield federation


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "pfedpg"])
def test_other_methods_over_tls_give_the_numbers_of_the_simulation(
    method: str, running: Loopback, tmp_path: Path
) -> None:
    done = promptfed("sites", "run", *run_words(method), "--out", tmp_path / "run", cwd=running.folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert furthest(server_tree(tmp_path / "run"), server_tree(simulate(tmp_path, method))) <= 1e-6
