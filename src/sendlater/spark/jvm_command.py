"""Becomes the JVM of a local Spark, beside the server that its Python processes are forks of.

A stand-alone script (`jvm_command.py SERVER IMPORTS PROGRAM ARGUMENTS...`) that needs only the
standard library. The server begins to import before the JVM has begun. It is a child of what this
process becomes, so it is in the JVM's session, and its standard input ends when the JVM does.
"""

import os
import signal
import sys

SERVER = "sendlater.spark.python_server"


def main(directory: str, imports: str, *program: str) -> None:
    """Run `program` in place of this script; with a `directory`, start the server there first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the service, which ends the JVM
    if directory:
        reads, writes = os.pipe()
        if not os.fork():
            os.dup2(reads, 0)
            # As Spark sets them for each Python; what is imported reads them once.
            os.environ["PYTHONUNBUFFERED"] = "YES"
            os.environ.setdefault("OMP_NUM_THREADS", "1")
            os.execv(sys.executable, [sys.executable, "-m", SERVER, directory, imports])
        os.close(reads)
        os.set_inheritable(writes, True)
    os.execv(program[0], program)


if __name__ == "__main__":
    main(*sys.argv[1:])
