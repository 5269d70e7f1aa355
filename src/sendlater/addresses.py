"""Addresses as settings give them: `host:port`, Redis URLs; and those that a client is given."""

import re
import socket
from urllib.parse import urlsplit

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
CLUSTER, SENTINEL = "cluster", "sentinel"
"""What a Redis URL names that has this behind its scheme and a plus: see redis_client.py."""
REDIS_PORT, SENTINEL_PORT = 6_379, 26_379


def host_and_port(text: str, *, setting: str, default: str = THIS_MACHINE) -> tuple[str, int]:
    """Host, `default` where it is left out, and port. Raises BadSettings naming the setting."""
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > PORT_MAX:
        raise BadSettings(f"{setting}: expected host:port, got {text!r}")
    return host.strip("[]") or default, int(port)


def bracketed(host: str) -> str:
    """A host as URLs have it: an IPv6 address in brackets (RFC 3986, 3.2.2)."""
    return f"[{host}]" if ":" in host else host


def family_of(host: str) -> socket.AddressFamily:
    """The kind of sockets that listen at a host."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def redis_urls(text: str) -> list[str]:
    """The Redis URLs in a list separated by commas; a comma within a URL separates nothing.

    Raises BadSettings, which quotes none of them: they may have passwords.

    >>> redis_urls("redis://:a,b@one/0, redis://two/0")
    ['redis://:a,b@one/0', 'redis://two/0']
    """
    urls = re.split(r",\s*(?=[a-z+]+://)", text.strip())
    if len({*urls}) < len(urls):
        raise BadSettings("expected each Redis server once, got one twice")
    if len(urls) > 1 and any(url.partition("://")[0].endswith(f"+{CLUSTER}") for url in urls):
        raise BadSettings("expected one Redis Cluster, or several servers, got a cluster in a list")
    return urls


def server_name(url: str) -> str:
    """What tells a Redis server from others, without its password: `host:port`, or a socket's path;
    of a cluster or of Sentinels all that the URL names.

    Of a URL that cannot be read it tells what it can, and raises nothing: errors quote the URL.
    """
    scheme, _, left = url.partition("://")
    if "+" in scheme:  # a list of hosts is no host to urlsplit
        return left.rpartition("@")[2].partition("?")[0]
    try:
        parts = urlsplit(url)
        if parts.scheme == "unix":
            return parts.path
        return f"{parts.hostname or 'localhost'}:{parts.port or REDIS_PORT}"
    except ValueError:
        return "unknown"
