"""The command that shows the effective settings."""

import json

from sendlater.cli.connection import (
    HERE,
    OK,
    Connection,
    config_app,
    out,
)


@config_app.command(name="show")
def config_show(*, connection: Connection = HERE) -> int:
    """Print the effective settings as JSON, with secrets hidden."""
    out.print(json.dumps(connection.settings().shown(), indent=2))
    return OK
