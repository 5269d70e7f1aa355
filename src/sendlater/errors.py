"""All errors that sendlater raises, by cause.

SendlaterError
├── BadRequest             an error of the caller: correct the call and repeat it
│   ├── BadTime            neither or both of delay and at, a naive datetime, unreadable text
│   ├── BadSettings        a setting is unknown, missing or contradicts another
│   ├── NoAttemptsLeft     a record has been retried as often as its Backoff allows
│   ├── ConditionFailed    a schedule was to be created under a condition, which does not hold
│   └── NotSupported       this installation cannot do that; the message says where to look
├── Unavailable            something is down or missing: try again later, nothing is lost
│   ├── StoreUnavailable   Redis does not answer
│   ├── BrokerUnavailable  Kafka does not answer
│   │   ├── MissingInbox   Kafka answers, but an inbox does not exist, or no longer
│   │   └── TopicUnavailable  Kafka answers, but a topic takes no records for the moment
│   └── MissingTool        Java, a jar or a server binary is not installed
└── Stopped                the service stopped intentionally
    ├── Fenced             a newer service has taken over this space
    ├── NotLookedUp        a task cannot tell what an earlier attempt has delivered
    └── StoreWentBack      Redis lost its last writes; intake must start again from its state

A record that cannot be scheduled raises nothing: it goes to the rejected topic with a `Reason`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sendlater.model import Standing


class SendlaterError(Exception):
    """The base class of all errors of sendlater."""


class BadRequest(SendlaterError, ValueError):
    """An error of the caller."""


class BadTime(BadRequest):
    """A due time that is not valid."""


class BadSettings(BadRequest):
    """Settings that are not valid."""


class NoAttemptsLeft(BadRequest):
    """A record has been retried as often as its Backoff allows."""


class ConditionFailed(BadRequest):
    """The condition of a schedule does not hold: nothing has changed. `standing` is what has its id
    instead, None if nothing has."""

    def __init__(self, told: str, *, standing: "Standing | None" = None) -> None:
        super().__init__(told)
        self.standing = standing


class NotSupported(BadRequest):
    """This installation cannot do that."""


class Unavailable(SendlaterError):
    """Something is down or missing; the same call may succeed later."""


class StoreUnavailable(Unavailable):
    """Redis does not answer."""


class BrokerUnavailable(Unavailable):
    """Kafka, or the Redis behind the development topics, does not answer."""


class MissingInbox(BrokerUnavailable):
    """The broker answers, but an inbox does not exist or we may not see it."""


class TopicUnavailable(BrokerUnavailable):
    """A partition of a topic has no leader, or too few of its replicas are in sync."""


class ClockSkew(Unavailable):
    """The clock of this host is too far from that of Redis to deliver by it."""


class MissingTool(Unavailable):
    """A tool is not installed on this machine; the message says how to get it."""


class Stopped(SendlaterError):
    """The service stopped intentionally."""


class Fenced(Stopped):
    """A newer service owns this space; this one must not change it any more."""


class NotLookedUp(Stopped):
    """A task that is tried again cannot tell what its earlier attempt has delivered: its lane ends,
    and the service looks that up."""


class StoreWentBack(Stopped):
    """The store lost its last writes: intake must read those records again."""
