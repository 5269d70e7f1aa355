"""The REST interface and the counter of etf1/kafka-message-scheduler, version 0.0.9.

Our container can replace etf1's with the same environment; etf1's admin page and dashboards
continue to work.
"""

import base64
import json
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server

from sendlater.addresses import LOOPBACK, family_of, host_and_port
from sendlater.config import Settings
from sendlater.errors import SendlaterError
from sendlater.etf1.events import Events
from sendlater.etf1.mini import Mini
from sendlater.etf1.probe import LIVENESS_TIMEOUT_S, Probe
from sendlater.limits import PAGE_COUNT_MAX
from sendlater.model import Schedule
from sendlater.store import Admin, Filter, Pending

EVERYWHERE = "0.0.0.0"
"""What an address without a host means to etf1's scheduler: all interfaces."""
SILENCE_S_MAX = 30.0
"""A connection that sends or takes nothing for this long is closed: each one has a thread."""

_log = structlog.get_logger()


class Etf1Server:
    """`/info`, `/schedules` and `/liveness` on SERVER_ADDR, `/metrics` on METRICS_ADDR.

    As etf1's interface knows no authentication, whoever reaches SERVER_ADDR reads every payload.
    """

    def __init__(
        self, settings: Settings, pending: "Pending | Mini", *, environment: Mapping[str, str]
    ) -> None:
        self.settings, self.pending = settings, pending
        self.server_address = environment.get("SERVER_ADDR", ":8000")
        self._probe = None if isinstance(pending, Mini) else Probe(settings)
        self._servers: list[Any] = []
        # As in etf1's scheduler, an address in use stops this server only, not the scheduler.
        for start, setting, told in (
            (self._serve, "SERVER_ADDR", self.server_address),
            (self._serve_metrics, "METRICS_ADDR", environment.get("METRICS_ADDR", ":8001")),
        ):
            try:
                host, port = host_and_port(told, setting=setting, default=EVERYWHERE)
                self._servers.append(start(host, port))
            except OSError as error:
                _log.error("cannot serve", address=told, cause=str(error))

    def _serve(self, host: str, port: int) -> ThreadingHTTPServer:
        if host not in LOOPBACK:
            _log.warning(
                "everybody who reaches this address can read all payloads: "
                "SERVER_ADDR=127.0.0.1:8000 keeps it to this machine",
                address=f"{host}:{port}",
            )
        handler = type("Handler", (_Handler,), {"server_of": self})
        kind = type("Server", (ThreadingHTTPServer,), {"address_family": family_of(host)})
        http: ThreadingHTTPServer = kind((host, port), handler)
        http.daemon_threads = True
        threading.Thread(target=http.serve_forever, name="etf1", daemon=True).start()
        return http

    def _serve_metrics(self, host: str, port: int) -> Any:
        registry = CollectorRegistry()
        registry.register(Events(self.pending))
        ProcessCollector(registry=registry)
        return start_http_server(port, host, registry)[0]

    def close(self) -> None:
        """Stop serving."""
        for server in self._servers:
            server.shutdown()
        if self._probe is not None:
            self._probe.close()

    def info(self) -> dict[str, Any]:
        """Name and addresses of this instance, with its brokers and topics for the admin page."""
        hostname = socket.gethostname()
        found = {str(info[4][0]) for info in socket.getaddrinfo(hostname, None)}
        return {
            "hostname": hostname,
            "address": sorted(found),
            "server_address": self.server_address,
            "kafka": {
                "bootstrap_servers": self.settings.bootstrap_servers,
                "topics": list(self.settings.journals),
                "history_topic": self.settings.history_topic,
            },
        }

    def schedules(self) -> Iterator[bytes]:
        """A JSON array of the pending schedules, in pieces: there may be millions."""
        first, rows = True, self._pending()
        yield b"["
        while page := list(islice(rows, PAGE_COUNT_MAX)):
            wanted = [s for s in page if s.origin and s.dialect in ("headers", "few")]
            if wanted:
                yield b"" if first else b","
                yield ",".join(
                    json.dumps(_as_etf1(s), separators=(",", ":")) for s in wanted
                ).encode()
                first = False
        yield b"]"

    def _pending(self) -> Iterator[Schedule]:
        if isinstance(self.pending, Mini):
            return self.pending.all()
        return Admin(self.pending).all(Filter(), count_max=sys.maxsize)

    def alive(self) -> bool:
        """Whether a probe passes through the whole pipeline in time."""
        return self._probe is None or self._probe.comes_back(timeout_s=LIVENESS_TIMEOUT_S)


def _as_etf1(schedule: Schedule) -> dict[str, Any]:
    assert schedule.origin is not None, schedule
    return {
        "epoch": schedule.due_ms // 1_000,
        "id": schedule.id.decode("utf-8", "replace"),
        "target-key": (schedule.record.key or b"").decode("utf-8", "replace"),
        "target-topic": schedule.record.topic,
        "timestamp": schedule.origin.timestamp_ms // 1_000,
        "topic": schedule.origin.topic,
        "value": base64.b64encode(schedule.record.value or b"").decode(),
    }


class _Handler(BaseHTTPRequestHandler):
    server_of: Etf1Server
    protocol_version = "HTTP/1.1"
    timeout = SILENCE_S_MAX

    def do_GET(self) -> None:
        server = self.server_of
        try:
            if self.path == "/info":
                self._answer(200, json.dumps(server.info(), separators=(",", ":")).encode())
            elif self.path == "/schedules":
                self._stream(server.schedules())
            elif self.path == "/liveness":
                self._answer(200 if server.alive() else 500, b"")
            else:
                self._answer(404, b"404 page not found\n", kind="text/plain; charset=utf-8")
        except (SendlaterError, OSError) as error:
            self._answer(500, json.dumps({"error": str(error)}).encode())

    def _refuse(self) -> None:
        self._answer(405, b"")

    do_POST = do_PUT = do_DELETE = do_PATCH = _refuse

    def _answer(self, status: int, body: bytes, *, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, pieces: Iterator[bytes]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in pieces:
            if piece:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""
