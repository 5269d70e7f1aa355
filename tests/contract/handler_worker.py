"""A worker process of test_handler_workers: fails at random, notes each success, never too many."""

import asyncio
import json
import os
import random
import sys
from contextlib import suppress

from sendlater import Backoff, Context, Handlers
from sendlater.brokers import group_reader as readers

PARALLELISM = 16
RETRIES = 4
FAIL_SHARE = 0.25
HOPELESS_EVERY = 40
"""Each event whose number this divides fails always."""
TIMEOUT_S = 2
MARGIN_S = 1
"""On Redis what a killed worker had begun is taken over after both."""


async def main(told):
    notes = os.open(told["notes"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    app = Handlers(*told["where"], **told["arguments"], group="g", dead_topic=told["dead"])
    running = 0
    readers.IDLE_MARGIN_S = MARGIN_S
    retry = Backoff(min_s=0.05, max_s=0.3, retries=RETRIES)

    @app.on(told["type"], parallelism=PARALLELISM, retry=retry, timeout=TIMEOUT_S)
    async def work(event: int, context: Context):
        nonlocal running
        running += 1
        if running > PARALLELISM:
            os.write(notes, b"above the limit\n")
        # Not at once, so that some are under way when the process is killed.
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), 0.005)
        finally:
            running -= 1
        if event % HOPELESS_EVERY == 0 or random.random() < FAIL_SHARE:
            raise ValueError(f"attempt {context.attempt}")
        os.write(notes, f"{context.id} {event}\n".encode())

    await app.run()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
