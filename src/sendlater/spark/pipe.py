"""The pipe from a worker to the JVM, into which Arrow writes a batch in some eighty pieces."""

from typing import IO

PIPE_BYTES = 64 * 1024
"""Buffer of the pipe: a small batch is one write."""
PASS_BYTES = PIPE_BYTES
"""The JVM passes rows on to a Python sink once they have this many bytes, and fill its buffer. A
filler of that size after each chunk makes it pass the chunk on at once; smaller ones make a backlog
slower."""
_pipe: IO[bytes] | None = None


def use_pipe(pipe: IO[bytes]) -> None:
    """What `pass_on` flushes from now on."""
    global _pipe
    _pipe = pipe


def pass_on() -> None:
    """Have the JVM read what has been yielded. What no worker runs, in a test, has no pipe."""
    if _pipe is not None:
        _pipe.flush()
