"""The surface of etf1/kafka-message-scheduler (S1): environment, REST and counter.

Its container can be swapped for ours with the same environment; its admin page and its dashboards
go on working. Shapes are those of version 0.0.9.
"""

import base64
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily
from ulid import ULID

from sendlater.client.brokers import KafkaBroker
from sendlater.clock import Clock, SystemClock
from sendlater.config import Inbox, Settings, client_options
from sendlater.dialects import encode_headers
from sendlater.errors import BadSettings, BrokerUnavailable, MissingTool, SendlaterError
from sendlater.limits import PAGE_COUNT_MAX
from sendlater.model import Origin, Record, Schedule
from sendlater.pending import Pending

LIVENESS_TIMEOUT_S = 5.0
"""Longest `/liveness` waits for its probe."""
PROBES_KEPT_MAX = 1_000
"""Probes that arrived and nobody asked for: those of other instances."""
LOG_LEVELS = {
    **dict.fromkeys(("trace", "debug"), "debug"),
    **dict.fromkeys(("warn", "warning"), "warning"),
    **dict.fromkeys(("fatal", "panic"), "critical"),
    "error": "error",
}
"""Their names and ours."""
MINI_COUNT = 3
"""Schedules of `--mini`."""
COUNTER = "kafka_scheduler_event_total"
HELP = "The number of event triggered by type"

_log = structlog.get_logger()


def etf1_flags(environment: Mapping[str, str]) -> dict[str, Any]:
    """Settings from the environment of an etf1 scheduler; what it does not name is not set.

    Raises BadSettings where etf1 would not start either: an empty broker list or history topic, a
    SINCE_DELTA after today, a configuration file that cannot be read.
    """

    def given(name: str, default: str) -> str:
        return environment.get(name, default)

    servers, history = (
        given("BOOTSTRAP_SERVERS", "localhost:9092"),
        given("HISTORY_TOPIC", "history"),
    )
    if not servers or not history:
        raise BadSettings("BOOTSTRAP_SERVERS and HISTORY_TOPIC: expected a value, got none")
    since = given("SINCE_DELTA", "0")
    if not since.lstrip("-").isdigit() or int(since) > 0:
        raise BadSettings(f"SINCE_DELTA: expected days of zero or less, got {since!r}")
    grace = environment.get("SCHEDULE_GRACE_INTERVAL")
    session = given("SESSION_TIMEOUT", "6000")
    session_ms = int(session) if session.isdigit() else 6_000
    flags: dict[str, Any] = {
        "bootstrap_servers": servers,
        "inboxes": tuple(
            Inbox(topic=topic, journal=True)
            for topic in given("SCHEDULES_TOPICS", "schedules").split(",")
        ),
        "history_topic": history,
        "lease_ms": min(max(session_ms, 1_000), 60_000),
        "kafka": _configuration(given("CONFIGURATION_FILE", "")),
        "log_level": LOG_LEVELS.get(given("LOG_LEVEL", "info").lower(), "info"),
    }
    if "GROUP_ID" in environment:
        flags["space"] = environment["GROUP_ID"]
    if grace is not None:
        # etf1 rejects what is past when it comes in time, and delivers it when it comes late. Ours
        # rejects only on request, and a grace interval is that request.
        flags |= {"past": "reject", "past_grace_s": int(grace) if grace.isdigit() else 0}
    if graylog := environment.get("GRAYLOG_SERVER"):
        flags["graylog"] = graylog
    return flags


def _configuration(path: str) -> dict[str, str]:
    """librdkafka settings of a YAML file: common, then consumer, then producer."""
    if not path:
        return {}
    try:
        import yaml
    except ImportError as error:
        raise MissingTool(
            "CONFIGURATION_FILE needs PyYAML: pip install 'sendlater[api]'"
        ) from error
    try:
        read = yaml.safe_load(Path(path).read_text()) or {}
    except (OSError, yaml.YAMLError) as error:
        raise BadSettings(f"CONFIGURATION_FILE: cannot read {path}: {error}") from error
    found: dict[str, str] = {}
    kafka = _section(read, "kafka", {"kafka"})
    for part in ("common", "consumer", "producer"):
        section = _section(kafka, part, {"common", "consumer", "producer"})
        for name, value in _section(section, "configuration", {"configuration"}).items():
            found[name] = str(value).lower() if isinstance(value, bool) else str(value)
    # Spark's producer always chooses as murmur2_random does.
    found.pop("partitioner", None)
    return found


def _section(parent: Any, name: str, known: set[str]) -> dict[str, Any]:
    if not isinstance(parent, dict) or parent.keys() - known:
        raise BadSettings(f"CONFIGURATION_FILE: expected {sorted(known)}, got {parent!r}")
    section = parent.get(name) or {}
    if not isinstance(section, dict):
        raise BadSettings(f"CONFIGURATION_FILE: {name}: expected a map, got {section!r}")
    return section


class Events:
    """The counter `kafka_scheduler_event_total{type}`, read from the store at each scrape."""

    def __init__(self, pending: "Pending | Mini") -> None:
        self._pending = pending

    def collect(self) -> Iterator[CounterMetricFamily]:
        """For prometheus_client. A type appears with its first event, as with etf1."""
        counts = self._pending.counts()
        missed = counts["missed"]
        types = {
            "invalid_schedule": counts["rejected"],
            "deleted_schedule": counts["tombstones"],
            "planned_schedule": counts["parked"] - counts["rejected"],
            "missed_schedule": missed,
            "triggered_schedule": counts["settled"] - counts["rejected"] - missed,
        }
        family = CounterMetricFamily(COUNTER, HELP, labels=["type"])
        for name, count in types.items():
            if count > 0:
                family.add_metric([f"kafka_scheduler_{name}"], count)
        yield family


class Mini:
    """In place of a store, for trying the surface without a Kafka: three schedules that renew
    themselves, the n-th due n minutes after the one before (contract 1.9)."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._began_ms = self._clock.now_ms()

    def list(self, *, count_max: int, after: tuple[int, bytes] | None = None) -> list[Schedule]:
        """As `Pending.list`: all of them, on the first page."""
        return [] if after else [self._schedule(n) for n in range(1, MINI_COUNT + 1)][:count_max]

    def counts(self) -> dict[str, int]:
        """As `Pending.counts`, of what the counter shows."""
        due = sum(self._renewals(n) for n in range(1, MINI_COUNT + 1))
        none = dict.fromkeys(("rejected", "tombstones", "missed"), 0)
        return {"parked": MINI_COUNT + due, "settled": due, **none}

    def _renewals(self, number: int) -> int:
        return (self._clock.now_ms() - self._began_ms) // (number * 60_000)

    def _schedule(self, number: int) -> Schedule:
        made_ms = self._began_ms + self._renewals(number) * number * 60_000
        return Schedule(
            id=f"schedule-{number}".encode(),
            due_ms=made_ms + number * 60_000,
            record=Record(topic="topic", key=b"%d" % number, value=b"value %d" % number),
            dialect="headers",
            origin=Origin(topic="schedules", partition=0, position=0, timestamp_ms=made_ms),
        )


class Etf1Server:
    """`/info`, `/schedules` and `/liveness` on SERVER_ADDR, `/metrics` on METRICS_ADDR."""

    def __init__(
        self, settings: Settings, pending: "Pending | Mini", *, environment: Mapping[str, str]
    ) -> None:
        self.settings, self.pending = settings, pending
        self.server_address = environment.get("SERVER_ADDR", ":8000")
        self._probe = None if isinstance(pending, Mini) else _Probe(settings)
        self._servers: list[Any] = []
        # As with etf1, an address that is taken costs that server and not the scheduler.
        for start, address in (
            (self._serve, self.server_address),
            (self._serve_metrics, environment.get("METRICS_ADDR", ":8001")),
        ):
            try:
                self._servers.append(start(*_address(address)))
            except OSError as error:
                _log.error("cannot serve", address=address, cause=str(error))

    def _serve(self, host: str, port: int) -> ThreadingHTTPServer:
        handler = type("Handler", (_Handler,), {"server_of": self})
        http = ThreadingHTTPServer((host, port), handler)
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
        """Who and where this instance is; the admin page finds brokers and topics here."""
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
        """A JSON array of what is pending, in pieces: there may be millions."""
        after, first = None, True
        yield b"["
        while page := self.pending.list(count_max=PAGE_COUNT_MAX, after=after):
            after = (page[-1].due_ms, page[-1].id)
            wanted = [s for s in page if s.origin and s.dialect == "headers"]
            if wanted:
                yield b"" if first else b","
                yield ",".join(
                    json.dumps(_as_etf1(s), separators=(",", ":")) for s in wanted
                ).encode()
                first = False
        yield b"]"

    def alive(self) -> bool:
        """Whether a probe goes through the whole pipeline in time."""
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
        """Quiet: requests are not worth a line each."""


class _Probe:
    """Sends schedules that are due at once to a topic of its own, and sees them arrive."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._broker = KafkaBroker(client_options(settings))
        self._stop = threading.Event()
        self._came = threading.Condition()
        self._ids: dict[bytes, None] = {}
        threading.Thread(target=self._follow, name="liveness", daemon=True).start()

    def _follow(self) -> None:
        while not self._stop.wait(1):
            try:
                for arrived in self._broker.follow(self._settings.liveness_topic, stop=self._stop):
                    with self._came:
                        self._ids |= {a.value: None for a in arrived if a.value}
                        while len(self._ids) > PROBES_KEPT_MAX:
                            del self._ids[next(iter(self._ids))]
                        self._came.notify_all()
            except Exception as error:
                _log.warning("liveness waits for its topic", cause=str(error))

    def comes_back(self, *, timeout_s: float) -> bool:
        """Send one and wait for it."""
        name = f"liveness-{ULID()}".encode()
        record = Record(topic=self._settings.liveness_topic, value=name)
        inbox = self._settings.journals[0]
        try:
            self._broker.send(encode_headers(record, inbox=inbox, id=name, delay_ms=0))
            self._broker.flush()
        except BrokerUnavailable:
            return False
        with self._came:
            return self._came.wait_for(lambda: name in self._ids, timeout_s)

    def close(self) -> None:
        self._stop.set()


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdigit():
        raise BadSettings(f"expected an address like :8000, got {text!r}")
    return host.strip("[]") or "0.0.0.0", int(port)
