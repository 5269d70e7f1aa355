"""Tags through the doors that need no server: the fake with its asyncio client and handlers, and
the producer."""

import asyncio

import pytest

from sendlater import AsyncScheduler, Handlers, Scheduler, SchedulingProducer
from sendlater.dialects import names
from sendlater.errors import BadRequest, NotSupported
from sendlater.testing import Fake


def test_asyncio_and_handlers_give_tags_and_select_by_them():
    async def told(fake):
        async with AsyncScheduler(fake) as client:
            await client.send_later("t", "v", delay="1h", id="a", tags=["order-17"])
            app = Handlers(fake)

            @app.on("remind")
            async def remind(event):
                return True

            await remind.enqueue("x", delay="2h", id="b", tags=["order-17", "mail"])
            found = [one.tags async for one in client.iter(tag="order-17")]
            assert found == [("order-17",), ("order-17", "mail")]
            assert len((await client.list(tag="mail")).items) == 1
            assert (await client.cancel_matching(tag="order-17")).cancelled == 2
            await app.close()

    asyncio.run(told(Fake()))


def test_tags_stay_with_what_recurs_until_it_ends():
    fake = Fake()
    with Scheduler(fake) as client:
        client.send_later("t", "v", every="1h", count=3, id="a", tags=["order-17"])
        fake.advance("1h30m")
        assert len(fake.delivered("t")) >= 1
        assert [one.id for one in client.iter(tag="order-17")] == ["a"]
        assert all(name != names.TAGS for one in fake.delivered("t") for name, _ in one.headers)
        assert client.cancel_matching(tag="order-17").cancelled == 1


def test_the_fake_refuses_tags_in_buckets():
    fake = Fake(pending="buckets", bootstrap_servers="nobody:1")
    with Scheduler(fake) as client, pytest.raises(NotSupported, match="without tags"):
        client.send_later("t", "v", delay="1h", tags=["order-17"])


def test_the_producer_refuses_tags_without_a_time():
    producer = SchedulingProducer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    with pytest.raises(BadRequest, match="tags: expected delay or at"):
        producer.produce("t", b"v", tags=["order-17"])
