"""Every error sendlater raises, sorted by whose fault it is.

SendlaterError
├── BadRequest           the caller's fault: correct the call and repeat it
│   ├── BadTime          neither or both of delay and at, a naive datetime, unreadable text
│   ├── BadSettings      a setting is unknown, missing or contradicts another
│   ├── NoAttemptsLeft   a record has been retried as often as its Backoff allows
│   └── NotSupported     this installation cannot do that; the message says where to look
├── Unavailable          the world's fault: try again later, nothing is lost
│   ├── StoreUnavailable Redis does not answer
│   ├── BrokerUnavailable  Kafka does not answer
│   │   └── MissingInbox it does, but does not know an inbox (any more)
│   └── MissingTool      Java, a jar or a server binary is not there
└── Stopped              ours, on purpose
    ├── Fenced           a newer service has taken over this space
    └── StoreWentBack    Redis came back older than it was; intake must start again from it

A record that cannot be scheduled is no exception: it goes to the rejected topic with a `Reason`.
"""


class SendlaterError(Exception):
    """The root: catch this to catch everything of ours."""


class BadRequest(SendlaterError, ValueError):
    """The caller's fault."""


class BadTime(BadRequest):
    """A due time that cannot be understood."""


class BadSettings(BadRequest):
    """Settings that cannot be used."""


class NoAttemptsLeft(BadRequest):
    """A record that has been retried as often as it may be."""


class NotSupported(BadRequest):
    """Something this installation cannot do."""


class Unavailable(SendlaterError):
    """The world's fault; the same call may succeed later."""


class StoreUnavailable(Unavailable):
    """Redis does not answer."""


class BrokerUnavailable(Unavailable):
    """Kafka, or the Redis behind the development topics, does not answer."""


class MissingInbox(BrokerUnavailable):
    """The broker answers, and an inbox is not there, or not for us to see."""


class MissingTool(Unavailable):
    """Something the machine must have is not there; the message says how to get it."""


class Stopped(SendlaterError):
    """We stopped on purpose."""


class Fenced(Stopped):
    """A newer service owns this space; this one must not touch it any more."""


class StoreWentBack(Stopped):
    """The store has seen less than we told it: it lost its last moments and must be fed again."""
