"""Logs: an event a line on standard error, and to a Graylog where one is named."""

import json
import logging
import socket
import sys
import zlib

import structlog
from structlog.typing import EventDict, Processor

from sendlater.config import Settings
from sendlater.limits import GELF_BYTES_MAX

SYSLOG = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
"""Severities of RFC 5424, which GELF counts in."""


def configure(settings: Settings) -> None:
    """Apply the log settings to this process. Standard output stays free for data.

    Lines are JSON objects, with colours and in columns where a person reads them on a terminal.
    """
    on_terminal = sys.stderr.isatty()
    processors: list[Processor] = [
        structlog.processors.add_log_level,
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


class _Graylog:
    """Sends each event as GELF 1.1 over UDP, one compressed datagram; what does not fit is cut."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._to = (host.strip("[]"), int(port))
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
