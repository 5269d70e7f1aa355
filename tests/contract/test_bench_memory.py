"""What `sendlater bench` tells of Redis' memory."""

from types import SimpleNamespace

from sendlater.bench.load import bytes_per_schedule
from sendlater.store.shard import Shard


def test_what_others_free_meanwhile_is_not_counted(pending, monkeypatch):
    others = f"{pending.space}:others"
    pending.client.set(others, bytes(50_000_000))
    park = Shard.park

    def freeing(shard, rows):
        pending.client.delete(others)
        return park(shard, rows)

    monkeypatch.setattr(Shard, "park", freeing)

    told = bytes_per_schedule(SimpleNamespace(pending=pending, inbox="inbox"))

    assert 200 < told < 800
