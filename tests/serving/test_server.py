"""The server as a process: its sentences, its patience, its signals, and its end."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from promptfed.serving.recorder import HEADERS
from promptfed.serving.tokens import beside, hashed, read_hashes
from support.command import environment, promptfed, sentence
from support.tiny_server import copied, picture, tiny_bundle


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bundle(tmp_path_factory.mktemp("server"))


@contextmanager
def serving(*words: object) -> Iterator[tuple[Any, int]]:
    """Start `promptfed serve` and give its process and port."""
    start = "from promptfed.cli import main; main()"
    command = [sys.executable, "-c", start, "serve", *map(str, words), "--port", "0", "--device", "cpu"]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, env=environment(PYTHONUNBUFFERED="1"), stdout=pipe, stderr=pipe, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("Serving 4 clients at http://127.0.0.1:"), line
        yield process, int(line.partition("127.0.0.1:")[2].partition("/")[0])
    finally:
        process.kill()
        process.communicate()


def test_a_server_from_its_start_to_its_end(bundle: Path, tmp_path: Path) -> None:
    own = copied(bundle, tmp_path / "shops")
    with serving(own, "--patience", 1) as (process, port):
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
            strangers_and_friends(client)
            slow_clients_are_left(port)
            assert promptfed("forget", own, "--client", 3).code == 0
            process.send_signal(signal.SIGHUP)
            while "\npromptfed_reloads_total 1\n" not in client.get("/metrics").text:
                pass
            assert client.post("/v1/predict?client=3", content=picture()).status_code == 404
            answer = end_during_a_request(process, port, client)
        _, said = process.communicate(timeout=60)
    assert answer.startswith(b"HTTP/1.1 200")
    assert b'"client":"0"' in answer
    assert process.returncode == 0
    lines = [json.loads(line) for line in said.splitlines()]
    assert {line["event"] for line in lines} == {"request", "reloaded"}
    assert lines[0].keys() == {"time", "level", "event", "method", "route", "status", "seconds"}


def strangers_and_friends(client: httpx.Client) -> None:
    answer = client.post("/v1/predict?client=3", content=picture())
    assert answer.status_code == 200
    assert "server" not in answer.headers
    assert HEADERS.keys() <= {name.lower() for name, _ in answer.headers.raw}
    assert client.get("/", headers={"host": "evil.example"}).status_code == 200  # the page itself says nothing
    assert client.get("/v1/model", headers={"host": "evil.example"}).status_code == 421


def slow_clients_are_left(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), 30) as line:
        line.sendall(b"POST /v1/predict?client=0 HTTP/1.1\r\nHost: localh")
        assert line.recv(1) == b""
    with socket.create_connection(("127.0.0.1", port), 30) as line:
        line.sendall(b"POST /v1/predict?client=0 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nabc")
        assert line.recv(1000).startswith(b"HTTP/1.1 408")


def end_during_a_request(process: Any, port: int, client: httpx.Client) -> bytes:
    """Send half a request, ask the server to end, and return what it answers to the whole one."""
    body = picture()
    head = f"POST /v1/predict?client=0 HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", port)) as line:
        line.sendall(head + body[:10])
        client.get("/healthz")  # so the other request has begun
        process.send_signal(signal.SIGTERM)
        line.sendall(body[10:])
        return line.makefile("rb").read()


# -- sentences --------------------------------------------------------------------------------------------------------


def test_mistakes_get_one_sentence(bundle: Path, tmp_path: Path) -> None:
    def ask(*words: object) -> str:
        return sentence(promptfed("serve", *words, "--device", "cpu"))

    assert "is not a bundle: bundle.json is missing" in ask(tmp_path)
    assert "Without tokens anyone who reaches 0.0.0.0 could ask" in ask(bundle, "--host", "0.0.0.0")
    assert 'Two bundles are called "shops"' in ask(bundle, bundle)
    assert 'Unknown precision "half" in --precision' in ask(bundle, "--precision", "half")
    assert "HTTPS needs both" in ask(bundle, "--key", bundle)
    assert "There is no file" in ask(bundle, "--tokens", tmp_path / "none")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"Cannot listen on 127.0.0.1, port {port}: Address already in use." in ask(bundle, "--port", port)


def test_tokens_are_made_listed_and_revoked(bundle: Path, tmp_path: Path) -> None:
    own = copied(bundle, tmp_path / "shops")
    file = tmp_path / "shops.tokens.json"
    assert "no tokens; make one" in promptfed("token", own).out
    made = promptfed("token", own, "--client", 3).out.strip()
    operators = promptfed("token", own, "--operator").out.strip()
    assert len(made) == len("pf-") + 43
    assert read_hashes(beside(own)) == {hashed(made): 3, hashed(operators): None}
    assert made not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert promptfed("token", own).out == f"{file}: client 3, the operator\n"
    promptfed("token", own, "--client", 3, "--revoke")
    assert read_hashes(file) == {hashed(operators): None}
    assert "has no client 4; it has 0, 1, 2, 3." in sentence(promptfed("token", own, "--client", 4))
    assert "give --client or --operator" in sentence(promptfed("token", own, "--client", 1, "--operator"))
    os.chmod(file, 0o644)  # noqa: PTH101
    assert f"Others may read {file}; chmod 600 makes it private" in sentence(promptfed("serve", own))
    file.unlink()
    file.touch(0o600)
    assert "is not a file of tokens" in sentence(promptfed("serve", own))
