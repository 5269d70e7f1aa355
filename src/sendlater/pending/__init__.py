"""The pending store: where schedules wait. Verbs: park, claim, settle, release, fence, cancel."""

from sendlater.pending.store import Batch, Claim, Pending, Shard

__all__ = ["Batch", "Claim", "Pending", "Shard"]
