"""The REST reference page, made from the OpenAPI document, without a CDN."""

from functools import cache
from importlib import resources
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from jinja2 import Environment, FileSystemLoader, select_autoescape
from starlette.responses import HTMLResponse

from sendlater.server.auth import Role, require
from sendlater.server.page import assets

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
"""Content-Security-Policy: nothing from other hosts, no inline script, no inline style."""

router = APIRouter(include_in_schema=False)


@cache
def templates() -> Environment:
    """Our templates; all values are escaped."""
    loader = FileSystemLoader(str(resources.files(__package__) / "templates"))
    made = Environment(loader=loader, autoescape=select_autoescape(), trim_blocks=True)
    made.globals["asset"] = assets.address
    made.filters["json"] = lambda value: msgspec.json.format(
        msgspec.json.encode(value), indent=2
    ).decode()
    return made


def html(name: str, /, **values: Any) -> HTMLResponse:
    """A rendered page."""
    text = templates().get_template(name).render(**values)
    return HTMLResponse(text, headers={"Content-Security-Policy": POLICY})


def _schema_of(spec: Any, content: Any) -> tuple[str, Any]:
    """Name and example of the schema of a body or an answer."""
    for one in (content or {}).values():
        name = one.get("schema", {}).get("$ref", "").rpartition("/")[2]
        schema = spec["components"]["schemas"].get(name, {})
        return name, (schema.get("examples") or [None])[0]
    return "", None


@router.get("/docs")
def docs(request: Request) -> HTMLResponse:
    """Every operation with its parameters, body and answers."""
    require(request.scope, Role.READ)
    spec = request.app.openapi()
    operations = []
    for path, methods in spec["paths"].items():
        for method, operation in methods.items():
            body = operation.get("requestBody", {}).get("content")
            operations.append(
                {
                    "id": f"{method}{path}",
                    "method": method.upper(),
                    "path": path,
                    "operation": operation,
                    "body": _schema_of(spec, body),
                    "kinds": list(body or {}),
                    "answers": {
                        status: _schema_of(spec, told.get("content"))
                        for status, told in operation["responses"].items()
                    },
                }
            )
    return html("reference.html", spec=spec, operations=operations)
