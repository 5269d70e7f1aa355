"""What a request is answered that still waits when the server has to end."""

import asyncio
import json

import pytest

from sendlater.server.app import Stopped

HTTP = {"type": "http"}
BEGIN = {"type": "http.response.start", "status": 200, "headers": []}


async def cancelled(app, scope=HTTP):
    """What was sent of a request that was cancelled while it waited."""
    sent = []

    async def send(message):
        sent.append(message)

    runs = asyncio.Event()
    task = asyncio.ensure_future(Stopped(app)({**scope, "runs": runs}, None, send))
    await runs.wait()
    task.cancel()
    try:
        await task
    finally:
        cancelled.sent = sent
    return sent


async def waits(scope, receive, send):
    scope["runs"].set()
    await asyncio.Event().wait()


async def begins(scope, receive, send):
    await send(BEGIN)
    scope["runs"].set()
    await asyncio.Event().wait()


def test_a_request_that_waits_is_told_to_try_again():
    begin, body = asyncio.run(cancelled(waits))
    headers = dict(begin["headers"])
    assert begin["status"] == 503
    assert headers[b"content-type"] == b"application/problem+json"
    assert headers[b"retry-after"] == b"1"
    assert "stops" in json.loads(body["body"])["detail"]


@pytest.mark.parametrize(("app", "scope"), [(begins, HTTP), (waits, {"type": "lifespan"})])
def test_what_has_begun_or_is_no_request_ends_as_it_is(app, scope):
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled(app, scope))
    assert cancelled.sent == [BEGIN] * (app is begins)
