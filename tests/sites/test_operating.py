"""A site behind a firewall, as its IT department sees it: one port through a proxy, a health check, and the doctor."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from promptfed.sites.health import HEARTBEAT, SILENT_SECONDS
from promptfed.sites.settings import read_federation
from support.connect_proxy import ConnectProxy, connect_proxy
from support.loopback import Loopback, promptfed, until

PATIENCE = 240.0  # a dozen processes that import torch may share two busy cores with much else


def health(folder: Path, *words: object, cwd: Path) -> tuple[int, str]:
    """Return the exit code of a health check, and what it says."""
    done = promptfed("sites", "health", folder, *words, cwd=cwd)
    return done.returncode, (done.stdout + done.stderr).strip()


def diagnosis(*words: object, cwd: Path) -> tuple[int, dict[str, tuple[str, str]]]:
    """Return the exit code of the doctor, and its findings: verdict and sentence of every check."""
    done = promptfed("sites", "doctor", *words, "--json", cwd=cwd)
    found: Any = json.loads(done.stdout)
    return done.returncode, {one["check"]: (one["verdict"], one["says"]) for one in found}


@pytest.mark.timeout(900)
def test_a_site_reaches_the_coordinator_through_a_proxy_and_is_known_to_be_well(tmp_path: Path) -> None:
    federation = Loopback(tmp_path)
    home, kit = tmp_path / "federation", tmp_path / "federation" / "kits" / "north.zip"
    port = read_federation(tmp_path / "fed.toml").port
    try:
        assert health(home, cwd=tmp_path) == (1, "The server is not running; start it with: promptfed sites start")
        code, found = diagnosis(kit, "--data", federation.files["north"], cwd=tmp_path)
        assert (code, found["port"]) == (
            1,
            ("failed", f"Nothing listens on localhost:{port}; is the coordinator's server running?"),
        )
        assert found["data"][1].startswith("11 training and 3 test images of 2 classes")
        federation.start("server", "start")
        assert health(home, "--wait", PATIENCE, cwd=tmp_path) == (0, "ok")
        assert diagnosis(home, cwd=tmp_path)[0] == 0
        with connect_proxy("secret:word") as proxy:
            behind = {"https_proxy": proxy.url.replace("secret:word", "secret%3Aword"), "no_proxy": ""}
            federation.join("north", **behind)
            check_the_site(federation, federation.home("north"), proxy, port)
    finally:
        federation.close()
    assert federation.left == []


def check_the_site(federation: Loopback, home: Path, proxy: ConnectProxy, port: int) -> None:
    """Find the site well behind its proxy, then cut off."""
    folder = federation.folder
    until(lambda: (home / "site.pid").exists(), PATIENCE)
    assert health(home, "--wait", PATIENCE, cwd=folder) == (0, "ok")
    assert set(proxy.asked) == {f"localhost:{port}"}
    assert proxy.refused == []
    backdate(home)
    until(lambda: time.time() - (home / HEARTBEAT).stat().st_mtime < SILENT_SECONDS, PATIENCE)  # it is heard again
    proxy.close()
    backdate(home)
    code, said = health(home, cwd=folder)
    assert (code, said[:43]) == (1, "The server has not answered this site for 1")


def backdate(home: Path) -> None:
    """Let the last heartbeat be long ago, so that nobody needs to wait."""
    long_ago = time.time() - 1000
    os.utime(home / HEARTBEAT, (long_ago, long_ago))
