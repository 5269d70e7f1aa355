"""A client for each kind of Redis URL: a server, the master that Sentinels name, a cluster.

`redis://host:port/0` names a server, and so do `rediss://` (TLS) and `unix://`;
`redis+sentinel://host:port,host:port/NAME/0` the Sentinels that know where the master NAME is;
`redis+cluster://host:port,host:port` nodes of a cluster, one of which must answer. The last two
exist with `rediss+` too. What stands behind `?` is given to redis-py, as of its `from_url`; for the
Sentinels themselves that is `sentinel_username` and `sentinel_password`.
"""

import re
from typing import Any

from redis import Redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection, parse_url
from redis.exceptions import ConnectionError as NotConnected
from redis.exceptions import ReadOnlyError, RedisClusterException, RedisError, ResponseError
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelManagedConnection, SentinelManagedSSLConnection

from sendlater.addresses import (
    CLUSTER,
    REDIS_PORT,
    SENTINEL,
    SENTINEL_PORT,
    bracketed,
    host_and_port,
)

REDIS_ERRORS = (RedisError, RedisClusterException)
"""What redis-py raises. The second is no RedisError: of a cluster no node answers."""
SENTINEL_TIMEOUT_S = 1.0
"""Longest wait for a Sentinel before the next one is asked."""
_found: dict[str, list[tuple[str, int]]] = {}
"""By the URL of a cluster its nodes, as a client of this process saw them last: those in the URL
may be gone for a while."""


class _FollowsMaster:
    """A connection ends when its server has become a replica: it would be one for ever, and the
    next connection finds the master by the same name, or asks the Sentinels."""

    def read_response(self, *given: Any, **named: Any) -> Any:
        """See redis-py's Connection."""
        try:
            return super().read_response(*given, **named)  # type: ignore[misc]
        except ResponseError as error:
            # In a script of Redis 6.2 it is not the first word.
            if not isinstance(error, ReadOnlyError) and "READONLY" not in str(error):
                raise
            self.disconnect()  # type: ignore[attr-defined]
            raise NotConnected(f"this server has become a replica: {error}") from error


class _Plain(_FollowsMaster, Connection):
    pass


class _Tls(_FollowsMaster, SSLConnection):
    pass


class _Socket(_FollowsMaster, UnixDomainSocketConnection):
    pass


class _Master(_FollowsMaster, SentinelManagedConnection):
    pass


class _TlsMaster(_FollowsMaster, SentinelManagedSSLConnection):
    pass


_CONNECTIONS = {"redis": _Plain, "rediss": _Tls, "unix": _Socket}


def open_client(url: str, *, retry: Retry, **options: Any) -> Any:
    """A Redis, or a RedisCluster; `retry` and `options` as of redis-py's `from_url`.

    Raises ValueError for a URL that cannot be read, and REDIS_ERRORS without such a cluster.
    """
    named, who, hosts, rest = _split(url)
    scheme, _, kind = named.partition("+")
    if not kind and scheme in _CONNECTIONS:
        kind_of_connection = _CONNECTIONS[scheme]
        return Redis.from_url(url, retry=retry, connection_class=kind_of_connection, **options)
    if kind not in (CLUSTER, SENTINEL) or scheme not in ("redis", "rediss"):
        expected = "redis://, rediss:// or unix://, or redis+cluster:// or redis+sentinel://"
        raise ValueError(f"expected {expected}, got {named or 'none of them'}")
    port = REDIS_PORT if kind == CLUSTER else SENTINEL_PORT
    nodes = [_node(host, default_port=port) for host in hosts.split(",")]
    base = f"{scheme}://{who}{_url_host(nodes[0])}"
    if kind == CLUSTER:
        return _cluster(url, f"{base}{rest}", nodes, retry=retry, **options)
    path, mark, query = rest.partition("?")
    name, _, number = path.strip("/").partition("/")
    if not name:
        raise ValueError("expected redis+sentinel://host:port/NAME, got no NAME of a master")
    return _master(name, f"{base}/{number or 0}{mark}{query}", nodes, retry=retry, **options)


def with_nodes(url: str, client: Any) -> str:
    """The URL of a cluster with all the nodes that `client` knows by now, for processes that do not
    know one yet: those in the URL may be gone. Any other URL as it is."""
    if not isinstance(client, RedisCluster):
        return url
    scheme, who, hosts, rest = _split(url)
    nodes = client.get_nodes()  # type: ignore[no-untyped-call]
    known = (_url_host((node.host, node.port)) for node in nodes)
    every = ",".join(dict.fromkeys((*hosts.split(","), *known)))
    return f"{scheme}://{who}{every}{rest}"


def told_by_each(client: Any, section: str) -> dict[str, dict[str, Any]]:
    """INFO of the servers behind a client, by their addresses; of a cluster of its masters. If one
    does not answer, the next call asks those that have taken over by then."""
    if not isinstance(client, RedisCluster):
        return {address_of(client): client.info(section)}
    nodes = client.get_primaries()  # type: ignore[no-untyped-call]
    return {_url_host((n.host, n.port)): client.info(section, target_nodes=n) for n in nodes}


def primaries(client: Any) -> list[Redis]:
    """Clients of the servers behind one: a cluster's masters, or the only one."""
    if not isinstance(client, RedisCluster):
        return [client]
    nodes = client.get_primaries()  # type: ignore[no-untyped-call]
    return [client.get_redis_connection(node) for node in nodes]


def address_of(client: Redis) -> str:
    """Where a server is: `host:port`, or a socket's path."""
    named = client.connection_pool.connection_kwargs
    master = getattr(client.connection_pool, "master_address", None)
    host, port = master or (named.get("host", "localhost"), named.get("port", REDIS_PORT))
    return str(named.get("path") or f"{host}:{port}")


def _split(url: str) -> tuple[str, str, str, str]:
    """Scheme; user and password with their `@`; hosts; all that follows. Not by urlsplit, which
    takes no list with an IPv6 address in it."""
    scheme, mark, left = url.partition("://")
    hosts, rest = re.fullmatch(r"([^/?]*)(.*)", left, re.DOTALL).groups()  # type: ignore[union-attr]
    who, at, hosts = hosts.rpartition("@")
    return scheme if mark else "", f"{who}{at}", hosts, rest


def _cluster(url: str, plain: str, nodes: list[tuple[str, int]], **options: Any) -> Any:
    others = {*nodes, *_found.get(url, ())} - {nodes[0]}
    startup = [ClusterNode(*node) for node in others]  # type: ignore[no-untyped-call]
    client: Any = RedisCluster.from_url(plain, startup_nodes=startup, **options)
    _found[url] = [(node.host, node.port) for node in client.get_nodes()]
    return client


def _master(name: str, plain: str, nodes: list[tuple[str, int]], **options: Any) -> Any:
    given: dict[str, Any] = parse_url(plain)  # type: ignore[no-untyped-call]
    tls = given.pop("connection_class", None) is SSLConnection
    del given["host"], given["port"]
    own = {key: given.pop(key) for key in list(given) if key.startswith("sentinel_")}
    sentinels = {
        "socket_timeout": SENTINEL_TIMEOUT_S,
        "socket_connect_timeout": SENTINEL_TIMEOUT_S,
        "retry": Retry(NoBackoff(), 0),
        "ssl": tls,
        **{key: given[key] for key in given if key.startswith("ssl_")},
        **{key.removeprefix("sentinel_"): value for key, value in own.items()},
    }
    asked: Any = Sentinel(nodes, sentinel_kwargs=sentinels)  # type: ignore[no-untyped-call]
    kind = _TlsMaster if tls else _Master
    return asked.master_for(name, connection_class=kind, **given, **options)


def _node(text: str, *, default_port: int) -> tuple[str, int]:
    if not text:
        raise ValueError("expected host:port, got nothing")
    has_port = text.rpartition("]")[2].count(":") == 1
    named = text if has_port else f"{text}:{default_port}"
    return host_and_port(named, setting="redis")


def _url_host(node: tuple[str, int]) -> str:
    host, port = node
    return f"{bracketed(host)}:{port}"
