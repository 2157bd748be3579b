"""The stream of events: over HTTP from a server in a thread, and whose curves it chooses."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from promptfed.core.files import held
from promptfed.serving.watching.board import View
from promptfed.serving.watching.stream import FOLLOWED, Choice
from promptfed.serving.watching.watched import Entry
from support.command import environment, promptfed, sentence
from support.fake_runs import write_run
from support.growing_runs import begun, grow
from support.live_view import Listener, Shown

# -- whose curves -----------------------------------------------------------------------------------------------------


def view(**states: str) -> View:
    """Return a view of runs that were begun one after another."""
    made = {name: (1, Entry(name, name, "", state, mean="50")) for name, state in states.items()}
    newest_first = list(states)[::-1]
    order = sorted(newest_first, key=lambda name: states[name] != "running")
    return View(1, tuple(order), 1, made)


def test_those_at_work_are_followed_and_stay() -> None:
    choice = Choice(None)
    assert choice.slots(View()) == ()
    assert choice.slots(view(a="finished", b="stopped")) == ("b",)
    assert choice.slots(view(a="finished", b="stopped", c="running")) == ("c",)
    assert choice.slots(view(c="running", d="running")) == ("c", "d")
    assert choice.slots(view(c="finished", d="running")) == ("c", "d")
    assert choice.slots(view(d="running")) == ("", "d")
    many = {f"r{number}": "running" for number in range(FOLLOWED)}
    assert set(many) == set(choice.slots(view(d="finished", **many)))


def test_those_asked_for_keep_their_colours() -> None:
    choice = Choice("b,,a,gone")
    assert choice.slots(view(a="finished", b="running", c="running")) == ("b", "", "a", "")
    assert Choice("").slots(view(a="running")) == ("",)
    assert len(Choice("," * 500).slots(view())) == 16


# -- over HTTP --------------------------------------------------------------------------------------------------------


def test_a_stream_follows_a_run(tmp_path: Path) -> None:
    record = begun(tmp_path / "run")
    with held(tmp_path / "run" / ".lock", wait=False), Shown(tmp_path) as port, Listener(port) as listener:
        assert listener.answer.headers["content-type"].startswith("text/event-stream")
        first = listener.next("runs")
        assert (first["whole"], first["title"]) == (True, tmp_path.name)
        (run,) = first["runs"]
        assert (run["name"], run["state"], run["round"]) == ("run", "running", 4)
        before = listener.next("curves")
        assert before["slots"] == [run["key"]]
        grow(record, 2)
        assert listener.until("runs", lambda found: found["runs"][0]["round"] == 6).keys() == {"runs", "unread"}
        assert listener.next("curves")["wide"] != before["wide"]
        record.rewind(4)
        listener.until("runs", lambda found: found["runs"][0]["round"] == 4)
        assert listener.next("curves")["wide"] == before["wide"]


def test_a_reader_who_comes_back_gets_what_is_new(tmp_path: Path) -> None:
    record = begun(tmp_path / "a")
    begun(tmp_path / "b")
    with Shown(tmp_path) as port:
        with Listener(port) as listener:
            first = listener.next("runs")
            listener.next("curves")
            last = listener.last
        grow(record)
        with Listener(port, last=last) as listener:
            found = listener.next("runs")
            assert [one["name"] for one in found["runs"]] == ["a"]
            assert "whole" not in found
        with Listener(port, f"?since={last}") as listener:
            assert [one["name"] for one in listener.next("runs")["runs"]] == ["a"]
        for strange in ("of-another-server", "0-1", f"{last}9" * 20, "\x7f"):
            with Listener(port, last=strange) as listener:
                assert len(listener.next("runs")["runs"]) == len(first["runs"]) == 2
        keys = {one["name"]: one["key"] for one in first["runs"]}
        with Listener(port, f"?show=,{keys['b']}") as listener:
            assert listener.next("curves")["slots"] == ["", keys["b"]]


def test_nobody_watching_means_nothing_is_read(tmp_path: Path) -> None:
    begun(tmp_path / "run")
    shown = Shown(tmp_path)
    with shown as port:
        assert shown.broadcast.board.view.version == 0
        with Listener(port) as listener:
            listener.next("runs")
            assert shown.broadcast.watching == 1
        while shown.broadcast.watching:  # the server sees that the reader has gone
            pass
        assert shown.broadcast._reading is None


def test_answers_are_strict(tmp_path: Path) -> None:
    def ask(method: str, path: str, **headers: str) -> tuple[int, Any, bytes]:
        line = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        line.request(method, path, headers=headers)
        answer = line.getresponse()
        body = answer.read()
        line.close()
        return answer.status, answer.headers, body

    with Shown(tmp_path) as port:
        for path in ("/", "/watch.js", "/watch.css", "/report.css", "/icon.svg", "/healthz"):
            status, headers, body = ask("GET", path)
            policy = headers["content-security-policy"]
            assert (status, "default-src 'none'" in policy, "unsafe" in policy) == (200, True, False)
            assert b"http://" not in body.replace(b"http://www.w3.org", b"")
            assert b"https://" not in body
        assert ask("GET", "/v1/events", host="evil.example")[0] == 421
        assert ask("GET", "/healthz", host="evil.example")[0] == 421
        assert ask("GET", f"/v1/events?show={'a' * 500}")[0] == 400
        assert ask("POST", "/v1/events")[0] == 405
        status, _, body = ask("GET", "/../../etc/passwd")
        assert (status, json.loads(body)) == (404, {"error": "There is no such address."})


# -- as a command -----------------------------------------------------------------------------------------------------


def test_the_command_ends_with_streams_open(tmp_path: Path) -> None:
    write_run(tmp_path / "run", rounds=2)
    command = [sys.executable, "-c", "from promptfed.cli import main; main()", "watch", str(tmp_path), "--port", "0"]
    for number in (signal.SIGTERM, signal.SIGINT):
        process = subprocess.Popen(
            command, env=environment(PYTHONUNBUFFERED="1"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith(f"Watching {tmp_path} at http://127.0.0.1:")
            assert line.endswith("/; press Ctrl-C to stop.\n")
            with Listener(int(line.partition("127.0.0.1:")[2].partition("/")[0])) as listener:
                listener.next("curves")
                process.send_signal(number)
                assert listener.rest().strip() == b""
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
            process.communicate()
        assert (process.returncode, said) == (0, "")


def test_mistakes_get_one_sentence(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    (tmp_path / "file").touch()
    assert f'There is no {tmp_path}/run; did you mean "{runs}"?' in sentence(promptfed("watch", tmp_path / "run"))
    assert "file is a file; give a folder of runs" in sentence(promptfed("watch", tmp_path / "file"))
    assert "Anyone who reaches 0.0.0.0 could see these runs" in sentence(promptfed("watch", runs, "--host", "0.0.0.0"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        asked = promptfed("watch", runs, "--port", port)
    assert f"Cannot listen on 127.0.0.1, port {port}: Address already in use." in sentence(asked)


def test_it_needs_no_torch(tmp_path: Path) -> None:
    script = "import sys, promptfed.cli, promptfed.serving.watching.live; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], env=environment(), check=False).returncode == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_passed_over(tmp_path: Path) -> None:
    begun(tmp_path / "run")
    (tmp_path / "locked").mkdir(mode=0)
    with Shown(tmp_path) as port, Listener(port) as listener:
        assert [one["name"] for one in listener.next("runs")["runs"]] == ["run"]
