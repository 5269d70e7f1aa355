"""Converts the client's arguments to queries: which pending schedules a list or a change is about.
No I/O."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypedDict, Unpack

from sendlater.dialects.tags import checked_tag
from sendlater.dialects.when import check_span
from sendlater.errors import BadRequest
from sendlater.limits import PAGE_COUNT_MAX
from sendlater.model import DUE_MS_MAX
from sendlater.operations.arguments import Instant, to_id, to_ms


class Selection(TypedDict, total=False):
    """Pending schedules, by what they all have: due in [due_from, due_to), and the others."""

    due_from: Instant | None
    due_to: Instant | None
    id_prefix: str
    topic: str | None
    tag: str | None


class Matching(Selection, total=False):
    """The same; `caller` is the value of header CALLER_SERVICE."""

    caller: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Which pending schedules a page shows: due in [from, to), in due order, after a cursor."""

    due_from_ms: int = 0
    due_to_ms: int | None = None
    id_prefix: bytes = b""
    topic: str | None = None
    tag: str | None = None
    caller: str | None = None
    limit: int = 100
    cursor: str | None = None


def plan_list(
    *, now_ms: int, limit: int = 100, cursor: str | None = None, **selection: Unpack[Selection]
) -> Query:
    """A page's query. Raises BadTime for what is no instant, BadRequest for what is no tag and for
    a limit that is not 1 to PAGE_COUNT_MAX."""
    _known(selection.keys() - Selection.__annotations__.keys())
    if not 0 < limit <= PAGE_COUNT_MAX:
        raise BadRequest(f"limit: expected 1 to {PAGE_COUNT_MAX}, got {limit}")
    return replace(_query(selection, now_ms=now_ms), limit=limit, cursor=cursor)


def plan_bulk(*, now_ms: int, all: bool, **matching: Unpack[Matching]) -> Query:
    """The query of a bulk operation. Raises BadRequest unless it selects by something or is for
    `all`: an empty filter may be a mistake; else as `plan_list`."""
    _known(matching.keys() - Matching.__annotations__.keys())
    require_words(matching)
    if any(matching.values()) == all:
        raise BadRequest(
            "expected either all=True or a filter that is not empty: due_from, due_to, "
            "id_prefix, topic, tag, caller"
        )
    caller = matching.get("caller")
    if not isinstance(caller, str | None):
        raise BadRequest(f"caller: expected text, got {caller!r:.100}")
    return replace(_query(matching, now_ms=now_ms), caller=caller)


def require_words(filter: Mapping[str, Any]) -> None:
    """Raises BadRequest for a part of a bulk change's filter that is given and empty: without it
    more would be changed than was meant."""
    for name, given in filter.items():
        if given in ("", b""):
            raise BadRequest(f"{name}: expected text that is not empty, got {given!r}")


def _query(chosen: Selection, *, now_ms: int) -> Query:
    due_from, due_to, tag = chosen.get("due_from"), chosen.get("due_to"), chosen.get("tag")
    from_ms = 0 if due_from is None else to_ms(due_from, what="due_from", now_ms=now_ms)
    until_ms = None if due_to is None else to_ms(due_to, what="due_to", now_ms=now_ms)
    check_span(from_ms, until_ms, given=(due_from, due_to))
    return Query(
        due_from_ms=from_ms,
        due_to_ms=until_ms,
        id_prefix=to_id(chosen.get("id_prefix") or "", what="id_prefix"),
        topic=chosen.get("topic"),
        tag=None if tag is None else checked_tag(tag),
    )


def _known(unknown: set[str]) -> None:
    if unknown:
        raise TypeError(f"got unexpected arguments: {', '.join(sorted(unknown))}")


def to_cursor(place: tuple[float, bytes]) -> str:
    """Due time and id of a page's end, as opaque text."""
    due_ms, schedule_id = place
    half = b".5" if due_ms % 1 else b""
    return base64.urlsafe_b64encode(b"%d%s:%s" % (int(due_ms), half, schedule_id)).decode()


def from_cursor(cursor: str) -> tuple[float, bytes]:
    """Due time and id in a cursor. Raises BadRequest."""
    try:
        due, colon, schedule_id = base64.b64decode(
            cursor.encode(), altchars=b"-_", validate=True
        ).partition(b":")
        whole = due.removesuffix(b".5")
        if not colon or not whole.isdigit() or len(whole) > len(str(DUE_MS_MAX)):
            raise ValueError("it is cut off")
        return float(due), schedule_id
    except ValueError as error:
        raise BadRequest(f"cursor: expected one from an earlier page, got {cursor!r}") from error
