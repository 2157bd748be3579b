"""The description of all routes, as OpenAPI 3.1 wants it."""

from typing import Any

from promptfed.core.version import __version__

Json = dict[str, Any]
ERRORS = {
    400: "The request is incomplete or damaged.",
    401: "The token is missing or unknown.",
    403: "The token opens something else.",
    404: "There is no such client.",
    408: "The request took too long to arrive.",
    413: "There are too many bytes, pixels or images.",
    415: "The content is of another kind.",
    422: "This is not an image.",
    429: "There is no room now; see Retry-After.",
    503: "The model cannot answer.",
    504: "There was no answer in time.",
}


def document() -> Json:
    """Return the whole description."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "PromptFed", "version": __version__, "description": "Personal models over one backbone."},
        "paths": {
            "/v1/predict": {"post": _asking("Classify images", _answer(), _query("top", "Classes for each image.", 3))},
            "/v1/explain": {"post": _asking("Show where the model looks", _map(), _query("grid", "Cells a side.", 7))},
            "/v1/clients": {"get": _plain("List the clients you may ask for", _clients())},
            "/v1/model": {"get": _plain("Describe the bundles", {"type": "object"})},
            "/v1/reload": {"post": _plain("Open the bundles again", {"type": "object"})},
            "/healthz": {"get": _plain("Say that the server lives", {"type": "object"}, (), secured=False)},
            "/readyz": {"get": _plain("Say whether there is room", {"type": "object"}, (503,), secured=False)},
            "/metrics": {"get": {"summary": "Counts for Prometheus", "responses": {"200": {"description": "Text."}}}},
        },
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Error": _object({"error": {"type": "string"}})},
        },
    }


def _asking(summary: str, answer: Json, query: Json) -> Json:
    picture: Json = {"schema": {"type": "string", "format": "binary"}}
    files = {"type": "array", "items": {"type": "string", "format": "binary"}}
    client = {"name": "client", "in": "query", "schema": {"type": "string"}, "description": "Whose model to ask."}
    return _plain(summary, answer, tuple(ERRORS)) | {
        "parameters": [client, query],
        "requestBody": {
            "required": True,
            "content": {
                "image/*": picture,
                "application/octet-stream": picture,
                "multipart/form-data": {"schema": _object({"image": files})},
            },
        },
    }


def _plain(summary: str, answer: Json, statuses: tuple[int, ...] = (401, 403), *, secured: bool = True) -> Json:
    body = {"application/json": {"schema": answer}}
    wrong = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    found: Json = {"summary": summary, "responses": {"200": {"description": "The answer.", "content": body}}}
    for status in statuses:
        found["responses"][str(status)] = {"description": ERRORS[status], "content": wrong}
    return found | ({"security": [{"token": []}, {}]} if secured else {})


def _object(properties: Json) -> Json:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _query(name: str, about: str, default: int) -> Json:
    return {"name": name, "in": "query", "description": about, "schema": {"type": "integer", "default": default}}


def _answer() -> Json:
    one = _object({"class": {"type": "string"}, "probability": {"type": "number"}})
    image = _object({"classes": {"type": "array", "items": one}})
    return _object({"client": {"type": "string"}, "images": {"type": "array", "items": image}})


def _map() -> Json:
    row = {"type": "array", "items": {"type": "number"}}
    about = "What the class's probability loses when each part of the image is covered, row by row."
    found = {"client": {"type": "string"}, "class": {"type": "string"}, "probability": {"type": "number"}}
    return _object(found | {"grid": {"type": "array", "items": row, "description": about}})


def _clients() -> Json:
    one = {"client": {"type": "string"}, "name": {"type": ["string", "null"]}, "accuracy": {"type": ["number", "null"]}}
    return _object({"total": {"type": "integer"}, "clients": {"type": "array", "items": _object(one)}})
