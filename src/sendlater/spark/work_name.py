"""What a Python worker does, as `top` and `ps -o comm` show it."""

from contextlib import suppress
from pathlib import Path

_NAME = Path("/proc/self/comm")
"""Of this process, on Linux; elsewhere workers keep the name of the interpreter."""
_BYTES_MAX = 15


def name_work(name: str) -> None:
    """Call this process `name`; Spark gives it other tasks later, which name it anew."""
    with suppress(OSError):
        _NAME.write_text(name[:_BYTES_MAX])
