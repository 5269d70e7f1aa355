"""For users' tests: an installation in memory with a clock to be moved, and a real one."""

from sendlater.testing.embedded import Embedded
from sendlater.testing.fake import Fake

__all__ = ["Embedded", "Fake"]
