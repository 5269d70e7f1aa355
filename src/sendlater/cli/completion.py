"""The command `completion`: a script for the shell."""

import sys
from typing import Literal

from sendlater.cli.connection import OK, app


@app.command
def completion(shell: Literal["bash", "zsh", "fish"]) -> int:
    """Print a script that completes commands and flags.

    Args:
        shell: Which shell the script is for.
    """
    sys.stdout.write(app.generate_completion(shell=shell))
    return OK
