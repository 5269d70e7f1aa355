"""The pending store: where schedules wait. Verbs: park, claim, settle, release, fence, cancel."""

from sendlater.pending.desk import Answer, Delivery, Desk, Filter, Move, Page
from sendlater.pending.shard import Batch, Claim, Shard
from sendlater.pending.store import Pending
from sendlater.pending.target import Target

__all__ = [
    "Answer",
    "Batch",
    "Claim",
    "Delivery",
    "Desk",
    "Filter",
    "Move",
    "Page",
    "Pending",
    "Shard",
    "Target",
]
