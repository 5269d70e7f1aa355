"""Tags: words that schedules are selected by, besides their ids. Up to TAGS_COUNT_MAX of them in
one header, with commas between them."""

import re
from collections.abc import Iterable

from sendlater.dialects import names, sql
from sendlater.errors import BadRequest
from sendlater.limits import TAG_BYTES_MAX, TAGS_COUNT_MAX
from sendlater.model import Headers

TAG = rf"[0-9A-Za-z._:/@=+-]{{1,{TAG_BYTES_MAX}}}"
"""A tag. ASCII, so that it is the same in a header, a URL, a shell and a key of Redis; and without
the comma, which is between tags."""
TAGS = rf" *{TAG} *(?:, *{TAG} *){{0,{TAGS_COUNT_MAX - 1}}}"
TAG_EXPECTED = f"1 to {TAG_BYTES_MAX} letters, digits or . _ : / @ = + -"
EXPECTED = f"1 to {TAGS_COUNT_MAX} tags with commas between them, each of {TAG_EXPECTED}"


def checked_tag(tag: object) -> str:
    """The same. Raises BadRequest for what is no tag."""
    if not isinstance(tag, str) or not re.fullmatch(TAG, tag):
        raise BadRequest(f"tag: expected {TAG_EXPECTED}, got {str(tag)[:100]!r}")
    return tag


def checked_tags(given: Iterable[str] | None) -> tuple[str, ...]:
    """Tags in the order given, each once. Raises BadRequest for too many, and for what is none."""
    if given is None:
        return ()
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise BadRequest(f"tags: expected a list of tags, got {str(given)[:100]!r}")
    found = tuple(given)
    if len(found) > TAGS_COUNT_MAX:
        raise BadRequest(f"tags: expected at most {TAGS_COUNT_MAX}, got {len(found)}")
    return tuple(dict.fromkeys(map(checked_tag, found)))


def tags_headers(tags: tuple[str, ...]) -> Headers:
    """The header of tags; none if there are none."""
    return [(names.TAGS, ",".join(tags).encode())] if tags else []


def tags_text(has_tags: str) -> str:
    """The header as text: null without one, empty if it is null. `has_tags`: whether there is."""
    value = f"CAST({sql.header(sql.text(names.TAGS))} AS STRING)"
    return f"CASE WHEN {has_tags} THEN coalesce({value}, '') END"


BAD_TAGS = f"tags_text IS NOT NULL AND NOT {sql.matches('tags_text', TAGS)}"
"""Whether the header cannot be read."""

READ_TAGS = (
    "CASE WHEN tags_text IS NOT NULL "
    "THEN array_join(array_distinct(split(translate(tags_text, ' ', ''), ',')), ',') END"
)
"""The tags with commas between them, each once; null if there are none."""
