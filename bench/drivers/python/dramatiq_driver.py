"""Sends and receives messages of dramatiq with a delay."""

import os
import time
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from orders import carry_out, note, note_ready, payload_of


class Ready(dramatiq.Middleware):
    """Tells when a worker has started."""

    def after_worker_boot(self, _broker: Any, _worker: Any) -> None:
        """See dramatiq.Middleware."""
        note_ready()


broker = RedisBroker(url=os.environ["BENCH_URL"])
broker.add_middleware(Ready())
dramatiq.set_broker(broker)


@dramatiq.actor(queue_name=os.environ["BENCH_NAME"])
def message(payload: str) -> None:
    """What is measured: when the handler is called."""
    note(payload)


def main() -> None:
    """Carry out the orders."""

    def give(verb: str, number: int, due_ms: int) -> None:
        assert verb == "s", "it cannot move or cancel"
        delay_ms = max(0, due_ms - time.time_ns() // 1_000_000)
        message.send_with_options(args=(payload_of(number),), delay=delay_ms)

    carry_out(give)


if __name__ == "__main__":
    main()
