"""The command line. Data goes to stdout, messages to stderr; the rules are in `operations`."""

import os
import sys
from dataclasses import fields

from sendlater.cli import (  # noqa: F401  (they add their commands)
    bench,
    cancel,
    completion,
    config,
    doctor,
    local,
    prepare,
    promote,
    rebuild,
    recurring,
    reschedule,
    reshard,
    schedules,
    serve,
    token,
    topics,
    worker,
)
from sendlater.cli.connection import (
    FAILED,
    INTERRUPTED,
    NO_CONNECTION,
    NOT_HELD,
    OK,
    USAGE,
    Connection,
    app,
    err,
)
from sendlater.errors import BadRequest, ConditionFailed, SendlaterError, Stopped, Unavailable

CONNECTION = {f"--{one.name.replace('_', '-')}" for one in fields(Connection)}


def main() -> None:
    """The entry point: runs a command, and converts errors to a message and an exit code."""
    try:
        code = app(behind_command(sys.argv[1:]))
    except ConditionFailed as error:
        code = _fail(error, NOT_HELD)
    except BadRequest as error:
        code = _fail(error, USAGE)
    except Unavailable as error:
        code = _fail(error, NO_CONNECTION)
    except (Stopped, SendlaterError) as error:
        code = _fail(error, FAILED)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = OK
    sys.exit(code if isinstance(code, int) else OK)


def behind_command(words: list[str]) -> list[str]:
    """Moves connection options from before the command to after its own arguments."""
    first = 0
    while first < len(words) and words[first].partition("=")[0] in CONNECTION:
        first += 1 if "=" in words[first] else 2
    if first >= len(words):
        return words
    end = words.index("--", first) if "--" in words[first:] else len(words)
    return words[first:end] + words[:first] + words[end:]


def _fail(error: Exception, code: int) -> int:
    err.print(f"sendlater: {error}", style="red")
    return code
