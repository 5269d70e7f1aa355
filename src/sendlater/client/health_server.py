"""Health and metrics of a worker over HTTP."""

import json
import socketserver
import threading
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from sendlater.addresses import host_and_port
from sendlater.client.handlers import Handlers
from sendlater.errors import BadSettings


class HealthServer:
    """`GET /healthz`: 200, or 503 with the types that cannot be handled; `GET /metrics`."""

    def __init__(self, address: str, handlers: Handlers) -> None:
        """`address`: host:port, this machine without a host, a free port for 0. Raises
        BadSettings."""
        host, port = host_and_port(address, setting="health")
        registry = CollectorRegistry()
        handlers.metrics(registry)
        app = _app(handlers.health, make_wsgi_app(registry))
        try:
            self._server = make_server(host, port, app, _Threads, _Silent)
        except OSError as error:
            raise BadSettings(f"health: cannot listen on {address!r}: {error}") from error
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._server.server_port

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _app(health: Callable[[], dict[str, str]], metrics: Any) -> Any:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["PATH_INFO"] != "/healthz":
            found: Iterable[bytes] = metrics(environ, start_response)
            return found
        troubles = health()
        status = "503 Service Unavailable" if troubles else "200 OK"
        start_response(status, [("Content-Type", "application/json")])
        return [json.dumps({"troubles": troubles}).encode()]

    return app


class _Threads(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Silent(WSGIRequestHandler):
    timeout = 5
    """Seconds that a silent connection may keep its thread."""

    def log_message(self, *_: Any) -> None:
        """A line for each probe is of no use."""
