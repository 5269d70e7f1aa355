"""The command that checks an installation."""

import json
from typing import Annotated

from cyclopts import Parameter

from sendlater.cli.connection import (
    FAILED,
    HERE,
    OK,
    Connection,
    Json,
    app,
    out,
)


@app.command
def doctor(
    *,
    broker_clock: Annotated[bool, Parameter(negative="")] = False,
    json_: Json = False,
    connection: Connection = HERE,
) -> int:
    """Check what an installation needs, and say how to fix what is missing.

    Args:
        broker_clock: Compare Kafka's clock too: creates a topic for a moment and deletes it.
    """
    from sendlater.doctor import checks

    worst = OK
    for finding in checks(connection.settings_here(), broker_clock=broker_clock):
        mark = {True: "ok", None: "warn", False: "FAIL"}[finding.ok]
        worst = FAILED if finding.ok is False else worst
        if json_:
            row = {
                "check": finding.name,
                "result": mark.lower(),
                "found": finding.found,
                "mend": finding.mend,
            }
            out.print(json.dumps(row))
        else:
            out.print(f"{mark:5} {finding.name}: {finding.found}")
            if finding.ok is not True and finding.mend:
                out.print(f"      {finding.mend}")
    return worst
