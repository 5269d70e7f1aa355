"""The Python examples of the client's pages run as they stand, on Redis alone and on Kafka."""

import re
from pathlib import Path

import pytest
from ledger import Reader, create_topics
from servers import wait_until

ROOT = Path(__file__).parents[2]


def examples(page):
    return re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / page).read_text(), re.M | re.S)


def run(code, redis_url, **places):
    for stands, here in {"redis://127.0.0.1:6379/0": redis_url, **places}.items():
        code = code.replace(stands, here)
    exec(compile(code, "example", "exec"), {"__name__": "example"})


@pytest.fixture(autouse=True)
def own_space(monkeypatch, space):
    monkeypatch.setenv("SENDLATER_SPACE", space)


def on_redis(page):
    return [code for code in examples(page) if "9092" not in code]


@pytest.mark.parametrize("number", range(4))
def test_the_client_page_on_redis(number, redis_url, capsys):
    assert len(on_redis("client.md")) == 4
    run(on_redis("client.md")[number], redis_url)
    expected = ("cancelled", "10000", "cancelled", "b'1'")[number]
    assert expected in capsys.readouterr().out


def test_the_handlers_page_on_redis(redis_url):
    (code,) = examples("handlers.md")
    run(code, redis_url)


@pytest.mark.parametrize("number", [0, 1])
def test_the_topics_page_on_redis(number, redis_url, capsys):
    code = [code for code in examples("topics-on-redis.md") if "spark" not in code]
    assert len(code) == 2
    run(code[number], redis_url)
    assert capsys.readouterr().out == ("", "b'k1' b'hello' [('a', b'1')]\n")[number]


def test_the_producer_of_the_client_page(kafka, redis_url, topic_name):
    """Needs no service: what it writes is looked at on the inbox and on the target."""
    inbox, target = topic_name("in"), topic_name("orders")
    create_topics(kafka, inbox, target)
    (code,) = (code for code in examples("client.md") if "SchedulingProducer" in code)
    with Reader(kafka, inbox, target) as reader:
        places = {"127.0.0.1:9092": kafka, '"schedules"': repr(inbox), '"orders"': repr(target)}
        run(code, redis_url, **places)
        wait_until(lambda: len(reader.messages) == 2, "both records are there")
    now, later = sorted(reader.messages, key=lambda message: message.topic() == inbox)
    assert (now.topic(), now.value(), now.headers()) == (target, b"now", None)
    assert (later.key(), later.value()) == (b"o-17", b"later")
    assert dict(later.headers())["scheduler-target-topic"] == target.encode()
    assert dict(later.headers())["scheduler-target-key"] == b"k"
