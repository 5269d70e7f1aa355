"""The headers of messages as confluent-kafka hands them over, whatever bytes their names are."""

from operator import methodcaller
from typing import Any

from sendlater.dialects import names
from sendlater.model import Headers

UNREADABLE_HEADERS: Headers = [(names.UNREADABLE, names.UNREADABLE_BECAUSE.encode())]
"""Instead of headers that confluent-kafka cannot decode: such a record is rejected."""
_CHECKED = methodcaller("headers")
"""Not `message.headers()`: for names that are not UTF-8 it answers and leaves an error behind, and
Python's compiled fast path does not look for that."""


def headers_of(message: Any, *, unreadable: Headers) -> Headers | None:
    """The headers of a message, `unreadable` if a name is not UTF-8: that client cannot decode it,
    and one such record must not stop its reader. Ask once: after that its list has holes, which
    crash the process."""
    try:
        headers: Headers | None = _CHECKED(message)
    except (SystemError, UnicodeDecodeError):
        return list(unreadable)
    return headers
