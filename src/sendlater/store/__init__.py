"""The pending store: where schedules wait. Verbs: park, claim, settle, release, fence, cancel."""

from sendlater.store.admin import Admin, Answer, Filter, Move, Page
from sendlater.store.pending import Pending
from sendlater.store.recent import Delivery
from sendlater.store.shard import Batch, Claim, Shard

__all__ = [
    "Admin",
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
