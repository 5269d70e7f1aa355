"""Runs one server while any process holds a shared lock on a file; then stops it gracefully.

A stand-alone script (`shared_server.py LOCK LOG GRACE_S COMMAND...`) that needs only the standard
library. It prints the server's process id, and exits with the server's exit code. The kernel
releases the lock of a dead process, so the server ends even after kill -9 of its last user.
"""

import fcntl
import subprocess
import sys
import threading
from pathlib import Path


def main(lock: str, log: str, grace_s: str, *command: str) -> int:
    """Run `command` until it ends or has no user any more; returns its exit code."""
    with Path(log).open("ab") as output:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
    sys.stdout.write(f"{child.pid}\n")
    sys.stdout.close()
    threading.Thread(
        target=_end_when_unused, args=(child, lock, float(grace_s)), daemon=True
    ).start()
    return child.wait()


def _end_when_unused(child: "subprocess.Popen[bytes]", lock: str, grace_s: float) -> None:
    # Keep the lock until this process ends: a new user waits, and then starts another server.
    held = Path(lock).open("r+b")  # noqa: SIM115
    fcntl.flock(held, fcntl.LOCK_EX)
    child.terminate()
    try:
        child.wait(timeout=grace_s)
    except subprocess.TimeoutExpired:
        child.kill()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
