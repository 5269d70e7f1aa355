"""Records as C programs write them: names of headers are any bytes, of which Python's client wants
to be told text."""

import ctypes
import os
from collections.abc import Iterable
from glob import glob

import confluent_kafka

FLUSH_MS = 30_000


def produce_bytes(
    bootstrap_servers: str,
    topic: str,
    *,
    key: bytes,
    value: bytes,
    headers: Iterable[tuple[str | bytes, bytes]],
) -> None:
    """Write a record and wait until it is there."""
    (path,) = glob(os.path.dirname(confluent_kafka.__file__) + ".libs/librdkafka*")
    lib, number, size = ctypes.CDLL(path), ctypes.c_int, ctypes.c_ssize_t
    for function in (lib.rd_kafka_conf_new, lib.rd_kafka_new, lib.rd_kafka_headers_new):
        function.restype = ctypes.c_void_p
    conf = ctypes.c_void_p(lib.rd_kafka_conf_new())
    lib.rd_kafka_conf_set(conf, b"bootstrap.servers", bootstrap_servers.encode(), None, size(0))
    producer = ctypes.c_void_p(lib.rd_kafka_new(0, conf, None, size(0)))
    given = ctypes.c_void_p(lib.rd_kafka_headers_new(size(2)))
    for name, content in headers:
        name = name.encode() if isinstance(name, str) else name
        lib.rd_kafka_header_add(given, name, size(len(name)), content, size(len(content)))
    topic_, value_, key_, copy, with_headers, end = (number(n) for n in (1, 4, 5, 7, 10, 0))
    arguments = [topic_, topic.encode(), value_, value, size(len(value))]
    arguments += [key_, key, size(len(key)), copy, number(2), with_headers, given]
    assert lib.rd_kafka_producev(producer, *arguments, end) == 0
    assert lib.rd_kafka_flush(producer, FLUSH_MS) == 0
    lib.rd_kafka_destroy(producer)
