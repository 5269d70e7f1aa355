"""The systems, in the order of the tables: a file for each, with all that was chosen for it."""

from bench.system import System
from bench.systems import asynq, bullmq, celery, dramatiq, graphile, nats, older, sendlater

SYSTEMS: tuple[System, ...] = (
    *sendlater.SYSTEMS,
    older.SYSTEM,
    nats.SYSTEM,
    bullmq.SYSTEM,
    graphile.SYSTEM,
    asynq.SYSTEM,
    celery.SYSTEM,
    dramatiq.SYSTEM,
)
