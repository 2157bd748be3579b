"""From where a request may come."""

from collections.abc import Set
from urllib.parse import urlsplit

from starlette.requests import Request

from promptfed.serving.refusals import Refusal


def check_name(request: Request, hosts: Set[str] | None, hint: str) -> None:
    """Refuse a page of another site, and a host name that is not one of `hosts`, if these are given (DNS rebinding)."""
    host, origin = request.headers.get("host", ""), request.headers.get("origin")
    try:
        name = urlsplit(f"//{host}").hostname if "@" not in host else None
        page = None if origin is None else urlsplit(origin).netloc
    except ValueError as error:
        raise Refusal(400, "The Host or Origin header cannot be read.") from error
    if hosts is not None and name not in hosts:
        raise Refusal(421, f"This server does not answer to that name; see {hint}.")
    if page is not None and request.method == "POST" and page != host:
        raise Refusal(403, "A page of another site may not ask.")
