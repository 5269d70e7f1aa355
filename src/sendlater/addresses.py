"""Addresses as settings give them: `host:port`, `[::1]:port`, `:port`."""

from sendlater.errors import BadSettings

PORT_MAX = 65_535
THIS_MACHINE = "127.0.0.1"
"""What `:port` means in every setting of ours: who means all interfaces says `0.0.0.0:port`."""
LOOPBACK = (THIS_MACHINE, "localhost", "::1")
"""Hosts that other machines cannot reach."""


def host_and_port(text: str, *, setting: str, default: str = THIS_MACHINE) -> tuple[str, int]:
    """Host, `default` where it is left out, and port. Raises BadSettings naming the setting."""
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > PORT_MAX:
        raise BadSettings(f"{setting}: expected host:port, got {text!r}")
    return host.strip("[]") or default, int(port)
