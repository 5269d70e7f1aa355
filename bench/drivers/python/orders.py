"""The bench's lines for the queues in Python, which run in an environment without sendlater."""

import os
import sys
import time
from collections.abc import Callable

PAYLOAD_BYTES = 100
NUMBER_BYTES = 16


def carry_out(give: Callable[[str, int, int], None]) -> None:
    """Say ready, and give every order of the input: verb, number, due time in milliseconds."""
    print("ready", flush=True)
    for line in sys.stdin:
        if line == "f\n":  # every call before has waited for its answer
            print("flushed", flush=True)
        else:
            verb, number, due_ms = line.split()
            give(verb, int(number), int(due_ms))


def payload_of(number: int) -> str:
    """The number, and filling up to the size that all systems send."""
    return str(number).ljust(NUMBER_BYTES).ljust(PAYLOAD_BYTES, "x")


def note(payload: str) -> None:
    """Write down that a payload has arrived now."""
    _append(f"{payload[:NUMBER_BYTES].rstrip()} {time.time_ns() // 1_000_000}\n")


def note_ready() -> None:
    """Write down that a worker takes tasks from now on."""
    _append("ready\n")


def _append(line: str) -> None:
    """Whole lines only: several processes write to the file."""
    global _file
    if _file is None:
        flags = os.O_APPEND | os.O_CREAT | os.O_WRONLY
        _file = os.open(os.environ["BENCH_ARRIVALS"], flags, 0o600)
    os.write(_file, line.encode())


_file: int | None = None
