"""A real installation of its own for a test session: the service, with an embedded Redis."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

from sendlater.client.async_scheduler import AsyncScheduler
from sendlater.client.handlers import Handlers
from sendlater.client.scheduler import Scheduler
from sendlater.errors import Unavailable

READY = "is ready"
START_S = 120.0
"""Longest wait for the service: Spark starts within some seconds, on a busy machine later."""
STOP_S = 60.0
LOOK_S = 0.05
LOG_CHARS_MAX = 2_000
"""How much of the end of the log an error shows."""


class Embedded:
    """`sendlater serve` in a process, on a directory. It needs the extra `demo`."""

    def __init__(self, directory: Path | str) -> None:
        """Starts it and waits until it is ready; use it in `with`. Raises Unavailable."""
        self.data_dir = Path(directory) / "data"
        self._log = Path(directory) / "service.log"
        # The settings of whoever runs the tests are for another installation.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SENDLATER_")}
        environment |= {"SENDLATER_DATA_DIR": str(self.data_dir), "SENDLATER_CONFIG": os.devnull}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sendlater", "serve"],
                env=environment,
                stdout=log,
                stderr=log,
            )
        try:
            self._await_ready()
        except BaseException:
            self.close()
            raise

    @property
    def arguments(self) -> dict[str, Any]:
        """What a Scheduler or Handlers need to find it."""
        return {"data_dir": self.data_dir}

    def scheduler(self) -> Scheduler:
        """A client."""
        return Scheduler(**self.arguments)

    def async_scheduler(self) -> AsyncScheduler:
        """A client for asyncio."""
        return AsyncScheduler(**self.arguments)

    def handlers(self, **arguments: Any) -> Handlers:
        """Handlers on it."""
        return Handlers(**self.arguments, **arguments)

    def close(self) -> None:
        """Stop it: gracefully, or after STOP_S at once."""
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _await_ready(self) -> None:
        deadline = time.monotonic() + START_S
        while READY not in (said := self._log.read_text(errors="replace")):
            if self._process.poll() is not None:
                raise Unavailable(f"the service has ended: {said[-LOG_CHARS_MAX:]}")
            if time.monotonic() > deadline:
                raise Unavailable(f"not ready within {START_S:g} s: {said[-LOG_CHARS_MAX:]}")
            time.sleep(LOOK_S)
