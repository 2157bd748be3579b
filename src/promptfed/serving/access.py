"""Who asks, and for whom."""

from collections.abc import Mapping

from starlette.requests import Request

from promptfed.core.errors import PromptFedError
from promptfed.serving.origins import check_name
from promptfed.serving.refusals import Refusal
from promptfed.serving.service import Address, Service
from promptfed.serving.tokens import Grant

CHALLENGE = {"WWW-Authenticate": 'Bearer realm="promptfed"'}


def check_origin(request: Request, service: Service) -> None:
    """Refuse a page of another site, and without tokens a name that is not this machine's."""
    check_name(request, service.hosts, "promptfed serve --open")


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


def visible(service: Service, grant: Grant | None) -> Mapping[str, Address]:
    """Return the clients that a token opens: its own, or as the operator's all of its bundle."""
    opened = service.opened
    if grant is None:
        return opened.clients
    if grant.client is None:
        return {name: address for name, address in opened.clients.items() if address.home == grant.bundle}
    name = opened.names.get((grant.bundle, grant.client))
    return {} if name is None else {name: opened.clients[name]}


def find_client(request: Request, service: Service, grant: Grant | None) -> tuple[str, Address]:
    """Return the client that a request is for."""
    known, wanted = visible(service, grant), request.query_params.get("client")
    if wanted is not None and wanted in known:
        return wanted, known[wanted]
    if wanted is not None and grant is not None and grant.client is not None:
        raise Refusal(403, "This token is another client's.")
    if wanted is not None:
        raise Refusal(404, "There is no such client; GET /v1/clients lists them.")
    if not known:
        raise Refusal(404, "The client of this token is not served any more.")
    if len(known) > 1:
        raise Refusal(400, "Say whose model to ask: ?client=…; GET /v1/clients lists them.")
    return next(iter(known.items()))
