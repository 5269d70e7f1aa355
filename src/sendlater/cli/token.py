"""The command that makes a token for REST and the page."""

from typing import Literal

from sendlater.cli.connection import (
    OK,
    app,
    err,
    out,
)


@app.command
def token(name: str, *, role: Literal["read", "write", "admin"] = "read") -> int:
    """Make a token for REST and the page: it is shown once, its line goes into http_tokens.

    Args:
        name: Whose it is; shown in the audit trail.
        role: read looks, write changes single schedules, admin changes many and undoes.
    """
    from sendlater.server.auth import new_token

    made, line = new_token(name, role)
    out.print(line)
    err.print(f"the token, shown only now: {made}")
    return OK
