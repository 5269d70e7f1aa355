"""Requests that nobody means well: raw bytes, drawn from a seed."""

import json
from dataclasses import dataclass

PATHS = (
    *("/", "/healthz", "/readyz", "/metrics", "/docs", "/openapi.json", "/sign-in", "/static/x"),
    *("/v1/schedules", "/v1/schedules/a", "/v1/schedules/a:deliver-now", "/v1/stats", "/v1/audit"),
    *("/v1/schedules/a:pause", "/v1/schedules/a:resume", "/v1/schedules/a:trigger"),
    *("/v1/schedules:cancel", "/v1/schedules:reschedule", "/v1/schedules:deliver-now"),
    *("/v1/histogram", "/v1/deliveries", "/v1/records", "/v1/records:redrive", "/v1/audit/x:undo"),
)
STRANGE_PATHS = (
    *("/%", "/%zz", "/v1/schedules/%FF%00", "/v1/schedules/" + "x" * 9_000, "//", "/..%2f..%2fetc"),
    *("*", "nothing", "http://evil.example/", "/v1/schedules/%F0%9F%98%80", "/v1/schedules/;a?b#c"),
    *("/v1/schedules?limit=-1", "/v1/schedules?limit=1e9", "/v1/schedules?cursor=AAAA%3D"),
    *("/v1/schedules?due_from=9e999", "/v1/schedules?due_to=" + "9" * 400, "/v1/stats?%FF=%FE"),
    *("/v1/records?topic=../..", "/v1/records?key=%FF", "/v1/records?id=a&since_ms=99999999999999"),
    *("/v1/records:follow?topic=t&cursor=9/9", "/v1/histogram?due_from=%2B1h&buckets=500"),
    *("/v1/deliveries?search=%00%FF", "/v1/audit?skip=100000", "/static/../../etc/passwd"),
)
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "CONNECT", "BREW")
HEADERS = (
    *(b"Host: evil.example", b"Host: ", b"Host: [::1", b"Host: \xff\xfe", b"Origin: null"),
    *(b"Cookie: sendlater-session=..; \xff=\xfe;;; =", b"Cookie: " + b"a=b; " * 3_000),
    *(b"Authorization: Bearer \xff\xff", b"Authorization: Basic Og==", b"Authorization: Bearer"),
    *(b"Content-Type: application/x-ndjson", b"Content-Type: text/xml", b"Content-Type: \xff"),
    *(b"Idempotency-Key: ", b"Idempotency-Key: " + b"k" * 300, b"Idempotency-Key: \xff"),
    *(b'If-Match: "\xff"', b"If-Match: , ,", b"If-None-Match: *", b"Accept-Encoding: \xff, gzip"),
    *(b"Upgrade: websocket\r\nConnection: upgrade", b"Expect: 100-continue", b"Connection: close"),
    *(b"X-Forwarded-For: a" * 50, b"Sec-Fetch-Site: cross-site", b"Accept: text/html"),
)
BROKEN_HEADERS = (
    *(b"no colon here", b": no name", b"a b: c", b"a: b\r\n c: folded", b"a\x00b: c", b"a: b\x00c"),
    *(b"Content-Length: -1", b"Content-Length: ten", b"Content-Length: 1\r\nContent-Length: 2"),
    *(b"Content-Length: 5\r\nTransfer-Encoding: chunked", b"Transfer-Encoding: gzip, nonsense"),
    *(b"Content-Length: " + b"9" * 30, b"a: " + b"b" * 100_000, b"a: b\r\n" * 5_000),
)
CHUNKS = (
    *(
        b"zz\r\nabc\r\n0\r\n\r\n",
        b"-1\r\n\r\n",
        b"ffffffffffffffffff\r\n",
        b"5\r\nab",
        b"0\r\n\r\n",
    ),
    *(b"3;ext=\xff\r\n{}}\r\n0\r\nTrailer: x\r\n\r\n", b"2\r\n{}X\r\n0\r\n\r\n"),
)
NO_HTTP = (
    *(
        b"",
        b"\x00" * 64,
        b"\r\n" * 200,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x55" * 200,
    ),
    *(b"GET /\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET / HTTP/1.1\n\n", b"*1\r\n$4\r\nPING\r\n"),
    *(
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\xff" * 500,
        b"GET " + b"a" * 90_000,
        b"GET  / HTTP/1.1",
    ),
)
DEEP = b"[" * 50_000


@dataclass(frozen=True)
class Hostile:
    """What is sent, in pieces. `ends`: the client says that it sends no more. If it is `complete`,
    or ends, an answer or a closed connection must follow."""

    pieces: tuple[bytes, ...]
    complete: bool
    ends: bool = False


def _body(draw):
    strange = (
        None,
        [],
        {},
        -1,
        1e308,
        2**70,
        "",
        "\x00",
        "\ud800",
        "x" * 600,
        True,
        [[None]],
        "+1h",
    )
    fields = ("topic", "value", "id", "key", "headers", "delay", "due_at", "due_ms", "partition")
    bulk = ("ids", "due_from", "id_prefix", "shift", "spread", "all", "dry_run", "places", "target")
    named = {draw.choice((*fields, *bulk)): draw.choice(strange) for _ in range(draw.randrange(6))}
    written = json.dumps(named).encode()
    return draw.choice(
        (
            *(b"", b"{", b"nul", b"NaN", b"\xff\xfe{}", DEEP, b'{"a":' * 20_000, b"\x00" * 1_000),
            *(written, written, written, written + b"\n" + written, b"\n" * 5_000 + written),
            *(b'{"topic": "t", "value": ' + DEEP, b'"' + b"\\ud800" * 99 + b'"', b"1" * 100_000),
            b'{"topic": "t", "delay": 60, "value": "%s"}' % (b"v" * draw.choice((1, 2_000_000))),
        )
    )


def hostile_request(draw, *, token):
    """One of many kinds of bad requests."""
    if draw.random() < 0.08:
        sent = draw.choice(NO_HTTP)
        return Hostile((sent,), complete=False, ends=draw.random() < 0.5)
    method, path = (
        draw.choice(METHODS),
        draw.choice(PATHS if draw.random() < 0.7 else STRANGE_PATHS),
    )
    lines = [f"{method} {path} HTTP/1.{draw.choice((0, 1, 1, 1))}".encode(), b"Host: localhost"]
    if draw.random() < 0.7:
        lines.append(b"Authorization: Bearer " + token.encode())
    lines += draw.sample(HEADERS, draw.randrange(4))
    kind = draw.random()
    if kind < 0.15:
        lines.append(draw.choice(BROKEN_HEADERS))
        return Hostile((b"\r\n".join([*lines, b"", b""]),), complete=False, ends=True)
    if kind < 0.3:
        lines.append(b"Transfer-Encoding: chunked")
        head = b"\r\n".join([*lines, b"", b""])
        return Hostile((head, draw.choice(CHUNKS)), complete=False, ends=draw.random() < 0.5)
    body = _body(draw)
    lines.append(b"Content-Length: %d" % len(body))
    whole = b"\r\n".join([*lines, b"", b""]) + body
    if kind < 0.45:  # cut off, and the line goes dead or silent
        cut = draw.randrange(len(whole))
        return Hostile((whole[:cut],), complete=False, ends=draw.random() < 0.5)
    if kind < 0.55:  # byte by byte, as far as the patience of a test goes
        return Hostile((*(whole[n : n + 1] for n in range(100)), whole[100:]), complete=True)
    if kind < 0.65:  # several at once
        return Hostile((whole * draw.randrange(2, 5),), complete=True)
    return Hostile((whole,), complete=True)
