"""The condition of a request that creates a schedule: its field, or HTTP's own headers."""

import re

from fastapi import Request

from sendlater.errors import BadRequest
from sendlater.operations.conditions import checked_condition
from sendlater.server.problems import Problem

ETAG = re.compile(r'(W/)?"[^",\s]{1,100}"')
ANY = "*"


def etag_version(name: str, given: str) -> str:
    """The version in an ETag. Raises Problem 422."""
    if not ETAG.fullmatch(given):
        raise Problem(422, f"{name}: expected one ETag, got {given[:80]!r}")
    return given.removeprefix("W/")[1:-1]


def condition_of(request: Request, only_if: str | None) -> str | None:
    """The condition in the field, or `If-None-Match: *`, or `If-Match: "V"`; None if there is none.
    Raises BadRequest for more than one and for an unknown one, Problem 422."""
    given = [] if only_if is None else [checked_condition(only_if)]
    if (none_match := request.headers.get("if-none-match")) is not None:
        if none_match.strip() != ANY:
            raise Problem(422, f"If-None-Match: expected * here, got {none_match[:80]!r}")
        given.append("absent")
    if (match := request.headers.get("if-match")) is not None:
        given.append(f"version={etag_version('If-Match', match.strip())}")
    if len(given) > 1:
        raise BadRequest(f"expected one condition, got {' and '.join(given)}")
    return given[0] if given else None
