"""What a local Spark runs as `python`: it has python_server.py do the work, in a fork.

A stand-alone script (`python_command.py SOCKET ARGUMENTS...`) that needs only the standard library.
It ends when the fork does, with its exit code; if it is killed, the fork is ended. Without a server
it becomes the Python that was asked for.
"""

import marshal
import os
import socket
import struct
import sys

LENGTH = struct.Struct(">I")
STARTED = b"+"
"""The server's first byte; its second and last is the exit code."""
FAILED = 1


def main(path: str, *arguments: str) -> int:
    """Run `python` with these arguments; returns its exit code."""
    with socket.socket(socket.AF_UNIX) as server:
        if arguments[:1] != ("-m",) or not _ask(server, path, arguments):
            os.execv(sys.executable, [sys.executable, *arguments])
        code = server.recv(1)
        return code[0] if code else FAILED


def _ask(server: socket.socket, path: str, arguments: tuple[str, ...]) -> bool:
    """Whether a fork has begun, with our standard streams and environment."""
    message = marshal.dumps((arguments, dict(os.environ)))
    try:
        server.connect(path)
        socket.send_fds(server, [LENGTH.pack(len(message))], [0, 1, 2])
        server.sendall(message)
        return server.recv(1) == STARTED
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
