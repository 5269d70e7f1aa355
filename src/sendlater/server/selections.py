"""Which pending schedules a request is about: the JSON of bulk changes, and filters of lists."""

from typing import Annotated

import msgspec

from sendlater.dialects import instant_ms, names
from sendlater.dialects.tags import checked_tag
from sendlater.dialects.when import check_span
from sendlater.errors import BadRequest
from sendlater.limits import BULK_IDS_MAX
from sendlater.operations.queries import require_words
from sendlater.store import Filter


class Wanted(msgspec.Struct, forbid_unknown_fields=True):
    """The pending schedules of a bulk change: a list of ids, a filter, or all of them."""

    ids: list[Annotated[str, msgspec.Meta(min_length=1)]] | None = None
    versions: list[str] | None = None
    due_from: str | None = None
    due_to: str | None = None
    id_prefix: str | None = None
    topic: str | None = None
    tag: str | None = None
    caller: str | None = None
    all: bool = False

    def filter(self, *, now_ms: int) -> Filter:
        """The filter; due_to is not included. Raises BadTime, BadRequest."""
        return to_filter(
            due_from=self.due_from,
            due_to=self.due_to,
            id_prefix=self.id_prefix,
            topic=self.topic,
            tag=self.tag,
            caller=self.caller,
            now_ms=now_ms,
        )

    def named(self) -> dict[bytes, str]:
        """The version that each of the ids must have; empty: any. Raises BadRequest."""
        ids = self.ids or []
        if len(ids) > BULK_IDS_MAX:
            raise BadRequest(f"ids: expected at most {BULK_IDS_MAX}, got {len(ids)}")
        return dict(zip((i.encode() for i in ids), self.versions or [""] * len(ids), strict=True))

    def require_one(self) -> None:
        """Raises BadRequest unless exactly one of the three is given: a filter left empty by
        mistake would select everything."""
        names = ("due_from", "due_to", "id_prefix", "topic", "tag", "caller")
        fields = {name: getattr(self, name) for name in names}
        require_words(fields)
        if (self.ids is not None) + any(fields.values()) + self.all != 1:
            raise BadRequest(
                'expected one of ids, "all": true, and a filter that is not empty: due_from, '
                "due_to, id_prefix, topic, tag, caller"
            )
        count = len(self.ids or ())
        if self.versions is not None and len(self.versions) != count:
            raise BadRequest(
                f"versions: expected one for each of the {count} ids, empty where any will do, "
                f"got {len(self.versions)}"
            )


class BulkCancel(Wanted, forbid_unknown_fields=True, kw_only=True):
    """The body of POST /v1/schedules:cancel and :deliver-now."""

    dry_run: bool = False


class BulkMove(Wanted, forbid_unknown_fields=True, kw_only=True):
    """The body of POST /v1/schedules:reschedule: one of shift, spread and the forms of When."""

    dry_run: bool = False
    shift: int | float | str | None = None
    spread: int | float | str | None = None
    due_at: str | None = None
    due_ms: int | float | None = None
    delay: int | float | str | None = None


def to_filter(
    *,
    due_from: str | None,
    due_to: str | None,
    id_prefix: str | None,
    topic: str | None,
    now_ms: int,
    tag: str | None = None,
    caller: str | None = None,
) -> Filter:
    """A filter from texts; due_to is not included. Raises BadTime, also for a span that ends before
    it begins, and BadRequest for what is no tag.

    In a query string `+` means a space: `+15m` arrives as ` 15m`, and so does `+01:00`.
    """
    due_from, due_to = (text and text.replace(" ", "+") for text in (due_from, due_to))
    from_ms = instant_ms(due_from, now_ms=now_ms) if due_from else 0
    until_ms = instant_ms(due_to, now_ms=now_ms) if due_to else None
    check_span(from_ms, until_ms, given=(due_from, due_to))
    return Filter(
        from_ms=from_ms,
        to_ms=None if until_ms is None else until_ms - 1,
        id_prefix=(id_prefix or "").encode(errors="surrogateescape"),
        topic=topic or "",
        tag=checked_tag(tag) if tag else "",
        header=(names.CALLER_SERVICE, caller.encode(errors="surrogateescape")) if caller else None,
    )
