"""Addresses as settings give them: `host:port`, `[::1]:port`, `:port`."""

from sendlater.errors import BadSettings

PORT_MAX = 65_535


def host_and_port(text: str, *, setting: str, default: str) -> tuple[str, int]:
    """Host, `default` where it is left out, and port. Raises BadSettings naming the setting."""
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > PORT_MAX:
        raise BadSettings(f"{setting}: expected host:port, got {text!r}")
    return host.strip("[]") or default, int(port)
