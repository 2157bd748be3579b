"""Downloads against a loopback server that can refuse ranges, break off and send the wrong bytes."""

import hashlib
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from promptfed.core.errors import PromptFedError
from promptfed.data.datasets import INSTALLED
from promptfed.data.download import REMOTES, digest, fetch, home

BODY = bytes(range(256)) * 4000
RIGHT = "sha256:" + hashlib.sha256(BODY).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves BODY at any path, and remembers the ranges it was asked for."""

    ranges = True  # whether Range requests are honoured
    sized = True  # whether a 416 names the full size
    break_after: int | None = None  # how many bytes of each answer are sent before the line is cut
    status = 0  # an error to answer with instead

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str | None] = []
        self.url = f"http://127.0.0.1:{self.server_port}/file.bin"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        asked = self.headers["Range"]
        self.server.asked.append(asked)
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and self.server.ranges else 0
        if self.server.status:
            self.send_error(self.server.status)
        elif asked and start >= len(BODY):
            self.send_response(416)
            if self.server.sized:
                self.send_header("Content-Range", f"bytes */{len(BODY)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(BODY) - start))
            self.end_headers()
            self.wfile.write(BODY[start:][: self.server.break_after])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "file.bin"


def part(target: Path) -> Path:
    return target.with_name("file.bin.part")


def leave(target: Path, content: bytes) -> None:
    target.parent.mkdir(parents=True)
    part(target).write_bytes(content)


def test_a_whole_file_arrives(server: Server, target: Path) -> None:
    assert fetch(server.url, target, RIGHT) == target
    assert target.read_bytes() == BODY
    assert not part(target).exists()
    assert server.asked == [None]


def test_a_partial_file_is_resumed(server: Server, target: Path) -> None:
    leave(target, BODY[:1000])
    fetch(server.url, target, RIGHT)
    assert target.read_bytes() == BODY
    assert server.asked == ["bytes=1000-"]


def test_a_server_without_ranges_starts_over(server: Server, target: Path) -> None:
    server.ranges = False
    leave(target, b"?" * 1000)
    fetch(server.url, target, RIGHT)
    assert target.read_bytes() == BODY


def test_a_transfer_that_breaks_off_goes_on_where_it_stopped(server: Server, target: Path) -> None:
    server.break_after = 400_000
    fetch(server.url, target, RIGHT)
    assert target.read_bytes() == BODY
    assert server.asked == [None, "bytes=400000-", "bytes=800000-"]


def test_after_too_many_breaks_the_part_is_kept_and_the_next_call_finishes(server: Server, target: Path) -> None:
    server.break_after = 200_000
    with pytest.raises(PromptFedError, match=r"broke off after 800,000 of 1,024,000 bytes.*is kept"):
        fetch(server.url, target, RIGHT)
    assert part(target).read_bytes() == BODY[:800_000]
    server.break_after = None
    assert fetch(server.url, target, RIGHT).read_bytes() == BODY
    assert server.asked[-1] == "bytes=800000-"


@pytest.mark.parametrize("sized", [True, False])
def test_a_part_that_is_already_whole_is_taken(server: Server, target: Path, sized: bool) -> None:
    server.sized = sized
    leave(target, BODY)
    assert fetch(server.url, target, RIGHT).read_bytes() == BODY
    assert server.asked == (["bytes=1024000-"] if sized else ["bytes=1024000-", None])


def test_a_part_that_is_too_long_is_thrown_away(server: Server, target: Path) -> None:
    leave(target, BODY + b"more")
    assert fetch(server.url, target, RIGHT).read_bytes() == BODY
    assert server.asked == ["bytes=1024004-", None]


def test_a_wrong_checksum_deletes_the_part_and_says_both(server: Server, target: Path) -> None:
    wrong = "sha256:" + "0" * 64
    with pytest.raises(PromptFedError) as caught:
        fetch(server.url, target, wrong, name="cifar10")
    assert RIGHT in str(caught.value)
    assert wrong in str(caught.value)
    assert "promptfed data add cifar10 PATH" in str(caught.value)
    assert [path for path in target.parent.iterdir() if path.suffix != ".lock"] == []


def test_two_runs_want_the_same_file(server: Server, target: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: fetch(server.url, target, RIGHT), range(2)))
    assert found == [target, target]
    assert target.read_bytes() == BODY
    assert server.asked == [None]  # the second waited and took what the first had fetched


def test_a_damaged_part_never_becomes_the_file(server: Server, target: Path) -> None:
    leave(target, b"?" * 1000)
    with pytest.raises(PromptFedError, match="instead of"):
        fetch(server.url, target, RIGHT)
    assert [path for path in target.parent.iterdir() if path.suffix != ".lock"] == []


def test_a_missing_page_tells_how_to_add_a_file_by_hand(server: Server, target: Path) -> None:
    server.status = 404
    with pytest.raises(PromptFedError, match=r"404.*nothing arrived.*`promptfed data add cifar10 PATH`"):
        fetch(server.url, target, RIGHT, name="cifar10")


def test_no_network_tells_how_to_add_a_file_by_hand(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as closed:
        port = closed.server_port
    with pytest.raises(PromptFedError, match=r"Could not download .*`promptfed data add tiny PATH` takes a file\.bin"):
        fetch(f"http://127.0.0.1:{port}/file.bin", target, RIGHT, name="tiny")


def test_digest_of_known_bytes(tmp_path: Path) -> None:
    (tmp_path / "abc").write_bytes(b"abc")
    assert digest(tmp_path / "abc") == "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_home_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMPTFED_HOME", str(tmp_path))
    assert home() == tmp_path
    monkeypatch.delenv("PROMPTFED_HOME")
    assert home() == Path.home() / ".cache" / "promptfed"


def test_every_official_file_comes_over_https_and_has_a_sha256() -> None:
    remotes = [remote for remotes in REMOTES.values() for remote in remotes]
    assert len(remotes) == 7
    for remote in remotes:
        assert remote.url.startswith("https://")
        assert remote.url.endswith("/" + remote.file)
        assert all(re.fullmatch("sha256:[0-9a-f]{64}", checksum) for checksum in (remote.checksum, *remote.also))


@pytest.mark.skipif(not INSTALLED["fashion-mnist"].is_dir(), reason="Debian's dataset-fashion-mnist is not installed")
def test_the_checksums_of_debians_files_are_right() -> None:
    for remote in REMOTES["fashion-mnist"]:
        assert digest(INSTALLED["fashion-mnist"] / remote.file) in remote.also
