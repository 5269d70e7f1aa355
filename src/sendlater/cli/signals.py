"""Stops a command on SIGTERM or SIGINT."""

import os
import signal
import threading
from typing import Any

from sendlater.cli.connection import (
    INTERRUPTED,
)


def stop_on_signals() -> threading.Event:
    """An event that the first SIGTERM or SIGINT sets; the second ends the process at once."""
    stop = threading.Event()

    asked_before: list[int] = []

    def asked(number: int, _frame: Any) -> None:
        if asked_before:
            os._exit(INTERRUPTED)
        asked_before.append(number)
        # In another thread: the interrupted main thread may hold the event's lock.
        threading.Thread(target=stop.set).start()

    signal.signal(signal.SIGTERM, asked)
    signal.signal(signal.SIGINT, asked)
    return stop
