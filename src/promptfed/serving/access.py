"""Who asks, and for whom."""

from urllib.parse import urlsplit

from starlette.requests import Request

from promptfed.core.errors import PromptFedError
from promptfed.serving.refusals import Refusal
from promptfed.serving.service import Address, Service
from promptfed.serving.tokens import Grant

CHALLENGE = {"WWW-Authenticate": 'Bearer realm="promptfed"'}


def check_origin(request: Request, service: Service) -> None:
    """Refuse a page of another site, and without tokens a name that is not this machine's (DNS rebinding)."""
    host = request.headers.get("host", "")
    name = urlsplit(f"//{host}").hostname if "@" not in host else None
    if service.hosts is not None and name not in service.hosts:
        raise Refusal(421, "This server does not answer to that name; see promptfed serve --open.")
    origin = request.headers.get("origin")
    if origin is not None and request.method == "POST" and urlsplit(origin).netloc != host:
        raise Refusal(403, "A page of another site may not ask.")


def authorise(request: Request, service: Service) -> Grant | None:
    """Return what the request's token opens; None where no tokens are used, which opens everything."""
    if not service.tokens.used:
        return None
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise Refusal(401, "Send your token: Authorization: Bearer TOKEN.", CHALLENGE)
    try:
        grant = service.tokens.find(token.strip())
    except (PromptFedError, OSError) as error:
        raise Refusal(503, "The tokens cannot be read now; tell who runs this server.") from error
    if grant is None:
        raise Refusal(401, "This token is not known.", CHALLENGE)
    return grant


def require_operator(request: Request, service: Service) -> None:
    """Refuse whoever is not the operator; where no tokens are used, everyone is."""
    grant = authorise(request, service)
    if grant is not None and grant.client is not None:
        raise Refusal(403, "This needs the operator's token.")


def visible(service: Service, grant: Grant | None) -> dict[str, Address]:
    """Return the clients that a token opens: its own, or as the operator all of its bundle."""
    clients = service.opened.clients
    if grant is None:
        return dict(clients)
    return {
        name: address
        for name, address in clients.items()
        if address.served.folder.resolve() == grant.bundle and grant.client in (None, address.client)
    }


def find_client(request: Request, service: Service, grant: Grant | None) -> tuple[str, Address]:
    """Return the client that a request is for."""
    wanted = request.query_params.get("client")
    if grant is None or grant.client is None:
        known = service.opened.clients
        if (
            wanted is not None
            and wanted in known
            and (grant is None or known[wanted].served.folder.resolve() == grant.bundle)
        ):
            return wanted, known[wanted]
        if wanted is None and len(known) == 1:
            return next(iter(known.items()))
        if wanted is None:
            raise Refusal(400, "Say whose model to ask: ?client=…; GET /v1/clients lists them.")
        raise Refusal(404, "There is no such client; GET /v1/clients lists them.")
    own = visible(service, grant)
    if wanted is not None and wanted not in own:
        raise Refusal(403, "This token is another client's.")
    if not own:
        raise Refusal(404, "The client of this token is not served any more.")
    return next(iter(own.items()))
