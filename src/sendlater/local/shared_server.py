"""Runs one server for as long as somebody holds a share of a lock file; then ends it politely.

A stand-alone script (`shared_server.py LOCK LOG GRACE_S COMMAND...`) that needs nothing but the
standard library. It writes the server's process id to its output and exits as the server exits.
The kernel drops a dead user's share, so a server goes away even after kill -9 of its last user.
"""

import fcntl
import subprocess
import sys
import threading
from pathlib import Path


def main(lock: str, log: str, grace_s: str, *command: str) -> int:
    """Run `command` until it ends or nobody uses it any more; its exit code."""
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
    # The lock is kept until this process ends: who comes in the meantime waits for a clean start.
    held = Path(lock).open("r+b")  # noqa: SIM115
    fcntl.flock(held, fcntl.LOCK_EX)
    child.terminate()
    try:
        child.wait(timeout=grace_s)
    except subprocess.TimeoutExpired:
        child.kill()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
