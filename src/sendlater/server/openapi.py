"""The OpenAPI document: what it says about each route, besides name and parameters."""

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.requests import Request

from sendlater import __version__
from sendlater.server.problems import PROBLEM, Problem
from sendlater.server.schema_parts import Json, ref
from sendlater.server.schemas import SCHEMAS

ABOUT = """Messages delivered at the time you choose.

Errors are problem details (RFC 9457). 400: the request does not have the shape described here. 422:
it has, but its content is not valid, such as a time too far away or a payload too large. Times are
RFC 3339 with a zone, `+15m` from now, or seconds since 1970; `*_ms` are milliseconds since 1970,
UTC.
"""

IDEMPOTENCY_KEY_CHARS_MAX = 255
IDEMPOTENCY_KEY: Json = {
    "name": "Idempotency-Key",
    "description": "A repeated request with the same key within a day gets the same answer.",
    "schema": {"type": "string", "minLength": 1, "maxLength": IDEMPOTENCY_KEY_CHARS_MAX},
}
IF_MATCH: Json = {
    "name": "If-Match",
    "description": "Change only this version (an ETag, or * for any); otherwise 412.",
    "schema": {"type": "string"},
}
IF_NONE_MATCH: Json = {
    "name": "If-None-Match",
    "description": "Answer 304 if it is still this version.",
    "schema": {"type": "string"},
}
CREATE_IF_MATCH: Json = {
    "name": "If-Match",
    "description": "Replace only this version (an ETag), as only_if version=V; otherwise 412.",
    "schema": {"type": "string"},
}
CREATE_IF_NONE_MATCH: Json = {
    "name": "If-None-Match",
    "description": "Only *: create only if nothing has this id, as only_if absent; otherwise 412.",
    "schema": {"type": "string"},
}


def documented(
    summary: str,
    *,
    answers: dict[int, str],
    body: dict[str, str] | None = None,
    headers: tuple[Json, ...] = (),
    etag: str = "",
    open_to_all: bool = False,
) -> Any:
    """Arguments of a route decorator. `answers` and `body` name schemas ("" for text); `etag` says
    when the first of the answers has one."""
    responses: dict[int | str, Json] = {
        status: {
            "description": HTTPStatus(status).phrase,
            "content": (
                {"application/json": {"schema": ref(name)}}
                if name
                else {"text/plain": {"schema": {"type": "string"}}}
            ),
        }
        for status, name in answers.items()
    }
    if etag:
        told = {"description": f"The version{etag}.", "schema": {"type": "string"}}
        responses[next(iter(answers))]["headers"] = {"ETag": told}
    responses["default"] = {
        "description": "An error.",
        "content": {PROBLEM: {"schema": ref("Problem")}},
    }
    extra: Json = {}
    if body:
        content = {kind: {"schema": ref(name)} for kind, name in body.items()}
        extra["requestBody"] = {"required": True, "content": content}
    if headers:
        extra["parameters"] = [{"in": "header", **header} for header in headers]
    if open_to_all:
        extra["security"] = []
    return {"summary": summary, "responses": responses, "openapi_extra": extra}


def describe(app: FastAPI, *, with_tokens: bool) -> None:
    """Complete the app's OpenAPI document with our schemas, examples and the token."""

    def openapi() -> Json:
        if app.openapi_schema is None:
            made = get_openapi(
                title="sendlater", version=__version__, description=ABOUT, routes=app.routes
            )
            components = made.setdefault("components", {})
            components["schemas"] = SCHEMAS
            if with_tokens:
                components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
                made["security"] = [{"token": []}]
            for operations in made["paths"].values():
                for operation in operations.values():
                    operation["responses"].pop("422", None)  # "default" covers it
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


async def require_known_words(request: Request) -> None:
    """Raises Problem for a query parameter that the route does not document: nobody would read it,
    and the answer would be about more than was meant."""
    if not request.query_params:
        return
    path = request.app.openapi()["paths"][request.scope["route"].path_format]
    told = path[request.method.lower()].get("parameters", ())
    # An id that no path can carry (`..`) is in the query.
    known = sorted(one["name"] for one in told if one["in"] == "query" or one["name"] == "id")
    for word in request.query_params:
        if word not in known:
            expected = f"one of {', '.join(known)}" if known else "no query parameter"
            raise Problem(400, f"expected {expected}, got {word[:100]!r}")
