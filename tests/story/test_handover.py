"""Two services, a steady load, and the space goes from one to the other: the ledger balances.

How long deliveries pause is told, not judged: this machine may be busy.
"""

import subprocess

import pytest
import redis
from handovers import Load, longest_gap_ms, more, relay, say
from ledger import Reader
from servers import COMMAND, cli, wait_until

READY = "is ready"
RATE = 100
AROUND = 3 * RATE
"""So many arrive before and after a handover."""

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def space_of(kafka, redis_url, tmp_path, record_property):
    """A relay of services and a reader of what they deliver; at its end the ledger must balance."""
    with relay(kafka, redis_url, tmp_path) as one, Reader(kafka, one.target) as reader:
        yield one, reader
        wait_until(lambda: not one.ledger.missing(reader), "all have arrived", timeout_s=120)
        assert not one.ledger.doubled(reader)
        assert not one.ledger.early(reader)
        gap_ms = longest_gap_ms(reader)
        record_property("longest_gap_ms", gap_ms)
        say(f"longest gap between deliveries: {gap_ms} ms")


def has_ended(service):
    assert service.wait() == 0, service.said()
    assert '"event": "handed over"' in service.said()


def test_a_space_goes_from_one_service_to_the_next(space_of) -> None:
    """Because one is started to take over, because one is stopped, and because one is asked."""
    one, reader = space_of
    first = one.another(until=READY)
    with Load(one.ledger, rate=RATE):
        more(reader, AROUND)
        second = one.another("--take-over", until=READY)
        has_ended(first)
        third = one.another()
        assert second.stop() == 0
        has_ended(second)
        wait_until(lambda: READY in third.said(), "the third has it", timeout_s=30)
        fourth = one.another()
        told = cli(fourth, "promote")
        assert told.returncode == 0, told.stderr
        has_ended(third)
        wait_until(lambda: READY in fourth.said(), "the fourth has it", timeout_s=30)
        more(reader, AROUND)


@pytest.fixture(scope="module")
def only(kafka, redis_url, tmp_path_factory):
    """A service without another one on its space."""
    with relay(kafka, redis_url, tmp_path_factory.mktemp("only")) as one:
        yield one.another(until=READY)


def test_nobody_is_there_to_hand_over_to(only) -> None:
    told = cli(only, "promote")
    assert told.returncode == 5
    assert b"no service stands by" in told.stderr


def test_a_service_without_layout_cannot_be_followed(only, redis_url) -> None:
    """One that is older than handovers; it is told apart by what it does not write."""
    space = only.environment["SENDLATER_SPACE"]
    redis.Redis.from_url(redis_url).hdel(f"{{{space}:0}}:state", "layout")
    told = subprocess.run(
        [COMMAND, "serve", "--take-over"],
        env=only.environment,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert told.returncode == 2, told.stderr
    assert b"cannot hand over to this version" in told.stderr
    assert only.running
