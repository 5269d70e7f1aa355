"""The command that creates a token for REST and the page."""

from typing import Literal

from sendlater.cli.connection import (
    OK,
    app,
    err,
    out,
)


@app.command
def token(name: str, *, role: Literal["read", "write", "admin"] = "read") -> int:
    """Create a token for REST and the page. It is shown once; add its line to the file http_tokens.

    Args:
        name: Owner, shown in the audit trail.
        role: read: read only; write: change single schedules; admin: bulk changes, redrive, undo.
    """
    from sendlater.server.auth import new_token

    made, line = new_token(name, role)
    out.print(line)
    err.print(f"the token, shown only now: {made}")
    return OK
