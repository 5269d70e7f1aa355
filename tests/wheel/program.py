"""What a service does with the client, run where only the wheel and its dependencies are installed.

Gets the arguments of a Scheduler as JSON, and a target topic; writes what it saw as JSON.
"""

import asyncio
import importlib.util
import json
import sys

from sendlater import AsyncScheduler, Handlers, Scheduler, SchedulingProducer

place, target = json.loads(sys.argv[1]), sys.argv[2]
NOT_OURS = ("pyspark", "fastapi", "rich", "cyclopts", "msgpack")
loaded = [name for name in NOT_OURS if name in sys.modules]
installed = [name for name in NOT_OURS if importlib.util.find_spec(name)]
handled, all_there = [], asyncio.Event()
app = Handlers(**place, group="wheel")


@app.on(target)
async def handle(event: dict, context):
    handled.append(event["n"])
    if len(handled) == 4:
        all_there.set()


def with_a_scheduler():
    with Scheduler(**place) as scheduler:
        moved = scheduler.send_later(target, '{"n": 1}', delay="1h", id="moved")
        scheduler.send_many(
            {"topic": target, "value": '{"n": 2}', "delay": "1h", "id": f"many-{number}"}
            for number in range(100)
        )
        found = scheduler.get("moved").value.decode()
        answers = scheduler.cancel_many([one.id for one in scheduler.iter(id_prefix="many-")])
        moved.reschedule(delay=0.1)
        return found, len(answers), {str(answer) for answer in answers.values()}


def with_a_producer():
    producer = SchedulingProducer(
        {"bootstrap.servers": place["where"]}, inbox=place["inboxes"][0]["topic"]
    )
    producer.produce(target, b'{"n": 3}', delay=0.1, id="produced")
    assert producer.flush(30) == 0


async def with_asyncio():
    async with AsyncScheduler(**place) as scheduler:
        await scheduler.send_later(target, '{"n": 4}', delay=0.1, id="async")
    async with app:
        await handle.enqueue({"n": 5}, delay=0.1, id="event")
        async with asyncio.timeout(60):
            await all_there.wait()


found, count, answers = with_a_scheduler()
with_a_producer()
asyncio.run(with_asyncio())
json.dump(
    {
        "loaded": loaded,
        "installed": installed,
        "found": found,
        "cancelled": [count, *answers],
        "handled": sorted(handled),
    },
    sys.stdout,
)
