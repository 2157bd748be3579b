"""How far a call to the coordinator's port gets, and the sentence for every place where it can end."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from promptfed.sites.dialling import PROXIES, Credentials, DialError, dial, find_proxy, reach
from promptfed.sites.kits import AUTHORITY, CERTIFICATE, KEY
from support.certificates import write_certificates
from support.connect_proxy import connect_proxy


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*PROXIES, "no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)


def credentials(folder: Path, site: str = "north", authority: str = "authority") -> Credentials:
    startup = write_certificates(folder, site, authority) / "engine" / "startup"
    return Credentials(startup / AUTHORITY, startup / CERTIFICATE, startup / KEY)


@contextmanager
def tls_server(folder: Path, host: str = "localhost") -> Iterator[int]:
    """Serve TLS to the authority's sites, and say something first, as HTTP/2 does."""
    own = credentials(folder, host)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.certificate, own.key)
    context.load_verify_locations(own.authority)
    context.verify_mode = ssl.CERT_REQUIRED

    def serve() -> None:
        while True:
            with contextlib.suppress(ssl.SSLError, ConnectionError):
                plain, _ = listener.accept()
                with context.wrap_socket(plain, server_side=True) as secured:
                    secured.sendall(b"hello")

    with socket.create_server(("localhost", 0)) as listener:
        threading.Thread(target=_until_closed, args=(serve,), daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def _until_closed(serve: object) -> None:
    with contextlib.suppress(OSError):
        serve()  # type: ignore[operator]


def test_both_sides_accept_each_others_certificate(tmp_path: Path) -> None:
    with tls_server(tmp_path / "server") as port:
        reached = dial("localhost", port, credentials(tmp_path / "north"))
        assert reached.getpeername()[1] == port
        reached.close()


def test_a_stranger_is_refused_and_a_strange_server_too(tmp_path: Path) -> None:
    with tls_server(tmp_path / "server") as port:
        own, foreign = credentials(tmp_path / "a"), credentials(tmp_path / "b", authority="another")
        with pytest.raises(DialError, match=rf"localhost:{port} refused this certificate .*; ask the coordinator"):
            dial("localhost", port, Credentials(own.authority, foreign.certificate, foreign.key))
        with pytest.raises(DialError, match=r"shows a certificate that this federation's authority has not signed"):
            dial("localhost", port, foreign)
        with pytest.raises(DialError, match=r"startup has no certificate with its key"):
            dial(
                "localhost", port, Credentials(own.authority, own.certificate, credentials(tmp_path / "c", "south").key)
            )
    with (
        tls_server(tmp_path / "other", "example.org") as port,
        pytest.raises(DialError, match=r"has not signed for localhost \(Hostname mismatch"),
    ):
        dial("localhost", port, own)


def test_a_port_that_is_silent_or_speaks_something_else_is_told_by_the_deadline(tmp_path: Path) -> None:
    with socket.create_server(("localhost", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(DialError, match=rf"^localhost:{port} accepts connections but no TLS; is another"):
            dial("localhost", port, credentials(tmp_path), 0.2)

        def answer() -> None:
            listener.accept()[0].close()  # the one that was told nothing
            other, _ = listener.accept()
            with other:
                other.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(DialError, match=rf"^localhost:{port} broke off the TLS handshake"):
            dial("localhost", port, credentials(tmp_path), 10)


def test_nobody_listens_and_nobody_knows_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("localhost", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(DialError, match=rf"^Nothing listens on localhost:{port}; is the coordinator's server running"):
        reach("localhost", port)

    def unknown(*given: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    def silent(*given: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", unknown)
    with pytest.raises(DialError, match=r"^The name nowhere.example is unknown here; ask for a DNS entry"):
        reach("nowhere.example", 1)
    monkeypatch.setattr(socket, "create_connection", silent)
    with pytest.raises(DialError, match=r"^a:8002 did not answer within 3 seconds; .* out to TCP port 8002, or set"):
        reach("a", 8002, 3)


# -- through a proxy ----------------------------------------------------------------------------------------------


def test_a_proxy_is_found_as_the_engine_finds_it() -> None:
    one, two = "http://one:1", "http://two:2"
    assert find_proxy("a.org", {"https_proxy": one, "http_proxy": two}) == (one, "https_proxy")
    assert find_proxy("a.org", {"https_proxy": one, "grpc_proxy": two}) == (two, "grpc_proxy")
    assert find_proxy("a.org", {"HTTPS_PROXY": one}) == ("", "")
    assert find_proxy("x.a.org", {"https_proxy": one, "no_proxy": "b.org, .a.org"}) == ("", "")
    assert find_proxy("a.org", {"https_proxy": one, "no_proxy": "a.org", "no_grpc_proxy": "b.org"})[0] == one


def test_a_tunnel_ends_at_the_server_with_tls_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tls_server(tmp_path / "server") as port, connect_proxy("wo%rd") as proxy:
        monkeypatch.setenv("https_proxy", proxy.url.replace("%", "%25"))
        dial("localhost", port, credentials(tmp_path / "north")).close()
        assert proxy.asked == [f"localhost:{port}"]
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.port}")
        with pytest.raises(
            DialError, match=rf"^The proxy 127.0.0.1:{proxy.port} of https_proxy refused a tunnel .*407"
        ):
            dial("localhost", port, credentials(tmp_path / "north"))
        assert proxy.refused == [f"localhost:{port}"]


def test_a_proxy_that_is_none_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with connect_proxy(answer=b"\x1b[2J\r\n\r\n") as proxy:
        monkeypatch.setenv("grpc_proxy", proxy.url)
        with pytest.raises(DialError, match=r"refused a tunnel to a:1: \[2J; ask its owner") as caught:
            reach("a", 1)
        assert "\x1b" not in str(caught.value)
    with pytest.raises(DialError, match=r"of grpc_proxy cannot be reached: Connection refused"):
        reach("a", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("grpc_proxy", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(DialError, match=r"did not answer CONNECT within 0.2 seconds"):
            reach("a", 1, 0.2)
    for wrong in ("https://a:1", "http://a", "http://:1", "socks5://a:1", "a:1", "http://a:x"):
        monkeypatch.setenv("grpc_proxy", wrong)
        with pytest.raises(DialError, match=r"^grpc_proxy is not a proxy for this: it must read http://HOST:PORT"):
            reach("a", 1)
