"""The client's log: structlog, loaded when there is something to say: it is slow to load."""

from typing import Any


def log() -> Any:
    """structlog's logger."""
    import structlog

    return structlog.get_logger()
