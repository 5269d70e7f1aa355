"""Commands that look after an installation: doctor, config."""

import json
from typing import Literal

from sendlater.cli.door import FAILED, HERE, OK, Connection, Json, app, config_app, err, out


@app.command
def doctor(*, json_: Json = False, connection: Connection = HERE) -> int:
    """Check what an installation needs, and say how to mend what is missing."""
    from sendlater.doctor import checks

    worst = OK
    for finding in checks(connection.settings()):
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


@app.command
def token(name: str, *, role: Literal["read", "write", "admin"] = "read") -> int:
    """Make a token for REST and the page: it is shown once, its line goes into http_tokens.

    Args:
        name: Whose it is; shown in the audit trail.
        role: read looks, write changes single schedules, admin changes many and undoes.
    """
    from sendlater.api.access import new_token

    made, line = new_token(name, role)
    out.print(line)
    err.print(f"the token, shown only now: {made}")
    return OK


@config_app.command(name="show")
def config_show(*, connection: Connection = HERE) -> int:
    """Print the effective settings as JSON, secrets hidden."""
    out.print(json.dumps(connection.settings().shown(), indent=2))
    return OK
