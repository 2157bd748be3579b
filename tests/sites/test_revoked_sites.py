"""A site is revoked in the middle of a run, and let in again; another one renews its certificate."""

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from promptfed.core.errors import PromptFedError
from promptfed.sites import audit_log, coordinator, wire
from promptfed.sites.admin_session import connected
from promptfed.sites.oversight import Oversight
from promptfed.sites.revocations import OUT, REVOKED, Revocations
from promptfed.sites.settings import Federation
from support.hostile_site import WAIT, Harm
from support.loopback import Loopback, promptfed, rounds, until
from support.three_sites import NAMES, SETTINGS, begin, exchange, lines

PATIENCE = 240.0  # a dozen processes that import torch may share two busy cores with much else
WORDS = ("fedavg", "device=cpu", *SETTINGS["fedavg"], "evaluate.every=1000", "evaluate.after=false")


def at_end(federation: Loopback, name: str) -> int | None:
    """Return a command's exit code, if it has ended."""
    return federation.processes[name].poll()


def leave(federation: Loopback, site: str) -> None:
    """Let a site leave, as by Ctrl-C."""
    federation.processes[site].send_signal(signal.SIGTERM)
    federation.processes[site].wait(60)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.real_processes
def test_a_revoked_site_is_out_at_its_next_message_and_in_again_with_a_new_kit(tmp_path: Path) -> None:
    federation = Loopback(tmp_path, "min_sites = 2", "round_seconds = 60")
    home, run = tmp_path / "federation", tmp_path / "run"
    log = home / "server.log"
    south = Harm(tmp_path / "harm of south")
    try:
        federation.start("server", "start")
        for site in NAMES:
            federation.join(site, **(south.environment if site == "south" else {}))
        federation.start("run", "run", *WORDS, "rounds=80", "--out", "run")
        until(lambda: rounds(run) >= 3 or at_end(federation, "run") is not None, PATIENCE)
        south.do(WAIT)  # so that the round cannot end
        before = answered(federation, run)
        revoked = promptfed("sites", "revoke", "west", cwd=tmp_path)
        assert revoked.stdout == "west is revoked.\n"
        until(lambda: "west is cut off: its certificate is revoked" in log.read_text(), PATIENCE)
        assert rounds(run) == before
        south.do("")
        until(lambda: (run / "summary.json").exists() or at_end(federation, "run") is not None, PATIENCE)
        assert federation.processes["run"].wait(60) == 0, federation.said("run")
        check_rounds(run, before)
        until(lambda: "west" not in (connected(home) or {"west"}), PATIENCE)
        check_status_and_logs(federation, home)
        let_in_again(federation, home)
        steal_kit(federation, home)
        done = promptfed("sites", "run", *WORDS, "rounds=2", "--out", "again", cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert [line["clients"] for line in lines(tmp_path / "again")] == [[0, 1, 2]] * 2
        check_theft(federation)
    finally:
        federation.close()
    assert federation.left == []


def answered(federation: Loopback, run: Path) -> int:
    """Wait until west's answer to the round that is at work has arrived; return how many rounds there were before."""
    west = federation.home("west")

    def arrived() -> bool:
        records = [json.loads(line) for line in (west / audit_log.FILE).read_text().splitlines()]
        sent = (west / "site.log").read_text().count("task result sent to server")
        return records[-1]["kind"] == "fit" and records[-1]["round"] == rounds(run) and sent == len(records)

    before = -1
    while before != rounds(run):  # south may have been about to answer
        until(arrived, PATIENCE)
        before = rounds(run)
        time.sleep(0.5)
    return before


def check_rounds(run: Path, before: int) -> None:
    """See that no answer of the revoked site is in any later round, and why."""
    found: list[Any] = lines(run)
    assert len(found) == 80
    assert found[0]["clients"] == [0, 1, 2]
    later = found[before:]  # the first of them has an answer that was sent before its site was out
    assert len(later) > 0
    assert {tuple(line["clients"]) for line in later} == {(0, 1)}
    assert {line["sites"]["silent"]["west"] for line in later} == {OUT}


def check_status_and_logs(federation: Loopback, home: Path) -> None:
    """See what status says, that it comes back in vain, and that the coordinator knows where every audit log is."""
    status = promptfed("sites", "status", cwd=federation.folder).stdout
    assert "west is revoked; it gets a new kit by: promptfed sites renew west" in status
    cut = (home / "server.log").read_text().count("west is cut off")
    until(lambda: (home / "server.log").read_text().count("west is cut off") > cut, PATIENCE)
    marks = json.loads((home / "audits.json").read_text())
    for site in NAMES[:2]:
        head = json.loads((federation.home(site) / audit_log.HEAD).read_text())
        assert (marks[site]["n"], marks[site]["hash"]) == (head["n"], head["hash"])
        known = f"{head['n']}:{head['hash']}"
        assert f"{site}'s audit log was at record {known}" in status
        audit = promptfed("sites", "audit", federation.home(site), "--known", known, "--json", cwd=federation.folder)
        assert audit.returncode == 0, audit.stdout + audit.stderr
        (run,) = json.loads(audit.stdout)["runs"]
        assert (run["kinds"]["fit"], run["rounds"]) == (80, 80)


def let_in_again(federation: Loopback, home: Path) -> None:
    """Give west a new kit, and north a new certificate; both keep what they have."""
    known = (federation.home("west") / "identity.pem").read_bytes()
    made = promptfed("sites", "renew", "west", "north", cwd=federation.folder)
    assert made.returncode == 0, made.stderr
    for site in ("north", "west"):
        leave(federation, site)
    federation.join("west")
    kit, renewal = home / "kits" / "north.zip", home / "kits" / "north.renewal.zip"
    own = ("--data", federation.files["north"], "--home", federation.home("north"), "--device", "cpu")
    federation.start("north", "join", kit, *own, "--renew", renewal)
    until(lambda: {"north", "west"} <= (connected(home) or set()), PATIENCE)
    with_new = (federation.home("north") / "engine" / "startup" / "client.crt").read_bytes()
    assert with_new.decode() == json.loads((home / "ca/promptfed/state/cert.json").read_text())["north"]["cert"]
    assert (federation.home("west") / "identity.pem").read_bytes() == known


def steal_kit(federation: Loopback, home: Path) -> None:
    """Let someone join with south's kit, on a machine of their own, when south is away."""
    leave(federation, "south")
    kit, thief = home / "kits" / "south.zip", federation.folder / "thief"
    own = ("--data", federation.files["south"], "--home", thief, "--terms", federation.folder / "terms.toml")
    federation.start("thief", "join", kit, *own, "--device", "cpu")
    until(lambda: (thief / "site.pid").exists() and "south" in (connected(home) or ()), PATIENCE)


def check_theft(federation: Loopback) -> None:
    """See that the coordinator can tell: south's audit log has gone back. It is put out, and the thief with it."""
    said = " ".join(promptfed("sites", "status", cwd=federation.folder).stdout.split())
    known = json.loads((federation.home("south") / audit_log.HEAD).read_text())
    assert f"it has gone back, from record {known['n']}: ask the site's owner why" in said
    assert promptfed("sites", "revoke", "south", cwd=federation.folder).stdout == "south is revoked.\n"
    log = federation.folder / "federation" / "server.log"
    until(lambda: "south is cut off: its certificate is revoked" in log.read_text(), PATIENCE)


# -- without processes ------------------------------------------------------------------------------------------------


def revoking(home: Path, after: int) -> Any:
    """Return a view of each finished round that revokes west after one of them."""

    def look(line: Any) -> None:
        if line["round"] == after:
            (home / "revoked.json").write_text(json.dumps({"sites": {"west": 1}, "keys": {}}))

    return look


def watched(home: Path) -> Oversight:
    """Return an oversight without a server, whose requests nobody signs."""
    return Oversight(home, _revoked=Revocations(home / REVOKED))


@pytest.mark.parametrize("guards", [(), ("guards.secure=true",)], ids=["plain", "masks"])
def test_a_run_goes_on_without_a_revoked_site(guards: tuple[str, ...], tmp_path: Path) -> None:
    out, federation = begin(tmp_path, "fedavg", *guards, federation=Federation(NAMES, min_sites=2))
    coordinator.conduct(out, federation, exchange(tmp_path), revoking(tmp_path, 1), watched(tmp_path))
    found: list[Any] = lines(out)
    assert [line["clients"] for line in found] == [[0, 1, 2], [0, 1], [0, 1]]
    assert found[1]["sites"]["silent"] == {"west": OUT}


@pytest.mark.parametrize("guards", [(), ("guards.secure=true",)], ids=["plain", "masks"])
def test_or_ends_with_a_sentence_if_too_few_are_left(guards: tuple[str, ...], tmp_path: Path) -> None:
    out, federation = begin(tmp_path, "fedavg", *guards)
    with pytest.raises(PromptFedError) as caught:
        coordinator.conduct(out, federation, exchange(tmp_path), revoking(tmp_path, 1), watched(tmp_path))
    assert str(caught.value) == (
        "Round 2 needs 3 answers, and without west, now revoked, there are only 2 sites left. Lower min_sites in "
        "fed.toml, or let west in again with: promptfed sites renew west"
    )
    assert len(lines(out)) == 1


def test_an_answer_that_comes_when_its_site_is_out_is_not_used(tmp_path: Path) -> None:
    out, federation = begin(tmp_path, "fedavg", federation=Federation(NAMES, min_sites=2))
    revoke = revoking(tmp_path, 1)

    def late(site: str, ask: Any) -> Any:
        def answer(request: bytes) -> bytes:
            data: bytes = ask(request)
            if site == "west" and wire.unpack(request, 2**30).head["kind"] == "fit":
                revoke({"round": 1})  # between its answer and the coordinator's look at it
            return data

        return answer

    coordinator.conduct(out, federation, exchange(tmp_path, late), lambda line: None, watched(tmp_path))
    assert [line["clients"] for line in lines(out)] == [[0, 1]] * 3


def test_a_run_cannot_begin_without_a_revoked_site(tmp_path: Path) -> None:
    revoking(tmp_path, 0)({"round": 0})
    out, federation = begin(tmp_path, "fedavg", federation=Federation(NAMES, min_sites=2))
    with pytest.raises(PromptFedError, match="west must take part, and is revoked; let it in again with"):
        coordinator.conduct(out, federation, exchange(tmp_path), lambda line: None, watched(tmp_path))
