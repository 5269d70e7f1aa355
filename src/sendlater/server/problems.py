"""Errors as RFC 9457 problem details, which say what was expected and what was received."""

import re
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from sendlater.errors import BadRequest, ConditionFailed, SendlaterError, Unavailable

PROBLEM = "application/problem+json"
TITLES = {
    400: "The request does not have the documented shape",
    401: "A token is required",
    403: "This token does not allow the request",
    404: "Not found",
    405: "Method not allowed",
    409: "The same request is already being processed",
    412: "What stands is not what the request expects",
    413: "The request is too large",
    415: "This content type is not supported",
    422: "The request is not valid",
    429: "Too many requests at once",
    500: "An error in the server",
    503: "Try again later; nothing is lost",
}


class Problem(Exception):
    """An error response; members of `more` are added to its body."""

    def __init__(
        self, status: int, detail: str, *, headers: dict[str, str] | None = None, **more: Any
    ) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers, self.more = status, detail, headers, more


class PartlyDone(Problem):
    """A request that stopped in the middle. Repeating it would change some twice, so that this is
    its answer; its audit entry can undo what was changed."""

    def __init__(self, told: str, *, audit_id: str) -> None:
        super().__init__(503, f"{told}: see audit entry {audit_id}", audit_id=audit_id)


def problem_response(problem: Problem) -> Response:
    """The response of a problem."""
    body = {
        "type": "about:blank",
        "title": TITLES.get(problem.status, "Error"),
        "status": problem.status,
        "detail": problem.detail,
        **problem.more,
    }
    return Response(
        msgspec.json.encode(body),
        status_code=problem.status,
        media_type=PROBLEM,
        headers=problem.headers,
    )


def _condition_failed(error: ConditionFailed) -> Problem:
    if error.standing is None:
        return Problem(412, str(error))
    tag = {"ETag": f'"{error.standing.version}"'}
    return Problem(412, str(error), headers=tag, standing=asdict(error.standing))


def as_problem(error: Exception) -> Problem:
    """The problem that a caller gets for an exception."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, ConditionFailed):
        return _condition_failed(error)
    if isinstance(error, BadRequest):
        return Problem(422, str(error))
    if isinstance(error, ClientDisconnect):
        return Problem(400, "the connection ended before the body")
    if isinstance(error, Unavailable):
        return Problem(503, str(error), headers={"Retry-After": "1"})
    return Problem(500, f"{type(error).__name__}: see the log")


def install(app: FastAPI, *, missing: Callable[[Request], Response | None]) -> None:
    """Have the app answer every error as a problem; `missing` may have another answer for an
    address that there is none of."""

    async def ours(_: Request, error: Exception) -> Response:
        return problem_response(as_problem(error))

    async def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        told = "; ".join(
            f"{'.'.join(str(part) for part in e['loc'])}: {e['msg']}" for e in error.errors()
        )
        return problem_response(Problem(400, told))

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 404 and (shown := missing(request)) is not None:
            return shown
        headers = dict(error.headers or {})
        # The router knows the methods of the first route with this path only.
        if error.status_code == 405 and (allowed := _allowed(app, request)):
            headers["Allow"] = ", ".join(allowed)
        return problem_response(Problem(error.status_code, str(error.detail), headers=headers))

    app.add_exception_handler(Exception, ours)
    app.add_exception_handler(Problem, ours)
    app.add_exception_handler(SendlaterError, ours)
    app.add_exception_handler(ClientDisconnect, ours)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)


def _allowed(app: FastAPI, request: Request) -> list[str]:
    """The documented methods of a path: of the longest pattern that matches, as ids can contain
    anything."""
    documented = app.openapi()["paths"]
    fitting = (path for path in documented if _pattern(path).fullmatch(request.scope["path"]))
    return sorted(map(str.upper, documented.get(max(fitting, key=len, default=""), ())))


@cache
def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\{\w+\\}", ".+", re.escape(path)))
