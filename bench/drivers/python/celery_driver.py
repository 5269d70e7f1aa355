"""Sends and receives tasks of Celery with an ETA."""

import os
from datetime import UTC, datetime
from typing import Any

from celery import Celery, signals
from orders import carry_out, note, note_ready, payload_of

VISIBILITY_S = 30 * 86_400

app = Celery("bench", broker=os.environ["BENCH_URL"])
app.conf.update(
    task_default_queue=os.environ["BENCH_NAME"],
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_ignore_result=True,
    broker_transport_options={"visibility_timeout": VISIBILITY_S},
    broker_connection_retry_on_startup=True,
    worker_timer_precision=0.1,
    worker_prefetch_multiplier=4,
)


@app.task(name="message")
def message(payload: str) -> None:
    """What is measured: when the handler is called."""
    note(payload)


@signals.worker_ready.connect
def _ready(**_: Any) -> None:
    note_ready()


def main() -> None:
    """Carry out the orders."""
    moves: dict[int, int] = {}

    def id_of(number: int) -> str:
        return f"{number}-{moves.get(number, 0)}"

    def give(verb: str, number: int, due_ms: int) -> None:
        if verb in "mc":
            app.control.revoke(id_of(number))
            moves[number] = moves.get(number, 0) + 1  # an id that was revoked stays so
        if verb in "sm":
            eta = datetime.fromtimestamp(due_ms / 1_000, UTC)
            message.apply_async((payload_of(number),), eta=eta, task_id=id_of(number))

    carry_out(give)


if __name__ == "__main__":
    main()
