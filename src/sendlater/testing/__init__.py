"""For users' tests: an installation in memory with a clock to be moved, and a real one.

The names are loaded when they are used: pytest loads this package for its fixtures in every
environment that has it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sendlater.testing.embedded import Embedded
    from sendlater.testing.fake import Fake

_HOMES = {"Embedded": "embedded", "Fake": "fake"}

__all__ = ["Embedded", "Fake"]


def __getattr__(name: str) -> Any:
    """Load a public name from its module."""
    if name not in _HOMES:
        raise AttributeError(f"module 'sendlater.testing' has no attribute {name!r}")
    return getattr(import_module(f"sendlater.testing.{_HOMES[name]}"), name)
