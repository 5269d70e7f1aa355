"""BullMQ: a queue for Node on Redis."""

from bench.peers import NODE, install_node, node_versions
from bench.system import REDIS_SETTINGS, System, redis_alone, redis_version

SYSTEM = System(
    name="BullMQ",
    settings={
        **REDIS_SETTINGS,
        "concurrency": "100 in one worker; the handler only notes the time",
        "removeOnComplete, removeOnFail": "true: Redis keeps nothing of what is done",
        "enqueue": "addBulk of what is there, at most 1,000",
        "maxRetriesPerRequest": "null, as the documentation wants for workers",
    },
    versions=lambda: {**node_versions("bullmq", "ioredis"), **redis_version()},
    sender=["node", str(NODE / "bullmq.mjs"), "send"],
    receiver=["node", str(NODE / "bullmq.mjs"), "receive"],
    servers=redis_alone,
    install=install_node,
    sends_per_s=4_000,
)
