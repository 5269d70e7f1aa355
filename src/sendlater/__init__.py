"""sendlater: delivery of Kafka messages at the time you choose.

The names below are loaded when they are first used, so that `import sendlater` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from sendlater.client.async_scheduler import AsyncScheduler
    from sendlater.client.backoff import Backoff, Dead, Retry
    from sendlater.client.event_codec import SerializerCodec
    from sendlater.client.handlers import Context, Handlers
    from sendlater.client.producers_consumers import open_consumer, open_producer
    from sendlater.client.scheduled import Page, Scheduled
    from sendlater.client.scheduler import Scheduler
    from sendlater.client.scheduling_producer import SchedulingProducer
    from sendlater.client.task import Task
    from sendlater.client.tracing import instrument
    from sendlater.errors import (
        BadRequest,
        BadSettings,
        BadTime,
        BrokerUnavailable,
        ConditionFailed,
        NoAttemptsLeft,
        NotSupported,
        SendlaterError,
        StoreUnavailable,
        Unavailable,
    )
    from sendlater.model import Cancelled, Moved, Paused, Record, Standing, State
    from sendlater.operations.transport import Matched
    from sendlater.topics import Consumer, Topics

_HOMES = {
    "AsyncScheduler": "client.async_scheduler",
    "Backoff": "client.backoff",
    "BadRequest": "errors",
    "BadSettings": "errors",
    "BadTime": "errors",
    "BrokerUnavailable": "errors",
    "Cancelled": "model",
    "ConditionFailed": "errors",
    "Consumer": "topics",
    "Context": "client.events",
    "Dead": "client.backoff",
    "Handlers": "client.handlers",
    "Matched": "operations.transport",
    "Moved": "model",
    "NoAttemptsLeft": "errors",
    "NotSupported": "errors",
    "Page": "client.scheduled",
    "Paused": "model",
    "Record": "model",
    "Retry": "client.backoff",
    "SerializerCodec": "client.event_codec",
    "Scheduled": "client.scheduled",
    "Scheduler": "client.scheduler",
    "SchedulingProducer": "client.scheduling_producer",
    "SendlaterError": "errors",
    "Standing": "model",
    "State": "model",
    "StoreUnavailable": "errors",
    "Task": "client.task",
    "Topics": "topics",
    "Unavailable": "errors",
    "instrument": "client.tracing",
    "open_consumer": "client.producers_consumers",
    "open_producer": "client.producers_consumers",
}

__all__ = [
    "AsyncScheduler",
    "Backoff",
    "BadRequest",
    "BadSettings",
    "BadTime",
    "BrokerUnavailable",
    "Cancelled",
    "ConditionFailed",
    "Consumer",
    "Context",
    "Dead",
    "Handlers",
    "Matched",
    "Moved",
    "NoAttemptsLeft",
    "NotSupported",
    "Page",
    "Paused",
    "Record",
    "Retry",
    "Scheduled",
    "Scheduler",
    "SchedulingProducer",
    "SendlaterError",
    "SerializerCodec",
    "Standing",
    "State",
    "StoreUnavailable",
    "Task",
    "Topics",
    "Unavailable",
    "__version__",
    "instrument",
    "open_consumer",
    "open_producer",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its room."""
    if name not in _HOMES:
        raise AttributeError(f"module 'sendlater' has no attribute {name!r}")
    found = getattr(import_module(f"sendlater.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted(__all__)
