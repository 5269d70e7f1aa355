"""Tells schemathesis how many schedules are written in one body: a line each."""

import json

import schemathesis


@schemathesis.serializer("application/x-ndjson")
def lines(ctx, value):
    """A body of two equal lines."""
    line = value if isinstance(value, bytes) else json.dumps(value).encode()
    return b"\n".join([line] * 2)
