"""A site behind a firewall, as its IT department sees it: one port through a proxy, a health check, and the doctor."""

import os
import time
from pathlib import Path

import pytest

from promptfed.sites.doctor import examine
from promptfed.sites.health import HEARTBEAT, SILENT_SECONDS, find_trouble, wait_for_health
from promptfed.sites.settings import read_federation
from support.connect_proxy import ConnectProxy, connect_proxy
from support.loopback import Loopback, until

PATIENCE = 240.0  # a dozen processes that import torch may share two busy cores with much else


def port_of(place: Path) -> tuple[str, str]:
    """Return what the doctor finds at the port: verdict and sentence."""
    (found,) = [finding for finding in examine(place) if finding.check == "port"]
    return str(found.verdict), found.says


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_site_reaches_the_coordinator_through_a_proxy_and_is_known_to_be_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = Loopback(tmp_path)
    home, kit = tmp_path / "federation", tmp_path / "federation" / "kits" / "north.zip"
    place = f"localhost:{read_federation(tmp_path / 'fed.toml').port}"
    monkeypatch.setenv("no_proxy", "")
    try:
        assert find_trouble(home) == "The server is not running; start it with: promptfed sites start"
        assert port_of(kit) == ("failed", f"Nothing listens on {place}; is the coordinator's server running?")
        federation.start("server", "start")
        assert wait_for_health(home, PATIENCE) == ""
        assert port_of(home) == ("ok", f"{place} answers; both sides trust each other's certificate.")
        with connect_proxy("secret:word") as proxy:
            monkeypatch.setenv("https_proxy", proxy.url.replace("secret:word", "secret%3Aword"))
            federation.join("north", https_proxy=os.environ["https_proxy"], no_proxy="")
            check_the_site(federation.home("north"), proxy, place)
    finally:
        federation.close()
    assert federation.left == []


def check_the_site(home: Path, proxy: ConnectProxy, place: str) -> None:
    """Find the site well behind its proxy, then cut off."""
    until(lambda: (home / "site.pid").exists(), PATIENCE)
    assert wait_for_health(home, PATIENCE) == ""
    assert set(proxy.asked) == {place}  # the engine's gRPC came this way, and asked for nothing else
    assert proxy.refused == []
    way = "through the proxy of https_proxy"
    assert port_of(home) == ("ok", f"{place} answers {way}; both sides trust each other's certificate.")
    backdate(home)
    until(lambda: time.time() - (home / HEARTBEAT).stat().st_mtime < SILENT_SECONDS, PATIENCE)  # it is heard again
    proxy.close()
    backdate(home)
    assert find_trouble(home).startswith("The server has not answered this site for 1")
    verdict, says = port_of(home)
    assert (verdict, says) == (
        "failed",
        f"The proxy 127.0.0.1:{proxy.port} of https_proxy cannot be reached: Connection refused.",
    )


def backdate(home: Path) -> None:
    """Let the last heartbeat be long ago, so that nobody needs to wait."""
    long_ago = time.time() - 1000
    os.utime(home / HEARTBEAT, (long_ago, long_ago))
