"""REST and the page in a separate process, which does not share Python's lock with Spark's process.

The parent sends the settings through standard input and keeps it open. When the parent ends, also
after a crash, standard input closes and the child stops.
"""

import gc
import os
import pickle
import subprocess
import sys
import threading
import time
from typing import Any

import structlog
import uvicorn
from starlette.types import ASGIApp

from sendlater.addresses import bracketed
from sendlater.clock import SystemClock
from sendlater.config import Settings
from sendlater.errors import SendlaterError
from sendlater.limits import CONNECTIONS_COUNT_MAX
from sendlater.logs import configure
from sendlater.server.app import address_of, make_app
from sendlater.server.connections import Connection

READY = "sendlater-http-ready"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
KEEP_ALIVE_S = 30
GRACE_S = 5
"""How long running requests may take when the process is asked to stop."""
SWITCH_S = 0.0005
"""How long a thread may keep Python's lock while another waits for it. Each acknowledgement of the
broker takes the lock; with Python's default it would wait up to 5 ms under load."""

_log = structlog.get_logger()


def server(settings: Settings, app: ASGIApp) -> uvicorn.Server:
    """A server that is not running yet. Raises BadSettings."""
    host, port = address_of(settings)
    tls: dict[str, Any] = {}
    if settings.http_cert is not None:
        tls = {"ssl_certfile": str(settings.http_cert), "ssl_keyfile": str(settings.http_key)}
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        loop="uvloop",
        http=Connection,
        ws="none",
        log_level="warning",
        # No access log: paths contain ids, which must not end up in a log.
        access_log=False,
        server_header=False,
        limit_concurrency=CONNECTIONS_COUNT_MAX + 1,  # uvicorn refuses the one that reaches it
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
        **tls,
    )
    return uvicorn.Server(config)


class HttpProcess:
    """The child process."""

    def __init__(self, settings: Settings, *, redis_url: str, starting: bool = False) -> None:
        """Starts it and waits until it serves; `starting`: its service has just been started.
        Raises BadSettings, SendlaterError."""
        address_of(settings)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sendlater.server.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # gets a fair share of the cores beside Spark (docs/adr/0009)
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pickle.dump((settings, redis_url, starting), self._process.stdin)
        self._process.stdin.flush()
        line = self._process.stdout.readline().decode().strip()
        if not line.startswith(READY):
            self._process.wait(STOP_TIMEOUT_S)
            raise SendlaterError(f"REST could not start: {line or 'see the log'}")
        self.url = line.removeprefix(READY).strip()

    @property
    def isActive(self) -> bool:
        """Whether the process is running."""
        return self._process.poll() is None

    def exception(self) -> Exception | None:
        """Why it ended by itself."""
        status = self._process.poll()
        return None if status is None else SendlaterError(f"its process ended, status {status}")

    def stop(self) -> None:
        """The same as `close`, for who looks after it."""
        self.close()

    def close(self) -> None:
        """Stop the process; running requests are answered first."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def main() -> None:
    """The child process: reads the settings from standard input, and serves until it closes."""
    settings, redis_url, starting = pickle.load(sys.stdin.buffer)
    configure(settings)
    sys.setswitchinterval(SWITCH_S)
    try:
        app = make_app(settings, redis_url=redis_url, starting=starting)
        serving = server(settings, app)
        gc.freeze()  # permanent objects: the collector need not scan them each time
    except SendlaterError as error:
        print(str(error), flush=True)  # noqa: T201  (the parent reads it)
        sys.exit(1)

    def until_parent_ends() -> None:
        sys.stdin.buffer.read()
        app.server_state.stopping = True  # else the stop waits for live pages
        serving.should_exit = True
        # A request may hang on a broker that does not answer: end anyway, with the parent.
        time.sleep(STOP_TIMEOUT_S)
        os._exit(1)

    def tell() -> None:
        deadline = SystemClock().now_ms() + START_TIMEOUT_S * 1_000
        while not serving.started and SystemClock().now_ms() < deadline:
            time.sleep(0.01)
        scheme = "https" if settings.http_cert else "http"
        host, port = serving.servers[0].sockets[0].getsockname()[:2]
        print(f"{READY} {scheme}://{bracketed(host)}:{port}", flush=True)  # noqa: T201

    threading.Thread(target=until_parent_ends, daemon=True).start()
    threading.Thread(target=tell, daemon=True).start()
    serving.run()


if __name__ == "__main__":
    main()
