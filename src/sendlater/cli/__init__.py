"""The command line. Data on stdout, talk on stderr; doors hold no rules."""

import os
import sys

from sendlater.cli import changes, letters, running, schedules, upkeep  # noqa: F401  (they add their commands)
from sendlater.cli.door import FAILED, INTERRUPTED, NO_CONNECTION, OK, USAGE, app, err
from sendlater.errors import BadRequest, SendlaterError, Stopped, Unavailable


def main() -> None:
    """The entry point: runs a command, and turns errors into a line and an exit code."""
    try:
        code = app(sys.argv[1:])
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


def _fail(error: Exception, code: int) -> int:
    err.print(f"sendlater: {error}", style="red")
    return code
