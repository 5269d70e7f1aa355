"""The pending store: where schedules wait. Verbs: park, claim, settle, release, fence, cancel."""

from sendlater.store.admin import Admin, Filter, Page
from sendlater.store.batch import Ahead, Batch, Claim
from sendlater.store.changes import Answer, Move
from sendlater.store.pending import Pending
from sendlater.store.recent import Delivery
from sendlater.store.shard import Shard

__all__ = [
    "Admin",
    "Ahead",
    "Answer",
    "Batch",
    "Claim",
    "Delivery",
    "Filter",
    "Move",
    "Page",
    "Pending",
    "Shard",
]
