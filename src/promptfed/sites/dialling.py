"""A first talk with the coordinator's port, as a site's engine would have it: proxy, TCP, TLS, each by a deadline.

The engine's gRPC reads the proxy from these variables, in this order and only in small letters: grpc_proxy,
https_proxy, http_proxy; and exceptions from no_grpc_proxy or no_proxy.
"""

import base64
import os
import re
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

PROXIES, EXCEPTIONS = ("grpc_proxy", "https_proxy", "http_proxy"), ("no_grpc_proxy", "no_proxy")
SECONDS = 10.0
LONGEST = 2**13  # bytes of a proxy's answer
BEYOND = b"\r\n\r\n"


class DialError(Exception):
    """The port was not reached; the sentence says how far it went, and what to do."""


@dataclass(frozen=True)
class Credentials:
    """Files: the authority to trust, and one's own certificate with its key."""

    authority: Path
    certificate: Path
    key: Path


def find_proxy(host: str, environment: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """Return the proxy by which the engine reaches a host, and the variable that names it; both empty if none."""
    name = next((one for one in PROXIES if environment.get(one)), "")
    exempt = next((environment[one] for one in EXCEPTIONS if environment.get(one)), "")
    if not name or any(host.endswith(entry.strip()) for entry in exempt.split(",") if entry.strip()):
        return "", ""
    return environment[name], name


def dial(host: str, port: int, credentials: Credentials, seconds: float = SECONDS) -> "ssl.SSLSocket":
    """Return a connection after the TLS handshake, in which both sides have accepted each other's certificate."""
    place = f"{host}:{port}"
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # as strict as the engine's gRPC, and no stricter
        context.load_verify_locations(credentials.authority)
        context.load_cert_chain(credentials.certificate, credentials.key)
    except OSError as error:
        raise DialError(f"{credentials.certificate.parent} has no certificate with its key: {error}.") from error
    context.set_alpn_protocols(["h2"])
    plain = reach(host, port, seconds)
    try:
        secured = context.wrap_socket(plain, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        plain.close()
        raise DialError(
            f"{place} shows a certificate that this federation's authority has not signed for {host} "
            f"({error.verify_message}); something in between opens TLS, or the kit is of another federation."
        ) from error
    except TimeoutError as error:
        plain.close()
        raise DialError(f"{place} accepts connections but no TLS; is another program listening there?") from error
    except OSError as error:
        plain.close()
        raise DialError(f"{place} broke off the TLS handshake ({error}); is it the coordinator's port?") from error
    try:
        if not secured.recv(1):  # the server speaks first, once it has accepted our certificate
            raise ConnectionError("it hung up")
    except OSError as error:
        secured.close()
        raise DialError(f"{place} refused this certificate ({error}); ask the coordinator for a new kit.") from error
    return secured


def reach(host: str, port: int, seconds: float = SECONDS) -> socket.socket:
    """Return a TCP connection to the port, through a proxy if the environment names one."""
    proxy, variable = find_proxy(host)
    if proxy:
        return _through(proxy, variable, host, port, seconds)
    try:
        return socket.create_connection((host, port), seconds)
    except socket.gaierror as error:
        raise DialError(f"The name {host} is unknown here; ask for a DNS entry or a line in /etc/hosts.") from error
    except TimeoutError as error:
        raise DialError(
            f"{host}:{port} did not answer within {seconds:g} seconds; ask the firewall's owner to let this machine "
            f"out to TCP port {port}, or set https_proxy."
        ) from error
    except ConnectionRefusedError as error:
        raise DialError(f"Nothing listens on {host}:{port}; is the coordinator's server running?") from error
    except OSError as error:
        raise DialError(f"{host}:{port} cannot be reached: {error.strerror or error}.") from error


def _through(proxy: str, variable: str, host: str, port: int, seconds: float) -> socket.socket:
    """Return a tunnel that an HTTP proxy opens with CONNECT."""
    place = _read_proxy(proxy, variable)
    name = f"The proxy {place.hostname}:{place.port} of {variable}"
    lines = [f"CONNECT {host}:{port} HTTP/1.1", f"Host: {host}:{port}"]
    if place.username is not None:
        secret = f"{unquote(place.username)}:{unquote(place.password or '')}"
        lines.append(f"Proxy-Authorization: Basic {base64.b64encode(secret.encode()).decode()}")
    try:
        tunnel = socket.create_connection((str(place.hostname), place.port or 0), seconds)
    except OSError as error:
        raise DialError(f"{name} cannot be reached: {error.strerror or error}.") from error
    try:
        tunnel.sendall("\r\n".join([*lines, "", ""]).encode())
        answer = b""
        while BEYOND not in answer and len(answer) < LONGEST and (found := tunnel.recv(1)):
            answer += found
    except OSError as error:
        tunnel.close()
        raise DialError(f"{name} did not answer CONNECT within {seconds:g} seconds.") from error
    status = answer.split(b"\r\n")[0].decode("ascii", "replace")
    if not re.fullmatch(r"HTTP/1\.[01] 2\d\d\b.*", status):
        tunnel.close()
        shown = "".join(letter for letter in status[:100] if letter.isprintable()) or "nothing"
        raise DialError(f"{name} refused a tunnel to {host}:{port}: {shown}; ask its owner to allow it.")
    return tunnel


def _read_proxy(proxy: str, variable: str) -> SplitResult:
    """Return the parts of a proxy's address, if it is one that gRPC understands."""
    try:
        place = urlsplit(proxy)
        usable = place.scheme == "http" and place.hostname is not None and place.port is not None
    except ValueError:
        usable = False
    if not usable:
        raise DialError(
            f"{variable} is not a proxy for this: it must read http://HOST:PORT or http://USER:WORD@HOST:PORT."
        )
    return place
