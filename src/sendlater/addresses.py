"""Addresses as settings give them: `host:port`, `[::1]:port`, `:port`; and those of a client."""

from sendlater.errors import BadSettings

PORT_MAX = 65_535
URL_VARIABLE = "SENDLATER_URL"
"""Environment: the REST address of a client that is given no other installation."""
TOKEN_FILE_VARIABLE = "SENDLATER_TOKEN_FILE"
"""Environment: the file with the token of a client over REST."""
CA_FILE_VARIABLE = "SENDLATER_CA_FILE"
"""Environment: the file with the certificates (PEM) that a client over https trusts."""
CLIENT_VARIABLES = (URL_VARIABLE, TOKEN_FILE_VARIABLE, CA_FILE_VARIABLE)
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
