"""Logs: an event a line on standard error, and to a Graylog where one is named."""

import json
import logging
import re
import socket
import sys
import threading
import zlib
from collections import OrderedDict
from hashlib import blake2b

import structlog
from structlog.typing import EventDict, Processor

from sendlater.addresses import host_and_port
from sendlater.clock import Clock, SystemClock
from sendlater.config import Settings
from sendlater.limits import GELF_BYTES_MAX, LOG_KINDS_MAX, LOG_REPEAT_MS

SYSLOG = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
"""Severities of RFC 5424, which GELF counts in."""
VARIES = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|0x[0-9a-f]+|\d+")
"""UUIDs, addresses and numbers: causes that differ in nothing else are one cause."""


def configure(settings: Settings, *, clock: Clock | None = None) -> None:
    """Apply the log settings to this process. Standard output stays free for data.

    Lines are JSON objects, with colours and in columns where a person reads them on a terminal.
    `clock` tells repeats from what is new; by default that of this host.
    """
    on_terminal = sys.stderr.isatty()
    processors: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.format_exc_info,
        _Repeats(clock or SystemClock()),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _heading,
    ]
    if settings.graylog:
        processors.append(_Graylog(settings.graylog))
    as_json = settings.log_format == "json" or (settings.log_format == "auto" and not on_terminal)
    processors.append(
        structlog.processors.JSONRenderer(default=str, ensure_ascii=False)
        if as_json
        else structlog.dev.ConsoleRenderer(colors=on_terminal)
    )
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[settings.log_level.upper()]
        ),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def _heading(_logger: object, _level: str, event: EventDict) -> EventDict:
    """When, how bad and what come first, for whoever reads the lines."""
    return {name: event[name] for name in ("timestamp", "level", "event")} | dict(event)


class _Repeats:
    """Drops a warning or an error that was told within LOG_REPEAT_MS: loops that try again would
    fill the log. The next one that is told says in `repeated` how many were dropped before it.

    The same is what agrees in every field; in `cause` and `exception`, but for what VARIES.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._told: OrderedDict[bytes, tuple[int, int]] = OrderedDict()
        """When each kind was told and how many were dropped since; the longest ago is first."""

    def __call__(self, _logger: object, level: str, event: EventDict) -> EventDict:
        """A structlog processor. What is less than a warning is never dropped."""
        if SYSLOG.get(level, SYSLOG["info"]) > SYSLOG["warning"]:
            return event
        kind, now_ms = _kind(event), self._clock.now_ms()
        with self._lock:
            told_ms, dropped = self._told.get(kind, (now_ms - LOG_REPEAT_MS, 0))
            # A clock that was set back must not silence anything.
            if 0 <= now_ms - told_ms < LOG_REPEAT_MS:
                self._told[kind] = told_ms, dropped + 1
                raise structlog.DropEvent
            self._told[kind] = now_ms, 0
            self._told.move_to_end(kind)
            if len(self._told) > LOG_KINDS_MAX:
                self._told.popitem(last=False)
        return {**event, "repeated": dropped} if dropped else event


def _kind(event: EventDict) -> bytes:
    """A digest, because a traceback is long and many kinds are remembered."""
    told = {name: str(value) for name, value in event.items()}
    for name in told.keys() & {"cause", "exception"}:
        told[name] = VARIES.sub("#", told[name])
    return blake2b(repr(sorted(told.items())).encode(), digest_size=16).digest()


class _Graylog:
    """Sends each event as GELF 1.1 over UDP, one compressed datagram; what does not fit is cut."""

    def __init__(self, address: str) -> None:
        self._to = host_and_port(address, setting="graylog", default="localhost")
        self._host = socket.gethostname()

    def __call__(self, _logger: object, level: str, event: EventDict) -> EventDict:
        """A structlog processor: the event goes on unchanged. Graylog being away costs nothing."""
        told = {f"_{k}": str(v) for k, v in event.items() if k not in ("event", "level")}
        message = {
            "version": "1.1",
            "host": self._host,
            "short_message": str(event["event"]),
            "level": SYSLOG.get(level, SYSLOG["info"]),
        }
        packed = zlib.compress(json.dumps(told | message).encode())
        if len(packed) > GELF_BYTES_MAX:
            packed = zlib.compress(json.dumps(message).encode())
        try:
            family, kind, proto, _, to = socket.getaddrinfo(*self._to, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind, proto) as graylog:
                graylog.sendto(packed, to)
        except OSError:
            pass
        return event
