"""Several processes behind one port: the same answers, one that dies and is replaced, reloads, counts, and the end."""

import asyncio
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from promptfed.core.errors import PromptFedError
from promptfed.serving.crew import WorkerState, together
from promptfed.serving.metrics import Monitor
from promptfed.serving.plan import ServingPlan
from promptfed.serving.supervisor import LIMIT, WorkerSupervisor, threads_each
from promptfed.serving.tokens import beside, hashed, new_token, write_hashes
from support.command import environment, promptfed
from support.tiny_server import copied, picture, tiny_bundle, visit

PATIENCE = 120.0


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bundle(tmp_path_factory.mktemp("workers"))


@contextmanager
def working(bundle: Path, said: Path) -> Iterator[tuple[Any, int]]:
    """Start `promptfed serve` with two workers, and give its process and port; `said` gets its log.

    It is a file, since nobody reads a pipe while thousands of requests are logged.
    """
    start = "from promptfed.cli import main; main()"
    command = [sys.executable, "-c", start, "serve", str(bundle), "--workers", "2", "--port", "0", "--device", "cpu"]
    with said.open("w") as errors:
        env = environment(PYTHONUNBUFFERED="1")
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("Serving 4 clients at http://127.0.0.1:"), line or said.read_text()
        yield process, int(line.partition("127.0.0.1:")[2].partition("/")[0])
    finally:
        process.kill()
        process.communicate()


def children(process: int) -> list[int]:
    """Return a process's children."""
    return [int(one) for one in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def lives(process: int) -> bool:
    """Say whether a process has not ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until(happened: Any) -> None:
    """Wait for something."""
    end = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.02)


def ask(port: int, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, Any]:
    """Ask on a connection of its own, so that any worker may answer."""
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    line.request(method, path, body, headers)
    answer = line.getresponse()
    content = answer.read()
    line.close()
    return answer.status, content.decode() if path == "/metrics" else json.loads(content)


def counted(port: int, what: str) -> int:
    """Return a number of the metrics."""
    found = re.search(rf"^{re.escape(what)} (\d+)$", ask(port, "GET", "/metrics")[1], re.MULTILINE)
    return int(found[1]) if found else 0


def test_two_workers_from_start_to_end(bundle: Path, tmp_path: Path) -> None:
    own, said = copied(bundle, tmp_path / "shops"), tmp_path / "log"
    with working(own, said) as (process, port):
        pids = children(process.pid)
        assert len(pids) == 2
        answers_equal_those_of_one(port, own)
        one_dies_and_is_replaced(process, port, pids[0])
        a_reload_reaches_all(process, port, own)
        a_damaged_bundle_changes_nothing(port, own)
        pids = children(process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    until(lambda: not any(map(lives, pids)))
    lines = [json.loads(line) for line in said.read_text().splitlines()]
    events = Counter(line["event"] for line in lines)
    assert (events["worker died"], events["reloaded"], events["reload failed"]) == (1, 1, 0)
    assert {line["worker"] for line in lines if line["event"] == "request"} == {0, 1}


def answers_equal_those_of_one(port: int, bundle: Path) -> None:
    """Ask both, and add up what they have counted."""

    async def work(client: httpx.AsyncClient, service: Any) -> list[Any]:
        return [(await client.post(f"/v1/predict?client={one}", content=picture(one))).json() for one in range(4)]

    expected = visit(bundle, work=work)
    for turn in range(24):
        status, found = ask(port, "POST", f"/v1/predict?client={turn % 4}", picture(turn % 4))
        assert (status, found) == (200, expected[turn % 4])
    assert counted(port, 'promptfed_requests_total{route="/v1/predict",status="200"}') == 24
    assert counted(port, "promptfed_images_total") == 24
    assert counted(port, 'promptfed_request_seconds_bucket{route="/v1/predict",le="+Inf"}') == 24
    assert counted(port, "promptfed_clients") == 4
    assert ask(port, "GET", "/readyz") == (200, {"status": "ready"})


def one_dies_and_is_replaced(process: Any, port: int, victim: int) -> None:
    """Kill a worker; every request on a new connection is answered all the while, and nothing counted is lost."""
    os.kill(victim, signal.SIGKILL)
    for turn in range(20):
        assert ask(port, "POST", f"/v1/predict?client={turn % 4}", picture())[0] == 200
    until(lambda: len(children(process.pid)) == 2 and victim not in children(process.pid))
    assert counted(port, 'promptfed_requests_total{route="/v1/predict",status="200"}') == 44
    until(lambda: answered_by(port) == set(children(process.pid)))


def answered_by(port: int) -> set[int]:
    """Return which processes hold a connection when several are open at once."""
    lines = [http.client.HTTPConnection("127.0.0.1", port, timeout=60) for _ in range(8)]
    for line in lines:
        line.request("GET", "/healthz")
        line.getresponse().read()
    ends = {line.sock.getsockname()[1] for line in lines}
    found = {pid for pid, peers in holders(port).items() if peers & ends}
    for line in lines:
        line.close()
    return found


def holders(port: int) -> dict[int, set[int]]:
    """Return the far ends of every process's connections at a port."""
    sockets: dict[str, int] = {}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[1].partition(":")[2], 16) == port:
            sockets[fields[9]] = int(fields[2].partition(":")[2], 16)
    found: dict[int, set[int]] = {}
    for process in Path("/proc").glob("[0-9]*/fd"):
        try:
            links = [str(one.readlink()) for one in process.iterdir()]
        except OSError:
            continue
        peers = {sockets[link[8:-1]] for link in links if link[8:-1] in sockets and link.startswith("socket:[")}
        if peers:
            found[int(process.parent.name)] = peers
    return found


def a_reload_reaches_all(process: Any, port: int, bundle: Path) -> None:
    """Take clients away, and ask for a reload by signal and by address: no worker still knows them."""
    for client, reload in ((3, "signal"), (2, "address")):
        assert promptfed("forget", bundle, "--client", client).code == 0
        before = counted(port, "promptfed_reloads_total")
        if reload == "signal":
            process.send_signal(signal.SIGHUP)
            until(lambda before=before: counted(port, "promptfed_reloads_total") > before)
        else:
            assert ask(port, "POST", "/v1/reload") == (200, {"clients": 2})
        assert {ask(port, "POST", f"/v1/predict?client={client}", picture())[0] for _ in range(16)} == {404}


def a_damaged_bundle_changes_nothing(port: int, bundle: Path) -> None:
    """Where one cannot open the bundles, all stay with those they have."""
    about = bundle / "bundle.json"
    whole = about.read_bytes()
    about.write_bytes(whole[:-40])
    status, found = ask(port, "POST", "/v1/reload")
    assert (status, found["error"]) == (409, "The bundles cannot be opened; those before are still served.")
    about.write_bytes(whole)
    assert {ask(port, "POST", "/v1/predict?client=1", picture())[0] for _ in range(8)} == {200}


def test_without_their_parent_workers_end(bundle: Path, tmp_path: Path) -> None:
    own = copied(bundle, tmp_path / "shops")
    token = new_token()
    write_hashes(beside(own), {hashed(token): None})
    with working(own, tmp_path / "log") as (process, port):
        assert ask(port, "GET", "/metrics")[0] == 401
        assert ask(port, "POST", "/v1/reload")[0] == 401
        assert ask(port, "POST", "/v1/reload", authorization=f"Bearer {token}") == (200, {"clients": 4})
        pids = children(process.pid)
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        until(lambda: not any(map(lives, pids)))


@pytest.mark.slow  # it starts two processes only to see them end
def test_a_worker_that_cannot_start_says_why(bundle: Path, tmp_path: Path) -> None:
    own = copied(bundle, tmp_path / "shops")
    (own / "bundle.json").write_text("{")
    command = [sys.executable, "-m", "promptfed", "serve", str(own), "--workers", "2", "--port", "0"]
    ended = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    sentence = ended.stderr.splitlines()[-1]
    assert sentence.startswith("promptfed: ")
    assert "bundle.json" in sentence
    assert "Traceback" not in ended.stderr


def test_counts_add_up() -> None:
    first, second = Monitor(), Monitor()
    first.add("/healthz", 200, 0.02)
    second.add("/healthz", 200, 0.2)
    second.add("/", 404, 20.0)
    first.batch(3)
    second.batch(5)
    first.reloads, second.reloads = 2, 1
    departed = WorkerState(Monitor().counted())
    states = [WorkerState(first.counted(), 4, 7), WorkerState(second.counted(), 5, 7), departed]
    alone = Monitor()
    for route, status, seconds in (("/healthz", 200, 0.02), ("/healthz", 200, 0.2), ("/", 404, 20.0)):
        alone.add(route, status, seconds)
    alone.batch(3)
    alone.batch(5)
    alone.reloads = 2
    assert together(states) == alone.text(9, 7)


def test_a_plan_can_be_written_down(tmp_path: Path) -> None:
    plan = ServingPlan(
        (tmp_path / "a", tmp_path / "b"), hosts=frozenset({"localhost"}), certificate=(tmp_path, tmp_path)
    )
    assert ServingPlan.from_json(plan.to_json()) == plan
    assert ServingPlan.from_json(ServingPlan(()).to_json()) == ServingPlan(())


def test_workers_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert [threads_each(count) for count in (1, 2, 3, 8, 20)] == [8, 4, 2, 1, 1]


def test_workers_that_keep_on_dying_are_given_up(tmp_path: Path) -> None:
    async def run() -> None:
        with socket.socket() as taken:
            parent = WorkerSupervisor(ServingPlan((tmp_path,)), 2, taken, lambda clients: None)
            await parent._pause([0.0], "")  # the first time, at once
            with pytest.raises(PromptFedError, match="keep on dying, 5 in a minute"):
                await parent._pause([0.0] * LIMIT, "")
            with pytest.raises(PromptFedError, match="It is damaged"):
                await parent._pause([0.0] * LIMIT, "It is damaged.")
            parent.ending.set()
            await parent._pause([0.0] * (LIMIT - 1), "")  # whoever is asked to end does not wait

    asyncio.run(run())
