"""Sends and receives with sendlater's client; the environment says which installation."""

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import groupby

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from sendlater import Scheduler
from sendlater.bench.load import NUMBER_BYTES, PARTITIONS, payload_of
from sendlater.brokers.client_options import client_options
from sendlater.cli.connection import HERE, open_scheduler
from sendlater.dialects import encode_cancel
from sendlater.operations.arguments import Message

PIECE_BYTES = 1 << 20
POLL_S = 0.1
READ_COUNT_MAX = 1_000
FETCH_PAUSE_MS = 10
"""For how long a client that holds 100,000 messages which nobody has read yet fetches no more. Its
default is 1 s, in which it has given all of them away and stands still."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def main() -> None:
    """`send` or `receive`, as the first argument says."""
    with open_scheduler(HERE) as scheduler:
        gc.freeze()  # a collection of all that is imported would count as lateness
        name = os.environ["BENCH_NAME"]
        {"send": send, "receive": receive}[sys.argv[1]](scheduler, name)


def send(scheduler: Scheduler, name: str) -> None:
    """Carry out the orders, as many at once as there are."""
    print("ready", flush=True)
    for lines in _pieces():
        for verb, orders in groupby(lines, key=lambda line: line[:1]):
            if verb == b"f":
                scheduler.flush()
                print("flushed", flush=True)
            elif verb == b"c":
                for order in orders:
                    record = encode_cancel(inbox=scheduler.inbox, id=_id(name, order).encode())
                    scheduler.broker.send(record)
                scheduler.broker.flush()
            else:  # a message sent again under its id is moved
                scheduler.send_many(_message(name, order) for order in orders)


def receive(scheduler: Scheduler, name: str) -> None:
    """Note arrivals on the target topic."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    scheduler.broker.ensure(name, partitions=PARTITIONS)
    with open(os.environ["BENCH_ARRIVALS"], "ab", buffering=0) as file:
        file.write(b"ready\n")
        follow = _from_kafka if scheduler.settings.on_kafka else _from_redis
        for values in follow(scheduler, name, stop):
            arrived = b" %d\n" % (time.time_ns() // 1_000_000)
            numbers = [value[:NUMBER_BYTES].rstrip() for value in values if value]
            if numbers:
                file.write(arrived.join(numbers) + arrived)


def _from_kafka(
    scheduler: Scheduler, name: str, stop: threading.Event
) -> Iterator[list[bytes | None]]:
    """Values of a topic, read as any consumer in Python does it."""
    options = client_options(scheduler.settings)
    consumer = Consumer(
        {
            **options,
            "group.id": name,
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": FETCH_PAUSE_MS,
        }
    )
    try:
        places = (TopicPartition(name, number, OFFSET_BEGINNING) for number in range(PARTITIONS))
        consumer.assign(list(places))
        while not stop.is_set():
            # Not `consume` alone: it waits for so many, or for the whole time.
            first = consumer.poll(POLL_S)
            got = [first, *consumer.consume(READ_COUNT_MAX, 0)] if first else []
            yield [message.value() for message in got if message.error() is None]
    finally:
        consumer.close()


def _from_redis(
    scheduler: Scheduler, name: str, stop: threading.Event
) -> Iterator[list[bytes | None]]:
    for arrivals in scheduler.broker.follow(name, stop=stop):
        yield [one.value for one in arrivals]


def _pieces() -> Iterator[list[bytes]]:
    """Whole lines of the input, as many as there are now."""
    rest = b""
    while piece := os.read(sys.stdin.fileno(), PIECE_BYTES):
        *lines, rest = (rest + piece).split(b"\n")
        yield lines


def _message(name: str, order: bytes) -> Message:
    _, number, due_ms = order.split()
    return {
        "topic": name,
        "value": payload_of(int(number)),
        "key": number,
        "id": _id(name, order),
        "at": EPOCH + timedelta(milliseconds=int(due_ms)),
    }


def _id(name: str, order: bytes) -> str:
    return f"{name[-8:]}.{order.split()[1].decode()}"


if __name__ == "__main__":
    main()
